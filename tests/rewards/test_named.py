"""Functions and classes of users get what their parameters are named after, and may return what they like."""

import json

import numpy as np
import pytest

from burnish.registry import lookup
from burnish.rewards.base import Verdict
from burnish.rewards.given import Given
from burnish.rewards.judging import judge
from burnish.rewards.text.base import Response
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from tests.support import named_rewards

PATH = "tests.support.named_rewards"
LEVELS = (51, 204, 102)


def drawn(name: str, **arguments):
    return lookup("flow reward", "function")(path=f"{PATH}:{name}", arguments=arguments)


def said(name: str, **arguments):
    return lookup("language reward", "function")(path=f"{PATH}:{name}", arguments=arguments)


def picture(level: int) -> np.ndarray:
    return np.full((4, 4, 3), level, dtype=np.uint8)


def asked(text: str, **own) -> Prompt:
    return Prompt(text=text, answer="7", source="s", label="l", record=json.dumps(own), where="data.jsonl:1")


PROMPTS = [asked(text, difficulty=i) for i, text in enumerate("abc")]
PICTURES = [picture(level) for level in LEVELS]


def values(verdicts: list[Verdict]) -> list[float | None]:
    return [verdict.value for verdict in verdicts]


def test_parameters_name_what_a_function_gets():
    assert values(judge(drawn("by_name", scale=2.0), PICTURES, PROMPTS)) == [0.0, 2.0, 4.0]
    got = named_rewards.CALLS.pop()
    assert (got["references"], got["sources"], got["labels"]) == (["7"] * 3, ["s"] * 3, ["l"] * 3)
    assert got["extra_info"] == [None] * 3


def test_a_sample_at_a_time_one_that_raises_and_named_values():
    prompts = [asked("a", bonus=2.0), asked("x"), asked("b", reward_model={"ground_truth": [1, 2]})]
    first, bad, last = judge(drawn("one_at_a_time"), PICTURES, prompts)
    assert (first.value, last.value) == pytest.approx((0.2, 0.4))
    assert (dict(first.named), first.note) == ({"bonus": 2.0}, "truth: 7")
    assert (dict(last.named), last.note) == ({"bonus": 0.5}, "truth: [1, 2]")
    assert bad.value is None
    assert "ZeroDivisionError: x is not for me" in bad.note
    assert "named_rewards.py:" in bad.note
    assert "Traceback" in bad.fault


def test_calls_of_an_async_function_wait_together_and_one_error_is_one_sample():
    prompts = [Prompt(text="q", answer=answer) for answer in ["yes"] * 19 + [None]]
    *known, last = judge(said("waiting"), [Response("yes")] * 20, prompts)
    assert named_rewards.MOST == [20]
    assert values(known) == [1.0] * 19
    assert "ValueError: nothing to compare with" in last.note


def test_functions_of_other_libraries_work_as_they_are():
    prompt = asked("q", data_source="s", extra_info={"index": 3}, solution="7")
    right, wrong = judge(said("compute_score"), [Response("7"), Response("8")], [prompt] * 2)
    assert (right.value, wrong.value, right.named["acc"], wrong.named["acc"]) == (1.0, 0.0, 1.0, 0.0)
    assert right.note == "pred: 7; source: s; extra: {'index': 3}"
    assert (right.answer, wrong.answer) == ("7", "8")

    chat = Prompt(text="q", record=json.dumps({"solution": None, "level": 2}), conversational=True)
    assert values(judge(said("trl"), [Response("7"), Response("8")], [prompt, chat])) == [1.0, None]
    got = named_rewards.CALLS.pop()
    assert got["prompts"] == ["q", [{"role": "user", "content": "q"}]]
    assert got["completions"] == ["7", [{"role": "assistant", "content": "8"}]]
    assert got["kwargs"]["level"] == [None, 2]

    found = judge(drawn("flow_grpo"), PICTURES, PROMPTS)
    assert values(found) == [1.0] * 3
    assert dict(found[0].named) == {"strict": 1.0}


