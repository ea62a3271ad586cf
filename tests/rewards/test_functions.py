"""Functions and classes of users as rewards: they get what their parameters name, and may return what they like."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import burnish as package
from burnish.rewards.function import scores_of
from burnish.rewards.text.base import Response
from burnish.types.prompt import Prompt
from tests.support import named_rewards
from tests.support.asked import flow_reward, reward
from tests.support.asked import values_of as values
from tests.support.scoring import evaluated, function
from tests.support.tiny_run import TinyRun


def drawn(name: str, **arguments):
    return flow_reward(**function(name, arguments=arguments))


def said(name: str, **arguments):
    return reward(**function(name, arguments=arguments))


def asked(text: str, **own) -> Prompt:
    return Prompt(text=text, answer="7", source="s", label="l", record=json.dumps(own), where="data.jsonl:1")


PROMPTS = [asked(text, difficulty=i) for i, text in enumerate("abc")]
IMAGES = [np.full((4, 4, 3), level, dtype=np.uint8) for level in (51, 204, 102)]


def test_parameters_name_what_a_function_gets():
    assert values(drawn("by_name", scale=2.0), IMAGES, PROMPTS) == [0.0, 2.0, 4.0]
    got = named_rewards.CALLS.pop()
    assert (got["references"], got["sources"], got["labels"]) == (["7"] * 3, ["s"] * 3, ["l"] * 3)
    prompts = [asked("a", bonus=2.0), asked("b", reward_model={"ground_truth": [1, 2]})]
    first, last = drawn("one_at_a_time")(IMAGES[::2], prompts)
    assert (first.value, last.value) == pytest.approx((0.2, 0.4))
    assert (dict(first.numbers), first.note) == ({"bonus": 2.0}, "truth: 7")
    assert (dict(last.numbers), last.note) == ({"bonus": 0.5}, "truth: [1, 2]")
    both = drawn("lists_in_dicts")(IMAGES, PROMPTS)
    assert [(one.value, dict(one.numbers)) for one in both] == [(0.25, {"sharpness": 2.0})] * 3
    late = [PROMPTS[0]] * 20 + [Prompt(text="d", answer="")]
    assert values(said("waiting"), [Response("7")] * 21, late) == [1.0] * 20 + [None]
    assert named_rewards.MOST == [21]  # calls of an async function wait together
    for wrong, why in (({"sharpness": 1}, "keys are sharpness"), ({1: 0}, "keys are 1"), ({1.0}, "in their order"),
                       (None, "returned None"), ({"scores": [1], "x": [1, 2]}, "longer")):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=why):
            scores_of(wrong, "it", [None])


@pytest.mark.parametrize(("name", "form", "right", "named"), [
    ("easyr1_batch", "EasyR1", 0.9, {"it_accuracy": 1.0, "it_length": 5.0}), ("easyr1_single", "EasyR1", 0.9, {}),
    ("compute_score", "verl", 1.0, {"it_acc": 1.0}), ("trl", "TRL", 1.0, {}),
])  # fmt: skip
def test_functions_of_other_libraries_work_as_they_are_which_is_said(name, form, right, named, files, caplog):
    first, _ = evaluated(files, {"it": function(name)}, [{"prompt": "q", "solution": "7", "data_source": "s"}])
    assert form in caplog.text
    told = {"prompt": "q", "solution": first[0]["response"], "data_source": "s", "extra_info": {"index": 3}}
    again, _ = evaluated(files, {"it": function(name)}, [told])
    assert again[0]["components"] == pytest.approx({"it": right} | named)
    assert first[0]["reward"] == 0
    if name == "compute_score":
        assert again[0]["note"] == f"pred: {told['solution']}; source: s; extra: {{'index': 3}}"
    if name == "trl":
        prompt = Prompt(text="q", record='{"solution": "7"}', conversational=True)
        assert values(said(name), [Response("8")], [prompt]) == [0.0]
        got = named_rewards.CALLS.pop()
        assert got["prompts"] == [[{"role": "user", "content": "q"}]]
        assert got["completions"] == [[{"role": "assistant", "content": "8"}]]


def each_of_two(images):
    return [float(image.mean()) or None for image in images]


def trios(images): ...


each_of_two.compares, trios.compares = "pairs", "trios"  # type: ignore[attr-defined]
without_name = partial(lambda: 1)


def test_groups_and_pairs_are_compared_as_a_whole():
    prompts = [PROMPTS[0]] * 3 + [PROMPTS[1]] * 2
    images = [*IMAGES, IMAGES[0] // 9, IMAGES[0]]
    assert values(drawn("ranks"), images, prompts) == [0.0, 1.0, 0.5, 0.0, 1.0]
    assert values(drawn("brighter"), images, prompts) == [0.0, 1.0, 0.5, 0.0, 1.0]
    assert values(drawn(f"{__name__}:each_of_two"), [IMAGES[0] // 99, *IMAGES[1:]], prompts[:3]) == [None, 204.0, 102.0]
    (alone,) = drawn("brighter")(IMAGES[:1], PROMPTS[:1])
    assert (alone.value, "no other sample" in alone.note) == (None, True)
    first, *_ = drawn("flow_grpo")(IMAGES, PROMPTS)
    assert (first.value, dict(first.numbers)) == (1.0, {"strict": 1.0})


def test_a_run_gives_latents_and_a_image_of_its_own_to_each(files):
    rewards = {"norms": function("norms"), "paints": function("tests.support.named_rewards:paints_over"),
               "after": function("tests.support.named_rewards:brightness")}  # fmt: skip
    given = [f"rewards.{name}={json.dumps(one)}" for name, one in rewards.items()]
    run = TinyRun(files, "generators", "flux", "algorithm=flow_grpo", "steps=1", "rewards.brightness=null",
                  *given, name="given")  # fmt: skip
    with torch.enable_grad():
        run.train()
    row = run.metrics[-1]
    assert min(row["critic/norms/mean"], row["actor/grad_norm"]) > 0
    assert row["critic/after/mean"] > 0 == row["critic/paints/mean"]


def test_values_of_tokens_and_steps_are_those_of_the_response(files):
    (steps,) = said("step_values")([Response("abcd")], PROMPTS[:1])
    assert (steps.value, steps.steps) == (1.5, ((2, 1.0), (4, 0.5)))
    rows, _ = evaluated(files, {"it": function("token_values")}, [{"prompt": "a"}])
    assert rows[0]["components"] == {"it": 2.5, "it_length": 5.0}


def test_a_class_is_made_once_in_a_process_and_a_file_is_read_where_the_run_began(tmp_path, monkeypatch):
    one, before = drawn("Loaded", factor=0.25), named_rewards.Loaded.made
    assert [values(one, IMAGES, PROMPTS) for _ in range(3)] == [[0.25] * 3] * 3
    assert named_rewards.Loaded.made == before + 1
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import os\ndef score(responses, prompts, scale=1):\n    os.chdir('/')\n"
        "    return [scale * len(r.text) * r.finished for r in responses]\n"
    )
    one = reward("function", path="mine.py:score", arguments={"scale": 10})
    one.check([])
    for _ in range(2):
        assert values(one, [Response("abc"), Response("abc", finished=False)], PROMPTS[:2]) == [30, 0]


TABLE = json.loads(Path(__file__).with_name("answers.json").read_text())
WRONG = TABLE["of functions"]


@pytest.mark.parametrize("processes", [0, 1])
def test_what_is_no_number_is_missing_for_that_sample_alone_and_says_why_once(files, caplog, processes):
    records = [{"prompt": text} for text in (*WRONG, "right", "nan")]
    rewards = {"it": function("odd"), "few": function("one_too_few", weight=0.0)}
    rows, _ = evaluated(files, rewards, records, f"scoring.processes={processes}")
    assert [row["reward"] for row in rows] == [None] * len(WRONG) + [1.0, None]
    for row in rows[: len(WRONG)]:
        assert WRONG[row["prompt"]] in row["note"]
    assert all(row["components"]["few"] is None for row in rows)
    assert "named_rewards.py:" in rows[0]["note"]
    messages = [record.getMessage() for record in caplog.records]
    assert sum("it is missing" in text and "nan" in text for text in messages) == 1
    assert any("first for prompt 'raises' (" in text and "asked.jsonl:1)" in text for text in messages)


FUNCTIONS = "tests.support.named_rewards"


@pytest.mark.parametrize(("path", "why"), [
    (f"{FUNCTIONS}:brightnes", "did you mean brightness?"), ("broken.py:score", "NameError: name 'undefined_name'"),
])  # fmt: skip
def test_a_path_that_leads_nowhere_is_refused_before_the_run(tmp_path, monkeypatch, path, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("undefined_name\n")
    with pytest.raises(ValueError, match="path") as refused:
        flow_reward("function", path=path).check([])
    assert why in str(refused.value)
    assert path in str(refused.value)
    mine = f"rewards.mine={{name: function, path: '{path}'}}"
    with pytest.raises(ValueError, match=path.partition(":")[0]):  # before the model is looked for
        package.train(package.load("quickstart", mine, "model.path=nowhere", "output_dir=run"))


@pytest.mark.parametrize(("kind", "name", "arguments", "why"), TABLE["refused functions"])
def test_what_nobody_has_is_refused_before_the_run(kind, name, arguments, why):
    odd = Prompt(text="d", record='{"other": 1}', where="data.jsonl:9")
    with pytest.raises(ValueError, match=why):
        {"drawn": drawn, "said": said}[kind](name, **arguments).check([*PROMPTS, odd])
