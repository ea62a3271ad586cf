"""Suites of an evaluation: what is read from their files, what is refused, and canaries that tell a broken scorer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import yaml
from PIL import Image

from burnish.config.tasks import DEFAULT
from burnish.data.sets import SETS
from burnish.evaluation.canaries import PLAIN, doubts, questions, rows, unwatched, wrong_answers
from burnish.evaluation.prompts import chosen, prompts_digest, read_suite_prompts
from burnish.evaluation.suite import PINNED, Canary, Suite, read_suite, suite_names
from burnish.rewards.images.geneval import record_of
from burnish.rewards.images.geneval_rules import problem_of
from burnish.types.prompt import Prompt
from tests.support.scoring import judged_values

TREE = {"prompts": "mine.txt", "scorers": {"ocr": {}}, "number": "ocr"}
ANSWERED = {"task": "image-text-to-text", "prompts": "mine.jsonl", "scorers": {"exact": {}}}


def write(folder, tree) -> str:
    (folder / "mine.txt").write_text('the word "one"\nthe word "two"\nthe word "three"\n')
    (folder / "mine.jsonl").write_text('{"prompt": "2 + 2?", "answer": "4"}\n')
    (folder / "mine.yaml").write_text(yaml.safe_dump(tree))
    return str(folder / "mine.yaml")


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_that_ships_is_sound_and_its_prompts_can_be_had(name):
    suite = read_suite(name)
    assert (suite.name, suite.changed) == (name, [])
    assert all([suite.about, suite.licence, suite.canaries]), "nothing would tell a broken scorer"
    prompts = str(suite.prompts)
    assert prompts.startswith("burnish:") or prompts.removeprefix("prepared:") in SETS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scorers": {}}, "no scorers"),
        ({"scorers": {"ocrr": {}}}, "ocr"),
        ({"scorers": {"ocr": {"detectt": True}}}, r"scorers\.ocr\.detectt"),
        ({"number": "exact"}, "number is exact.*reward, ocr, ocr_exact"),
        ({"n": 0}, "n is 0"),
        ({"steps": 3}, "steps"),
        ({"task": "text-to-text"}, "task is text-to-text"),
        ({"drawing": {"num_inference_steps": "many"}}, r"drawing\.num_inference_steps is 'many'"),
        ({"responding": {"temperature": 1.0}}, "responding"),
        ({"instruction": "Be brief."}, "instruction"),
        ({"canaries": [{"kind": "answers"}]}, "not for task"),
        ({"canaries": [{"kind": "written", "scorers": ["clip"]}]}, "clip"),
        ({"canaries": [{"kind": "pairs"}]}, "records"),
        ({"scorers": {"ocr": {"weight": 0}}}, "weight 0"),
        ({"changed": []}, "changed"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        read_suite(write(tmp_path, TREE | change))


def test_options_that_decide_samples_change_the_digest_and_others_do_not(tmp_path):
    path = write(tmp_path, TREE)
    suite = read_suite(path)
    assert read_suite(path, {"n": 3, "drawing.height": 64}).changed == ["drawing.height", "n"]
    assert read_suite(path, {"scorers.ocr.threads": 2}).changed == []
    assert "changed: n" in read_suite(path, {"n": 3}).title
    assert {one.partition(".")[0] for one in PINNED} <= set(Suite.__dataclass_fields__)
    assert suite.digest == read_suite(write(tmp_path, TREE | {"about": "words"})).digest
    for change in ({"n": 2}, {"version": 2}, {"scorers": {"ocr": {"detect": True}}}, {"drawing": {"width": 64}}):
        assert suite.digest != read_suite(write(tmp_path, TREE | change)).digest
    with pytest.raises(ValueError, match="quickstart"):
        read_suite("quickstrat")


def test_a_subset_is_the_same_whatever_the_order_of_the_file(tmp_path):
    suite = read_suite(write(tmp_path, TREE | {"max_prompts": 7}))
    prompts = [Prompt(text=f"prompt {i}") for i in range(40)]
    some = chosen(suite, prompts)
    assert len(some) == 7
    assert {one.uid for one in chosen(suite, prompts[::-1])} == {one.uid for one in some}
    # and a larger subset holds a smaller one
    assert {one.uid for one in some} < {one.uid for one in chosen(replace(suite, max_prompts=12), prompts)}
    assert prompts_digest(some) != prompts_digest(some[::-1])


def test_prompts_are_those_of_the_suite_with_its_instruction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    suite = read_suite("geneval")
    prompts = read_suite_prompts(suite)
    assert Counter(prompt.source for prompt in prompts) == {
        "single_object": 80, "two_object": 99, "counting": 80, "colors": 94, "position": 100, "color_attr": 100,
    }  # fmt: skip
    assert not [problem for prompt in prompts if (problem := problem_of(record_of(prompt)))]
    with pytest.raises(ValueError, match="burnish data prepare ocr"):
        read_suite_prompts(read_suite("ocr"))
    with pytest.raises(ValueError, match="geneval"):
        read_suite_prompts(replace(suite, prompts="prepared:genevall"))
    (prompt,) = read_suite_prompts(read_suite(write(tmp_path, ANSWERED | {"instruction": " Be brief."})))
    assert prompt.turns[-1].text == prompt.text == "2 + 2? Be brief."
    assert prompt.answer == "4"


def complaints(name, score):
    """What is said of a scorer that stands in for a suite's own."""
    suite = read_suite(name)
    asked = questions(suite, read_suite_prompts(suite))
    assert len(asked) >= 4
    values = score(rows(asked))
    return wrong_answers(asked, dict.fromkeys([*suite.rewards, "reward"], values))