def test_groups_and_pairs_are_compared_as_a_whole():
    prompts = [PROMPTS[0]] * 3 + [PROMPTS[1]] * 2
    pictures = [*PICTURES, picture(9), picture(9)]
    assert values(judge(drawn("ranks"), pictures, prompts)) == [0.0, 1.0, 0.5, 0.0, 1.0]
    assert values(judge(drawn("ranks"), pictures, prompts, Given(group=[0] * 5))) == [0.5, 1.0, 0.75, 0.0, 0.25]
    won = judge(drawn("brighter"), pictures, prompts)  # the second group raises, and takes no other with it
    assert values(won) == [0.0, 1.0, 0.5, None, None]
    assert "ValueError: no difference" in won[3].note
    (alone,) = judge(drawn("brighter"), PICTURES[:1], PROMPTS[:1])
    assert "no other sample" in alone.note


def test_latents_and_tokens_are_there_for_those_who_ask():
    latents = [np.full((1, 2, 2), level, np.float32) for level in (1, 2, 3)]
    reward = drawn("norms")
    assert reward.asks() == ("latents",)
    assert values(judge(reward, PICTURES, PROMPTS, Given(inputs={"latents": latents}))) == [1.0, 4.0, 9.0]
    (lacking,) = judge(reward, PICTURES[:1], PROMPTS[:1])
    assert "asks for latents" in lacking.note
    (unasked,) = judge(reward, PICTURES[:1], PROMPTS[:1], Given(made_up=True))
    assert not unasked.asked

    ids = Given(inputs={"response_ids": [[5, 6, 7]]})
    (each,) = judge(said("token_values"), [Response("abcd")], PROMPTS[:1], ids)
    assert (each.value, each.tokens, each.named["length"]) == (1.5, (0.5,) * 3, 3.0)
    (steps,) = judge(said("step_values"), [Response("abcd")], PROMPTS[:1])
    assert (steps.value, steps.steps, steps.note) == (1.5, ((2, 1.0), (4, 0.5)), "fine")


def test_a_class_is_made_once_in_a_process():
    reward, before = drawn("Loaded", factor=0.25), named_rewards.Loaded.made
    reward.check(PROMPTS)
    reward.prepare()
    for _ in range(3):
        assert values(judge(reward, PICTURES, PROMPTS)) == [0.25] * 3
    assert named_rewards.Loaded.made == before + 1
    assert "_made" not in reward.__getstate__()


def test_dicts_of_lists_and_odd_dicts():
    found = judge(drawn("lists_in_dicts"), PICTURES, PROMPTS)
    assert [(one.value, dict(one.named)) for one in found] == [(0.25, {"sharpness": 2.0})] * 3
    wrong = {
        "list": "gave [1, 2] as 'boxes'", "none": "a dict needs one of score and reward", "both": "needs one of",
        "name": "named a further value 'a b'", "many": "65 further values", "missing": "gave no value; no face",
    }  # fmt: skip
    for text, why in wrong.items():
        (one,) = judge(drawn("odd_dicts"), PICTURES[:1], [Prompt(text=text)])
        assert one.value is None
        assert why in one.note
        assert bool(one.fault) == (text != "missing")


@pytest.mark.parametrize(
    ("reward", "why"),
    [
        (
            lambda: drawn("by_name"),
            r"asks for 'difficulty'.* record of prompt 'd' \(data.jsonl:9\); its keys are 'other'",
        ),
        (
            lambda: drawn("wants_both"),
            r"named_rewards.py:\d+\) asks for prompts of a batch and for image of one sample",
        ),
        (lambda: drawn("wants_responses"), "asks for responses, but what it would score are a generator's samples"),
        (lambda: said("by_name"), "asks for images, but what it would score are responses"),
        (lambda: said("wants_latents"), "asks for latents, which only what a generator draws has"),
        (lambda: drawn("token_values"), "asks for responses, "),
        (lambda: drawn("NotCalled"), "reward class NotCalled has no __call__"),
        (lambda: drawn("Loaded"), r"Loaded.*is made by class\(\), which it doesn't accept: missing.*'factor'"),
        (lambda: drawn("Loaded", speed=1), "unexpected keyword argument 'speed'|missing a required argument"),
    ],
)
def test_what_nobody_has_is_refused_before_the_run(reward, why):
    odd = Prompt(text="d", record='{"other": 1}', where="data.jsonl:9")
    with pytest.raises(UserError, match=why):
        reward().check([*PROMPTS, odd])


def test_videos_of_a_model_that_draws_pictures_are_refused(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def score(videos): return [1.0] * len(videos)\n")
    reward = lookup("flow reward", "function")(path=f"{file}:score")
    assert f"({file}:1) asks for videos, but the model draws images" in reward.refusal("image")
    assert reward.refusal("clip") == ""
