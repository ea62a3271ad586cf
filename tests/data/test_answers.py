"""Records with answers: demonstrations, preferences, judgements, scores, steps, and finished images."""

import base64
from functools import partial
from pathlib import Path

import pytest
import yaml

from burnish.config import load
from burnish.language.offline import short_records
from burnish.language.records import ResponseRecord
from burnish.training.ranks import SINGLE_RANK
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from tests.support.language_samples import folder_of, model_of
from tests.support.records import ALONE, GENERATOR, LANGUAGE, OFFLINE, SIZED, image_file, read, shade, write

LEARNED = {
    "demonstrations": ["algorithm=sft", OFFLINE], "preferences": ["algorithm=dpo", OFFLINE],
    "judgements": ["algorithm=kto", OFFLINE], "scores": ["algorithm=score_regression", *ALONE],
    "steps": ["algorithm=process_reward", *ALONE],
    "comparisons": ["algorithm={name: bradley_terry, heads: [truth, style], ties: davidson}", *ALONE],
    "drawn": ["algorithm={name: score_regression, question: 'Is it {prompt}?'}", *ALONE],
}  # fmt: skip
LABELS = yaml.safe_load(Path(__file__).with_name("labels.yaml").read_text())
ASKED = {"role": "user", "content": "a"}
PAIR = {"prompt": "a?", "chosen": "good", "rejected": "bad"}
TURNS = [("system", "S"), ("user", "Q"), ("assistant", "A"), ("user", "And?")]
QUERY = {"query": "And?", "response": "Yes.", "history": [["Q", "A"]], "system": "S"}


def user(content):
    return {"role": "user", "content": content}


def said(content, **more):
    return {"role": "assistant", "content": content, **more}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.png").write_bytes(image_file(10))
    (tmp_path / "b.png").write_bytes(image_file(20))
    return tmp_path


def learned(kind, folder, *records, options=()):
    return read(LANGUAGE, write(folder / "data.jsonl", *records), *LEARNED[kind], *options)


def turns(record):
    return [(turn.role, turn.text) for turn in record.prompt.turns]


def test_a_demonstration_is_a_question_and_its_response(folder):
    first, second, alpaca, query, bare = learned(
        "demonstrations", folder, {"prompt": "<image>?", "image": "a.png", "response": "grey", "answer": "g"},
        {"question": "a?", "completion": [said("b")]},
        {"instruction": "Add.", "input": "2 and 3", "output": "5"}, QUERY, QUERY | {"system": None},
    )  # fmt: skip
    assert (first.responses, first.prompt.answer, len(first.prompt.images)) == (("grey",), "g", 1)
    assert (second.prompt.text, second.responses) == ("a?", ("b",))
    assert (turns(alpaca), alpaca.responses) == ([("user", "Add.\n2 and 3")], ("5",))
    assert (turns(query), query.responses) == (TURNS, ("Yes.",))
    assert turns(bare) == TURNS[1:]
    (named,) = learned("demonstrations", folder, {"question": "a?", "mine": "c"}, options=["data.response_key=mine"])
    assert named.responses == ("c",)


def test_every_turn_of_the_assistant_that_is_to_be_learned_is_a_demonstration(folder):
    parts = [{"type": "text", "text": "and"}, {"type": "image"}]
    chat = [user("one?"), said("1"), user(parts), said("2")]
    weighed = [ASKED, said("b", weight=0), ASKED, said("c", weight=1), ASKED, said("d")]
    llava = {"image": "a.png", "conversations": [
        {"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A square."},
        {"from": "human", "value": "Which?"}, {"from": "gpt", "value": "Black."},
    ]}  # fmt: skip
    first, second, third, fourth, *told = learned(
        "demonstrations", folder, {"messages": chat, "image": "a.png"}, {"messages": weighed}, llava
    )
    assert (first.prompt.text, first.responses, first.prompt.images) == ("one?", ("1",), ())
    assert (second.prompt.text, second.responses, len(second.prompt.images)) == ("one?\nand<image>", ("2",), 1)
    assert [message.role for message in second.prompt.messages] == ["user", "assistant", "user"]
    assert [(len(one.prompt.messages), one.responses) for one in (third, fourth)] == [(3, ("c",)), (5, ("d",))]
    assert [one.responses for one in told] == [("A square.",), ("Black.",)]


def test_preferences_are_texts_messages_or_conversations(folder):
    records = [
        PAIR, {"prompt": [user("a?")], "chosen": [said("good")], "rejected": [said("bad")]},
        {"chosen": [user("a?"), said("good")], "rejected": [user("a?"), said("bad")]},
        {"conversations": [{"from": "human", "value": "a?"}], "chosen": {"from": "gpt", "value": "good"},
         "rejected": {"from": "gpt", "value": "bad"}},
        {"instruction": "a?", "input": "", "chosen": "good", "rejected": "bad"}, PAIR | {"preference": "chosen"},
        {"messages": [user("a?"), said("good")], "rejected_response": "bad"},
        {"query": "a?", "response": "good", "rejected_response": "bad"},
    ]  # fmt: skip
    *found, with_images = learned("preferences", folder, *records, {"image": "a.png"} | PAIR | {"prompt": "<image>?"})
    for pair in found:
        assert (pair.prompt.turns[0].text, *pair.responses) == ("a?", "good", "bad")
    assert len(with_images.prompt.images) == 1