def sound(name):
    """The values of the suite's own scorer."""
    reward = next(iter(read_suite(name).rewards.values()))
    return lambda every: judged_values(reward, [sample for sample, _ in every], [prompt for _, prompt in every])


BROKEN = {
    "the prompts are ignored": lambda every: [float(len(getattr(one, "text", one)) % 7) for one, _ in every],
    "the samples are ignored": lambda every: [float(len(one.answer) + int(one.answer, 36) % 5) for _, one in every],
    "it is constant": lambda every: [1.0] * len(every),
    "nothing has a value": lambda every: [None] * len(every),
}


@pytest.mark.parametrize("name", ["quickstart", "vlm_quickstart"])
def test_a_sound_scorer_passes_and_a_broken_one_is_caught(name):
    right = sound(name)
    assert complaints(name, right) == []
    for how, broken in BROKEN.items():
        assert complaints(name, broken), how
    assert complaints(name, lambda every: right(every)[::-1])
    assert complaints(name, lambda every: [1 - value for value in right(every)])
    assert "to what is right" in complaints(name, lambda every: right(every)[1:] + right(every)[:1])[0]
    (first, *_) = complaints("vlm_quickstart", BROKEN["it is constant"])
    assert first.startswith("exact gives right and wrong the same")


def picture_suite(kind, **more) -> Suite:
    return Suite(name="mine", task=DEFAULT, prompts="-", scorers={"pixels": None}, number="pixels",
                 canaries=[Canary(kind=kind, **more)])  # fmt: skip


def test_plain_colours_and_an_empty_picture_tell_scorers_that_read_prompts():
    asked = questions(picture_suite("colours"), [])
    near = [-float(abs(sample[0, 0].astype(float) - PLAIN[prompt.text.split()[2]]).sum())
            for sample, prompt in rows(asked)]  # fmt: skip
    assert wrong_answers(asked, {"pixels": near}) == []
    blind = [float(sample.mean()) for sample, _ in rows(asked)]  # an aesthetic score, which reads no prompt
    assert len(wrong_answers(asked, {"pixels": blind})) == len(asked)
    (one,) = questions(picture_suite("clauses"), [])
    (picture, nothing), (same, somebody) = rows([one])
    assert (picture == same).all()
    assert nothing.info["extra_info"] != somebody.info["extra_info"]
    assert wrong_answers([one], {"pixels": [1.0, 0.0]}) == []
    for values in ([0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [None, 0.0]):
        assert wrong_answers([one], {"pixels": values})


def test_pairs_of_the_users_own(tmp_path):
    for name in ("red", "blue"):
        Image.new("RGB", (8, 8), name).save(tmp_path / f"{name}.png")
    suite = picture_suite("pairs", records=[{"prompt": "a red cube", "right": "red.png", "wrong": "blue.png"}])
    suite.folder = str(tmp_path)
    (asked,) = questions(suite, [])
    assert asked.right[0][0][0, 0].tolist() == [255, 0, 0]
    assert asked.right[0][1].text == "a red cube"
    suite.canaries[0].records[0]["right"] = "gone.png"
    with pytest.raises(ValueError, match=r"gone\.png"):
        questions(suite, [])


def test_equal_answers_make_no_question_and_odd_scores_of_a_complete_suite_are_doubted():
    suite = read_suite("vlm_quickstart")
    alike = [Prompt(text=f"{i}?", answer=answer) for i, answer in enumerate(("7", " 7", "7."))]
    assert questions(suite, alike) == []
    assert unwatched(suite, []) == ["exact", "format"]
    assert doubts("ocr", None, {"ocr": [1.0] * 100}) == doubts("ocr", None, {"ocr": [1.0] * 99 + [None]}) == []
    assert "2 of 100 values of ocr" in doubts("ocr", None, {"ocr": [1.0] * 98 + [None] * 2})[0]
    assert doubts("a", "seen", {"a": [0.0], "seen": [2.0]}) == []
    assert "saw nothing" in doubts("a", "seen", {"a": [0.0], "seen": [0.0]})[0]
