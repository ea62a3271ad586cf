"""Weights by label and update, caps, gates, products, own functions, and running normalisation."""

import math
from math import nan

import pytest
import torch

from burnish.options.mixing import Gate, MixingOptions, NormaliseOptions, Schedule
from burnish.registry import lookup
from burnish.rewards.base import Verdict
from burnish.rewards.mixing import check_mixing, mix
from burnish.rewards.normalising import Normaliser
from burnish.types.packed import Prompts
from burnish.types.prompt import Prompt
from burnish.types.rollout import Rollouts, Scores
from burnish.utils.errors import UserError

PROMPTS = [Prompt(text="a", source="web", label="ocr"), Prompt(text="b", source="web"), Prompt(text="c", label="count")]


def reward(weight: float = 1.0, **options):
    return lookup("flow reward", "border_darkness")(weight=weight, **options)


def said(*values: float | None) -> list[Verdict]:
    return [Verdict(value) for value in values]


def total(mixed: Scores) -> list[float]:
    return [round(value, 6) for value in mixed.reward.tolist()]


def equal(found: list[float], wanted: list[float]) -> None:
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), equal_nan=True)


def test_weights_of_labels_come_before_those_of_sources():
    one = reward(3.0, weight_by={"ocr": 0.5, "web": 2.0})
    assert total(mix({"one": one}, {"one": said(1, 1, 1)}, PROMPTS)) == [0.5, 2.0, 3.0]
    watched = reward(weight_by={"count": 0.0})
    mixed = mix({"one": watched, "two": reward()}, {"one": said(1, 1, None), "two": said(1, 1, 1)}, PROMPTS)
    assert total(mixed) == [2.0, 2.0, 1.0]  # a weight of 0 watches, so nothing is missing
    assert mixed.applied.tolist() == [[1, 1], [1, 1], [0, 1]]


def test_a_schedule_moves_the_weight_with_the_update():
    line = Schedule(points=[(10, 0.0), (20, 1.0), (40, 0.5)])
    assert [line.factor(at) for at in (1, 10, 15, 20, 30, 40, 99, 0)] == [0, 0, 0.5, 1, 0.75, 0.5, 0.5, 0.5]
    held = Schedule(points=[(10, 0.0), (20, 1.0)], between="hold")
    assert [held.factor(at) for at in (1, 19, 20, 0)] == [0, 0, 1, 1]
    pair = {"one": reward(2.0, schedule=line), "two": reward()}
    verdicts = {"one": said(1, None, 3), "two": said(1, 1, 1)}
    assert total(mix(pair, verdicts, PROMPTS, MixingOptions(), 5)) == [1.0, 1.0, 1.0]
    equal(total(mix(pair, verdicts, PROMPTS, MixingOptions(), 15)), [2.0, nan, 4.0])


def test_a_cap_and_a_gate_change_what_counts_and_not_what_is_logged():
    chosen = {"format": reward(0.0), "right": reward(cap=2.0, gate=Gate(by="format", otherwise=-1.0))}
    mixed = mix(chosen, {"format": said(1.0, 0.0, None), "right": said(5.0, None, 1.0)}, PROMPTS)
    equal(total(mixed), [2.0, -1.0, nan])
    equal(mixed.components[:, 1].tolist(), [5.0, nan, 1.0])
    equal(mixed.counted[:, 1].tolist(), [2.0, -1.0, nan])
    unasked = mix(chosen, {"format": [Verdict(None, asked=False)], "right": said(1.0)}, PROMPTS[:1])
    assert total(unasked) == [1.0]  # where the format is not asked for, the gate stands open


def test_steps_behind_a_shut_gate_count_no_more():
    chosen = {"format": reward(0.0), "right": reward(2.0, gate=Gate(by="format"))}
    steps = [Verdict(1.5, steps=((2, 1.0), (4, 0.5)), tokens=())] * 2
    mixed = mix(chosen, {"format": said(1.0, 0.0), "right": steps}, PROMPTS[:2])
    assert mixed.steps == [((2, 2.0), (4, 1.0)), ()]
    assert total(mixed) == [3.0, 0.0]
    both = {"one": reward(2.0), "two": reward(1.0)}
    verdicts = {"one": [Verdict(1.0, tokens=(1.0, 0.0))], "two": [Verdict(1.0, tokens=(0.0, 1.0))]}
    assert mix(both, verdicts, PROMPTS[:1]).tokens == [(2.0, 1.0)]


def test_a_product_needs_all_and_says_what_it_cannot_count():
    chosen, product = {"one": reward(), "two": reward(0.5), "idle": reward(0.0)}, MixingOptions(rule="product")
    verdicts = {"one": said(0.5, 0.0, -1.0), "two": said(4.0, 1.0, 1.0), "idle": said(7.0, 7.0, 7.0)}
    mixed = mix(chosen, verdicts, PROMPTS, product)
    equal(total(mixed), [1.0, 0.0, nan])
    assert mixed.notes[2] == "one is below 0, which a product can't count"


