"""Records and files that can't be read: each is named with its file and its place, and with what is wrong in it."""

import json
import re
from typing import Any

import pytest

from tests.support.records import ALONE, GENERATOR, LANGUAGE, OFFLINE, SIZED, image_file, prompts, refused, write
from tests.support.tiny_run import burnish

MOST = 7  # that are told in words at once
USER = {"role": "user", "content": "so?"}


def user(*parts):
    return [{"role": "user", "content": [*parts]}]


def said(text="b", **more):
    return {"role": "assistant", "content": text, **more}


def calling(**function):
    return said(None, tool_calls=[function])


CALLING = said("", tool_calls=[{"type": "function", "function": {"name": "f", "arguments": "{}"}}])
PAIR = {"prompt": "a?", "chosen": "good", "rejected": "bad"}
SHOWN = {"prompt": "p", "image": "grey.png"}
GENERATORS: list[tuple[Any, str]] = [
    ('{"prompt": "a"', "column 15"), ("a cat", "column 1"), ('["a cat"]', "list"), ('"a cat"', "str"), ({}, "prompt"),
    ("[" * 200_000, "nested"), ("{" + '"n":1,' * 100_000 + '"n":2}', "'n'"), (b"caf\xe9", "byte 3 is not UTF-8"),
    ({"prompt": []}, "[]"), ({"prompt": [said("a")]}, "'assistant'"),
    ({"prompt": "a", "answer": "b", "target": "c"}, "data.answer_key"),
    ({"prompt": "a", "mask_image": 3}, "3"),
    ({"prompt": "a", "image": "broken.png"}, "decoded"),
    ({"prompt": "<image> <image>", "images": ["data:,"]}, "decoded"), ({"promt": "a"}, "'promt'"),
    ({"prompt": [{"role": "user"}]}, "None"),
    ({"prompt": " "}, "empty"), ({"prompt": "a", "text": "b"}, "data.prompt_key"),
    ({"prompt": "a", "answer": True}, "True"),
    ({"prompt": "a", "negative_prompt": 1}, "'negative_prompt'"), ({"prompt": "\ud800"}, "surrogate"),
    ({"prompt": user({"type": "video", "video": ["grey.png"]})}, "video"),
]  # fmt: skip
QUESTIONS: list[tuple[Any, str]] = [
    ({"prompt": [USER | {"images": ["a.png"]}]}, "'images'"), ({"prompt": "<image>?"}, "0 images, but 1"),
    ({"prompt": "<image>", "images": [{"path": "grey.png", "nframes": 3}]}, "'nframes'"),
    ({"prompt": "<image>", "images": [{"path": "grey.png", "max_pixels": 0}]}, "max_pixels 0"),
    ({"prompt": [USER | {"reasoning": 3}]}, "'reasoning' is 3"), ({"prompt": [USER | {"loss": 0.5}]}, "'loss' is 0.5"),
    ({"prompt": "<image><image>", "images": ["grey.png"]}, "1 images, but 2"), ({"prompt": " "}, "empty"),
    ({"prompt": "<image>Same?", "images": ["grey.png", "grey.png"]}, "2 images, but 1"),
    ({"prompt": "<image>?", "image": "none.png"}, "No such file"), ({"prompt": "<image>?", "image": 3}, "3"),
    ({"prompt": "<image>?", "image": "https://a.b/c.png"}, "download it"), ({"prompt": "<video>"}, "0 videos, but 1"),
    ({"prompt": "<image>?", "image": [[0.5, 0.5], [1.0, 0.0]]}, "uint8"), ({"prompt": "a", "answer": ["1"]}, "['1']"),
    ({"prompt": "<image>?", "images": ["grey.png"], "image": "grey.png"}, "'images' and 'image'"),
    ({"prompt": "a", "answer": float("nan")}, "'answer' is nan"), ({"prompt": [calling(), USER]}, "{}"),
    ({"prompt": [calling(name="f", arguments="{"), USER]}, "a call of f"),
    ({"prompt": [calling(name="f") | {"role": "user"}]}, "'user' with tool_calls"),
    ({"prompt": [{"role": "human", "content": "a"}]}, "system, developer, user, assistant, tool"),
    ({"prompt": user({"type": "smell"})}, "'smell'"), ({"prompt": user({"type": "audio"})}, "0 sounds, but 1"),
    ({"prompt": [said("a")]}, "assistant"), ({"conversations": [{"from": "martian", "value": "a"}]}, "'martian'"),
    ({"instruction": "a", "conversations": []}, "data.prompt_key"), ({"instruction": "a", "input": 3}, "'input' is 3"),
    ({"prompt": "a", "tools": [{"name": "\ud800"}]}, "'tools'"),
    ({"prompt": "<video>?", "videos": ["data.jsonl"]}, "decoded"), ({"prompt": "?", "audio": "grey.png"}, "decoded"),
    *(({"prompt": "?", "video": {"frames": ["grey.png"] * 3, "fps": fps}}, "frames per second")
      for fps in (0, float("nan"), 10**300, "24")),
]  # fmt: skip
ONLY_REWARD_MODELS = [{"tie": True}, {"preference": "rejected"}, {"preference": {"a": "tie"}}]
PREFERENCES: list[tuple[Any, str]] = [
    ({"prompt": "a", "chosen": "b"}, "rejected"), ({"prompt": "a", "chosen": "b", "rejected": "b"}, "prefers nothing"),
    ({"chosen": "b", "rejected": "c"}, "no prompt"), (PAIR | {"chosen": [USER]}, "assistant's"),
    ({"chosen": [USER, said()], "rejected": [said(), said("c")]}, "last message"),
    (PAIR | {"chosen": [said(reasoning="c")]}, "reasoning"), (PAIR | {"chosen": [CALLING]}, "tool_calls"),
    *((PAIR | more, "reward models") for more in ONLY_REWARD_MODELS),
]  # fmt: skip
JUDGED: list[tuple[Any, str]] = [
    ({"prompt": "a", "response": "b", "label": "yes"}, "'label'"), ({"prompt": "a", "label": True}, "response"),
    ({"prompt": "a", "response": "", "label": True}, "'response' is empty"),
    ({"messages": [USER, CALLING], "label": True}, "tool_calls"),
]  # fmt: skip
DEMONSTRATIONS: list[tuple[Any, str]] = [
    ({"messages": [said("a")]}, "answers nothing"), ({"prompt": "a", "response": 3}, "'response' is 3"),
    ({"prompt": "a", "response": [said([{"type": "image"}])]}, "text only"), ({"prompt": "a"}, "no response"),
    ({"messages": [USER, CALLING]}, "tool_calls"), ({"messages": [USER, said(thinking="c")]}, "thinking"),
    ({"messages": [USER, said(train=False)]}, "learned"),
    ({"messages": [USER, said([{"type": "image"}])], "image": "grey.png"}, "text only"),
]  # fmt: skip
STEPWISE = {"prompt": "a", "steps": ["b", "c"], "labels": [1, 0.5]}
COMPARED: list[tuple[Any, str]] = [
    (PAIR | {"tie": 1}, "'tie' is 1"), (PAIR | {"tie": True, "preference": "chosen"}, "'tie' and 'preference'"),
    (PAIR | {"preference": "chosen"}, "truth, style"), (PAIR | {"preference": {"truth": "A"}}, "chosen, rejected, tie"),
    (PAIR | {"preference": {"form": "chosen"}}, "'form'"), (PAIR | {"preference": {"truth": None}}, "truth, style"),
    (PAIR | {"margin": {"truth": -1}}, "negative"),
]  # fmt: skip
IMAGES: list[tuple[Any, str]] = [
    ("?", "JSON"), ({"image": "grey.png"}, "prompt"), ({"prompt": "p"}, "image"),
    (SHOWN | {"image": "no.png"}, "No such file"),
    (SHOWN | {"image": "data.jsonl"}, "decoded"), (SHOWN | {"file_name": "grey.png"}, "'image' and 'file_name'"),
    (SHOWN | {"image": "small.png"}, "4 x 4"),
]  # fmt: skip
PAIRS: list[tuple[Any, str]] = [
    ({"prompt": "p", "chosen": "grey.png"}, "rejected"),
    ({"prompt": "p", "chosen": "grey.png", "rejected": "grey.png"}, "same image"),
]  # fmt: skip
STEPS: list[tuple[Any, str]] = [
    (STEPWISE | {"labels": [1, 1.5]}, "from 0 to 1"), (STEPWISE | {"labels": [1]}, "each of 2 steps"),
    (STEPWISE | {"labels": "good"}, "'good'"), (STEPWISE | {"steps": []}, "no list of steps"),
    (STEPWISE | {"steps": ["b", " "]}, "must have text"),
]  # fmt: skip
SAMPLED = {"prompt": "a", "response": "b", "token_ids": [1, 2], "logprobs": [-0.1, -0.2], "score": 0.5}
SCORED: list[tuple[Any, str]] = [
    ({key: value for key, value in SAMPLED.items() if key != "score"}, "has no score"),
    (SAMPLED | {"score": "good"}, "'good'"), (SAMPLED | {"logprobs": [-0.1]}, "1 logprobs of 2 token_ids"),
    (SAMPLED | {"logprobs": None}, "algorithm.given_logprobs=reference"),
    (SAMPLED | {"token_ids": None}, "has logprobs, but no token_ids"), (SAMPLED | {"turns": 3}, "'turns' is 3"),
    (SAMPLED | {"token_ids": None, "logprobs": None, "finished": False}, "was cut"),
]  # fmt: skip
KINDS: dict[str, tuple[str, list[str], Any, list[tuple[Any, str]]]] = {
    "prompts": (GENERATOR, [], {"prompt": "a"}, GENERATORS),
    "questions": (LANGUAGE, [], {"prompt": "a"}, QUESTIONS),
    "preferences": (LANGUAGE, ["algorithm=dpo", OFFLINE], PAIR, PREFERENCES),
    "judgements": (LANGUAGE, ["algorithm=kto", OFFLINE], {"prompt": "a", "response": "b", "label": True}, JUDGED),
    "demonstrations": (LANGUAGE, ["algorithm=sft", OFFLINE], {"prompt": "a", "response": "b"}, DEMONSTRATIONS),
    "comparisons": (
        LANGUAGE, [*ALONE, "algorithm={name: bradley_terry, heads: [truth, style], ties: davidson}"], PAIR, COMPARED,
    ),
    "scored": (LANGUAGE, ["algorithm=grpo", "data.scores={score: 1}"], SAMPLED, SCORED),
    "steps": (LANGUAGE, [*ALONE, "algorithm={name: process_reward, kind: bce}"], STEPWISE, STEPS),
    "pictures": (GENERATOR, ["algorithm=sft", OFFLINE, *SIZED], SHOWN, IMAGES),
    "pairs": (
        GENERATOR, ["algorithm=diffusion_dpo", OFFLINE, *SIZED],
        {"prompt": "p", "chosen": "grey.png", "rejected": "light.png"}, PAIRS,
    ),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for name, content in (
        ("grey.png", image_file(100)), ("light.png", image_file(200)), ("small.png", image_file(1, 4, 4)),
        ("broken.png", image_file()[:40]),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_record_is_named_with_its_file_and_line(folder, kind):
    recipe, options, good, wrong = KINDS[kind]
    for first in range(0, len(wrong), MOST):
        some = wrong[first : first + MOST]
        path = write(folder / "data.jsonl", good, *(record for record, _ in some), "", good)
        messages = refused(recipe, path, *options)
        assert len(messages) == len(some), messages
        for line, (message, (_, word)) in enumerate(zip(messages, some, strict=True), 2):
            assert message.startswith(f"{path}:{line}: "), message
            assert word in message


def test_what_is_wrong_is_told_at_once_in_an_error_of_the_command(tmp_path):
    path = write(tmp_path / "data.jsonl", *[{}] * 10, {"prompt": "a"}, "?")
    for recipe in (GENERATOR, LANGUAGE):
        said = burnish("data", "show", path, "--recipe", recipe, status=2)
        named = re.findall(rf"{re.escape(path)}:(\d+): ", said.message)
        assert (named, said.out) == ([str(line) for line in range(1, 9)], "")
        assert "and 3 more" in said.message


TABLES = [
    ("prompt,answer\na\n", ":2: has 1 cells"), ("prompt,answer\na,b,c\n", ":2: has 3 cells"),
    ("prompt,\na,b\n", ":1 must name"), ("prompt,prompt\na,b\n", ":1 must name"),
    ('prompt\n"a', ":2 can't be read"), ("prompt\n", "holds no records"), ("", "holds no records"),
    (b"prompt\n\xe9\n", "byte 7 is not UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "word"), TABLES)
def test_a_wrong_table_is_named_with_its_line(tmp_path, text, word):
    (tmp_path / "a.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    said = shown(tmp_path / "a.csv")
    assert str(tmp_path / "a.csv") in said
    assert word in said


def shown(path, *options):
    return burnish("data", "show", path, "--recipe", LANGUAGE, *options, status=2).message


def test_files_that_are_none_are_named(folder):
    (folder / "state").mkdir()
    for name, content, word in (
        ("empty.jsonl", "\n \n", "no records"), ("object.json", "{}", "list of objects"),
        ("no.json", "[", "JSON"), ("no.parquet", "PAR1", "can't be read"), ("a.xlsx", "PK", ".jsonl"),
        ("state/state.json", "[]", "state"), ("state/dataset_info.json", "{}", "datasets library"),
        ("state/dataset_dict.json", '{"splits": 5}', "several splits"),
    ):  # fmt: skip
        (folder / name).write_text(content)
        path = folder / name.partition("/")[0]
        said = shown(path)
        assert path.name in said
        assert word in said
    assert "no such file" in shown(folder / "none.jsonl")
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_list([{"prompt": "a"}])}).save_to_disk(folder / "splits")
    assert f"{folder}/splits/train" in shown(folder / "splits")


CODE = """
nothing = 3


def wrong():
    yield {"prompt": "fine"}
    yield "not a record"


def broken():
    yield {"prompt": "fine"}
    raise RuntimeError("no luck")
"""


@pytest.mark.parametrize(("name", "words"), [
    ("wrong", ["record 2", "str"]), ("broken", ["record 2", "RuntimeError: no luck", "mine.py:12"]),
    ("absent", ["absent"]), ("nothing", ["function"]),
])  # fmt: skip
def test_code_of_the_user_is_named_with_the_record_and_the_line(tmp_path, name, words):
    (tmp_path / "mine.py").write_text(CODE)
    said = shown(f"{tmp_path / 'mine.py'}:{name}")
    assert [word for word in [f"mine.py:{name}", *words] if word not in said] == [], said


TEMPLATES = [
    ("{{ chioces }}", "'chioces'"), ("{{ 1 / 0 }}", "zero"), ("{{ ''.__class__.__mro__ }}", "'__class__'"),
    ("{{ choices.append(1) }}", "'append'"), ("{{ ' ' }}", "empty"), ("{% if %}", "line 1"),
    ("none.jinja", "none.jinja"), ("{% for x in range(10000000) %}{% endfor %}", "range"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "word"), TEMPLATES)
def test_a_record_that_does_not_fit_its_template_is_named(tmp_path, template, word):
    path = write(tmp_path / "data.jsonl", {"question": "Which?", "choices": ["cat", "dog"]})
    said = shown(path, f"data.template={json.dumps(template)}")
    assert f"{path}:1: " in said or "data.template" in said
    assert word in said


def test_a_key_that_an_option_names_and_no_record_has_is_refused(folder):
    """One record that has it is enough, and usual keys may be absent."""
    bare = {"prompt": "a fox"}
    full = bare | {"solution": "4", "kind": "sums", "shots": ["grey.png"], "depth_image": "grey.png"}
    asked = {"answer_key": "solution", "label_key": "kind", "images_key": "shots", "input_keys": "[depth_image]"}
    options = [f"output_dir={folder / 'run'}", "rewards.ocr=null", "rewards.border_darkness.weight=1"]
    path = write(folder / "data.jsonl", bare, bare)
    given = [f"data.{option}={name}" for option, name in asked.items()]
    said = burnish("train", "quickstart", f"data.train_files={path}", *given, *options, status=2).message
    named = [f"data.{option} is {name.strip('[]')}, " for option, name in asked.items()]
    assert [words for words in [*named, "2 records"] if words not in said] == [], said
    assert prompts(write(folder / "data.jsonl", bare, full), *given)[1].answer == "4"
    media = ["data.videos_key=v", "data.audios_key=a"]
    said = burnish("train", "vlm_quickstart", f"data.train_files={path}", *media, "rewards.exact=null",
                   f"output_dir={folder / 'run'}", status=2).message  # fmt: skip
    assert all(name in said for name in ("data.videos_key is v", "data.audios_key is a"))