def test_judgements_are_good_or_bad(folder):
    records = [{"prompt": "a?", "completion": "b", "label": label} for label in (True, False)]
    spoken = [{"from": "human", "value": "a?"}, {"from": "gpt", "value": "b"}]
    found = learned("judgements", folder, *records, {"conversations": spoken, "kto_tag": False})
    assert [(one.responses, one.good, one.prompt.label) for one in found] == [
        (("b",), True, None), (("b",), False, None), (("b",), False, None)
    ]  # fmt: skip
    assert turns(found[2]) == [("user", "a?")]
    assert found[0].uid != found[1].uid


@pytest.mark.parametrize(("kind", "record", "said"), LABELS)
def test_labels_are_those_of_every_head(kind, record, said, folder):
    (one,) = learned(kind, folder, (PAIR if kind == "comparisons" else {}) | record)
    found = vars(one) | {"asked": [(prompt.text, *map(shade, prompt.images)) for prompt in one.asked]}
    assert {name: str(found[name]) for name in said} == said


def test_records_are_taken_up_to_their_limits_and_not_beyond():
    model, prompt = model_of("llama"), Prompt(text="What is this?")
    asked, positions, said = model.count_tokens(prompt.chat(), []), model.max_positions, "it is so, and was"
    told, word = len(model.response_ids(said)), len(model.response_ids("a a")) - len(model.response_ids("a"))

    def kept(*texts, **options):
        given = [f"{name.replace('__', '.')}={value}" for name, value in options.items()]
        config = load("vlm_quickstart", [f"model.path={folder_of('llama')}", *given])
        records = [ResponseRecord(prompt, (text,)) for text in texts]
        return [record.responses[0] for record in short_records(records, lambda: model, config, {}, SINGLE_RANK)]

    for option, least in (("rollout__max_new_tokens", told), ("data__max_prompt_length", asked)):
        enough = {"rollout__max_new_tokens": told} | {option: least}
        assert kept(said, **enough) == [said]
        with pytest.raises(UserError, match=f"{option.rpartition('__')[2]} is {least - 1}"):
            kept(said, **enough | {option: least - 1})
    some = {"rollout__max_new_tokens": told, "data__max_prompt_length": asked}
    assert kept(f"{said} {said}", said, **some, data__overlong="filter") == [said]
    with pytest.raises(UserError, match=r"1 of 2 records are too long"):
        kept(f"{said} {said}", said, **some)
    longest = " ".join(["a"] * ((positions - asked - len(model.response_ids("a"))) // word + 1))
    assert asked + len(model.response_ids(longest)) == positions
    assert kept(longest, rollout__max_new_tokens=positions) == [longest]
    with pytest.raises(UserError, match=f"{positions + word} tokens, but the model has {positions} positions"):
        kept(f"{longest} a", rollout__max_new_tokens=positions)


IMAGES = ["algorithm=sft", OFFLINE]
drawn = partial(read, GENERATOR)


def test_paths_of_images_lie_beside_the_file_and_bytes_in_it(folder):
    path = write(
        folder / "data.jsonl", {"prompt": "one", "image": "a.png", "negative_prompt": "blur"}, "",
        {"caption": "two", "file_name": str(folder / "b.png")},
        {"text": "three", "picture": "data:image/png;base64," + base64.b64encode(image_file(30)).decode()},
    )  # fmt: skip
    records = drawn(path, *IMAGES, *SIZED)
    assert [record.prompt for record in records] == [
        Prompt(text="one", negative="blur"), Prompt(text="two"), Prompt(text="three")
    ]  # fmt: skip
    assert [shade(record.images[0]) for record in records] == [10, 20, 30]
    assert [record.where for record in records] == [f"{path}:{line}" for line in (1, 3, 4)]
    assert len({record.uid for record in records}) == 3
    inner = folder / "images" / "inner"
    inner.mkdir(parents=True)
    for number, name in enumerate(("inner/a.PNG", "b.png")):
        (inner.parent / name).write_bytes(image_file(number))
        (inner.parent / name).with_suffix(".txt").write_text(f" of {name}\n")
    first, second = drawn(inner.parent, *IMAGES, *SIZED)
    assert [(shade(one.images[0]), one.prompt.text, one.where) for one in (first, second)] == [
        (1, "of b.png", f"{inner.parent}/b.png"), (0, "of inner/a.PNG", f"{inner}/a.PNG")
    ]  # fmt: skip
    (inner / "a.txt").unlink()
    with pytest.raises(UserError, match=r"a\.PNG: has no prompt; write it into a\.txt"):
        drawn(inner.parent, *IMAGES, *SIZED)