def test_a_function_of_the_user_mixes_and_fails_for_single_samples(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "def own(values, weights, prompt):\n"
        "    if prompt.text == 'b':\n        raise ValueError('no')\n"
        "    return None if values['one'] is None else values['one'] * weights['two'] + values['two_x']\n"
    )
    chosen, mixing = {"one": reward(), "two": reward(3.0)}, MixingOptions(path=f"{file}:own")
    check_mixing(chosen, mixing, Prompts.of(PROMPTS))
    two = [Verdict(1.0, named={"x": 0.25})] * 3
    mixed = mix(chosen, {"one": said(2.0, 1.0, None), "two": two}, PROMPTS, mixing)
    equal(total(mixed), [6.25, nan, nan])
    assert "mixing: ValueError: no" in mixed.faults[1]
    assert f"{file}:3" in mixed.faults[1]
    file.write_text("def own(values): return 1.0\n")
    other = tmp_path / "other.py"
    other.write_text("def own(values): return 1.0\n")
    with pytest.raises(UserError, match=r"mixing\.path is .* called as function\(values, weights, prompt\)"):
        check_mixing(chosen, MixingOptions(path=f"{other}:own"), Prompts.of(PROMPTS))


def test_weights_for_what_no_prompt_is_are_refused():
    with pytest.raises(UserError, match=r"rewards\.one\.weight_by names 'orc'.*count, default, ocr, web"):
        check_mixing({"one": reward(weight_by={"orc": 1.0})}, MixingOptions(), Prompts.of(PROMPTS))
    with pytest.raises(UserError, match=r"no reward has a weight other than 0 for prompt 'c' with label 'count'"):
        check_mixing({"one": reward(weight_by={"count": 0.0})}, MixingOptions(), Prompts.of(PROMPTS))


def test_further_values_stand_under_their_names_and_may_differ_by_sample():
    one = [Verdict(1.0, named={"sharp": 0.5}), Verdict(1.0), Verdict(1.0, named={"odd": 2.0})]
    mixed = mix({"one": reward()}, {"one": one}, PROMPTS)
    assert mixed.further == [{"one_sharp": 0.5}, {}, {"one_odd": 2.0}]
    joined = Scores.cat([mixed.select([2]), mixed.select([0, 1])])
    assert joined.further == [{"one_odd": 2.0}, {"one_sharp": 0.5}, {}]
    with pytest.raises(UserError, match="two rewards report 'one_two'"):
        mix({"one": reward(), "one_two": reward()}, {"one": [Verdict(1.0, named={"two": 1.0})], "one_two": said(1)},
            PROMPTS[:1])  # fmt: skip


def rollouts(scores: Scores) -> Rollouts:
    group = torch.zeros(len(scores), dtype=torch.long)
    return Rollouts(
        prompts=PROMPTS[: len(scores)], group=group, sample=group, scores=scores, update=1, version=0, seed=0
    )


def test_running_normalisation_is_that_of_all_samples_so_far():
    mixing = MixingOptions(normalise=NormaliseOptions(floor=0.5))
    chosen = {"one": reward(), "flat": reward(2.0)}
    batches = [
        {"one": said(1.0, 2.0, None), "flat": said(3.0, 3.0, 3.0)},
        {"one": said(4.0, 9.0, 5.0), "flat": said(3.0, 3.0, 3.1)},
    ]
    running, found = Normaliser(chosen, mixing), []
    for batch in batches:
        found.append(running.learned(rollouts(mix(chosen, batch, PROMPTS, mixing))))
    equal(found[0].scores.reward.tolist(), [-math.sqrt(0.5), math.sqrt(0.5), nan])
    values = torch.tensor([1.0, 2.0, 4.0, 9.0, 5.0])
    flat = torch.tensor([3.0] * 4 + [3.1])  # what belongs to a sample without a reward counts nowhere
    wanted = (values[2:] - values.mean()) / values.std() + 2 * (flat[2:] - flat.mean()) / 0.5  # floored
    torch.testing.assert_close(found[1].scores.reward, wanted)
    assert found[1].metrics["critic/one/running_std"] == pytest.approx(float(values.std()))

    resumed = Normaliser(chosen, mixing)
    resumed.learned(rollouts(mix(chosen, batches[0], PROMPTS, mixing)))
    again = Normaliser(chosen, mixing)
    again.load_state_dict(resumed.state_dict())
    torch.testing.assert_close(
        again.learned(rollouts(mix(chosen, batches[1], PROMPTS, mixing))).scores.reward,
        found[1].scores.reward, rtol=0, atol=0,
    )  # fmt: skip


def test_validation_moves_no_statistics_and_counts_in_units_of_the_first():
    mixing = MixingOptions(normalise=NormaliseOptions())
    chosen = {"one": reward()}
    running = Normaliser(chosen, mixing)
    first = running.validated(mix(chosen, {"one": said(1.0, 3.0, 5.0)}, PROMPTS, mixing))
    assert total(first) == [-1.0, 0.0, 1.0]
    running.learned(rollouts(mix(chosen, {"one": said(100.0, 300.0, 500.0)}, PROMPTS, mixing, 1)))
    known = dict(running.known)
    assert total(running.validated(mix(chosen, {"one": said(7.0, None, 3.0)}, PROMPTS, mixing)))[::2] == [2.0, 0.0]
    assert running.known == known
