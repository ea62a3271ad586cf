"""Several rewards become one: weights by label and update, caps, gates, products, own functions, and normalisation."""

from __future__ import annotations

import math
from math import nan

import pytest
import torch

from burnish.options.mixing import Gate, MixingOptions, NormaliseOptions, Schedule
from burnish.registry import lookup
from burnish.rewards.mixing import check_mixing
from burnish.rewards.normalising import Normaliser
from burnish.types.packed import Prompts
from burnish.types.prompt import Prompt
from burnish.types.rollout import Rollouts, Scores
from tests.support.asked import reward
from tests.support.scoring import Given, Response, scorer

PROMPTS = [Prompt(text="a", source="web", label="ocr"), Prompt(text="b", source="web"), Prompt(text="c", label="count")]


def values_of_rows(responses, values):
    return [values[int(response.text)] for response in responses]


def says(*values, **options):
    """A reward that gives sample n the n-th value: a number, None, or a dict."""
    return reward("function", path=f"{__name__}:values_of_rows", arguments={"values": values}, **options)


def mixed(mixing=None, update=0, prompts=PROMPTS, **rewards) -> Scores:
    count = len(next(iter(rewards.values())).arguments["values"])
    with scorer(rewards, mixing=mixing) as one:
        return one.score([Response(str(row)) for row in range(count)], prompts[:count], Given(update=update))


def equal(found, wanted) -> None:
    torch.testing.assert_close(found.float(), torch.tensor(wanted), equal_nan=True)


def test_the_reward_is_the_weighted_sum_of_columns():
    scores = mixed(border=says(1.0, 0.25, weight=2.0), jpeg=says(-2.0, 4.0, weight=-0.5))
    equal(scores.reward, [3.0, -1.5])
    equal(scores.components, [[1.0, -2.0], [0.25, 4.0]])
    assert scores.names == ("border", "jpeg")
    assert (scores.missing.tolist(), scores.reward.dtype, scores.components.dtype) == (
        [False, False], torch.float32, torch.float32,
    )  # fmt: skip


def test_a_missing_value_with_a_weight_makes_the_sample_missing_and_one_that_is_watched_does_not():
    scores = mixed(one=says(None, 1.0, 0.0), two=says(1.0, None, 0.0, weight=0.5), seen=says(9.0, 9.0, None, weight=0))
    assert scores.missing.tolist() == [True, True, False]
    equal(scores.reward, [nan, nan, 0.0])
    equal(scores.components, [[nan, 1.0, 9.0], [1.0, nan, 9.0], [0.0, 0.0, nan]])


def test_notes_say_whose_they_are_where_several_speak():
    noted = says({"score": 1.0, "note": "472"}, {"score": 0.0, "note": "12"}, 0.0)
    scores = mixed(ocr=noted, border=says(0.0, {"score": None, "note": "too small"}, 0.0, weight=0.0))
    assert (scores.notes[0], scores.notes[2]) == ("472", "")
    assert scores.notes[1].startswith("ocr: 12; border: ")
    assert scores.notes[1].endswith("too small")


def test_columns_of_one_name_are_refused_and_further_ones_may_differ_by_sample():
    pair = {name: lookup("flow reward", kind)() for name, kind in (("ocr", "ocr"), ("ocr_exact", "border_darkness"))}
    with pytest.raises(ValueError, match="'ocr_exact'"):
        scorer(pair)
    scores = mixed(one=says({"score": 1.0, "sharp": 0.5}, 1.0, {"score": 1.0, "odd": 2.0}))
    assert scores.further == [{"one_sharp": 0.5}, {}, {"one_odd": 2.0}]
    joined = Scores.cat([scores.select([2]), scores.select([0, 1])])
    assert joined.further == [{"one_odd": 2.0}, {"one_sharp": 0.5}, {}]
    assert (len(joined), joined.names, joined.reward.tolist()) == (3, ("one",), [1.0] * 3)
    with pytest.raises(ValueError, match="'one_two'"):
        mixed(one=says({"score": 1.0, "two": 1.0}), one_two=says(1.0))


def test_a_label_chooses_who_judges():
    number, word = says(2, 2, 2, labels=["ocr"]), says(4, 4, None, labels=["count"])
    scores = mixed(form=says(1, 1, 1), number=number, word=word)
    equal(scores.reward, [3.0, 1.0, nan])
    equal(scores.components, [[1.0, 2.0, nan], [1.0, nan, nan], [1.0, nan, nan]])
    nobody = mixed(number=says(2, 2, labels=["ocr"]), seen=says(1, 1, weight=0.0))
    assert nobody.missing.tolist() == [False, True]
    sound = scorer({"exact": reward("exact")}).score([Response("1")], [Prompt(text="?")])
    assert sound.missing.tolist() == [True]


def test_weights_of_labels_come_before_those_of_sources():
    equal(mixed(one=says(1, 1, 1, weight=3.0, weight_by={"ocr": 0.5, "web": 2.0})).reward, [0.5, 2.0, 3.0])
    scores = mixed(one=says(1, 1, None, weight_by={"count": 0.0}), two=says(1, 1, 1))
    equal(scores.reward, [2.0, 2.0, 1.0])  # a weight of 0 watches, so nothing is missing
    assert scores.applied.tolist() == [[1, 1], [1, 1], [0, 1]]


def test_a_schedule_moves_the_weight_with_the_update():
    line = Schedule(points=[(10, 0.0), (20, 1.0), (40, 0.5)])
    assert [line.factor(at) for at in (1, 10, 15, 20, 30, 40, 99, 0)] == [0, 0, 0.5, 1, 0.75, 0.5, 0.5, 0.5]
    held = Schedule(points=[(10, 0.0), (20, 1.0)], between="hold")
    assert [held.factor(at) for at in (1, 19, 20, 0)] == [0, 0, 1, 1]
    pair = {"one": says(1, None, 3, weight=2.0, schedule=line), "two": says(1, 1, 1)}
    equal(mixed(update=5, **pair).reward, [1.0, 1.0, 1.0])
    equal(mixed(update=15, **pair).reward, [2.0, nan, 4.0])


def test_a_cap_and_a_gate_change_what_counts_and_not_what_is_logged():
    right = {"cap": 2.0, "gate": Gate(by="format", otherwise=-1.0)}
    scores = mixed(format=says(1.0, 0.0, None, weight=0.0), right=says(5.0, None, 1.0, **right))
    equal(scores.reward, [2.0, -1.0, nan])
    equal(scores.components[:, 1], [5.0, nan, 1.0])
    equal(scores.counted[:, 1], [2.0, -1.0, nan])
    unasked = mixed(format=says(0.0, weight=0.0, labels=["other"]), right=says(1.0, **right))
    equal(unasked.reward, [1.0])  # where the format is not asked for, the gate stands open


def test_rewards_of_steps_and_tokens_are_weighted_and_stop_at_a_shut_gate():
    stepped = {"score": 1.5, "steps": [[2, 1.0], [4, 0.5]]}
    scores = mixed(form=says(1.0, 0.0, weight=0.0), right=says(stepped, stepped, weight=2.0, gate=Gate(by="form")))
    assert scores.steps == [((2, 2.0), (4, 1.0)), ()]
    assert scores.reward.tolist() == [3.0, 0.0]
    halves = "tests.support.named_rewards:token_values"
    chosen = {name: reward("function", path=halves, weight=weight) for name, weight in (("one", 2.0), ("two", -1.0))}
    with scorer(chosen) as both:
        scores = both.score([Response("0")], PROMPTS[:1], Given(inputs={"response_ids": [[5, 6]]}))
    assert (scores.tokens, scores.reward.tolist()) == ([(0.5, 0.5)], [1.0])


def test_a_product_needs_all_and_says_what_it_cannot_count():
    chosen = {"one": says(0.5, 0.0, -1.0), "two": says(4.0, 1.0, 1.0, weight=0.5), "idle": says(7, 7, 7, weight=0.0)}
    scores = mixed(MixingOptions(rule="product"), **chosen)
    equal(scores.reward, [1.0, 0.0, nan])
    assert "one" in scores.notes[2]


def test_a_function_of_the_user_mixes_and_fails_for_single_samples(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "def own(values, weights, prompt):\n"
        "    if prompt.text == 'b':\n        raise ValueError('no')\n"
        "    return None if values['one'] is None else values['one'] * weights['two'] + values['two_x']\n"
        "def other(values): return 1.0\n"
    )
    chosen = {"one": says(2.0, 1.0, None), "two": says(*[{"score": 1.0, "x": 0.25}] * 3, weight=3.0)}
    mixing = MixingOptions(path=f"{file}:own")
    check_mixing(chosen, mixing, Prompts.of(PROMPTS))
    scores = mixed(mixing, **chosen)
    equal(scores.reward, [6.25, nan, nan])
    assert "ValueError: no" in scores.faults[1]
    assert f"{file}:3" in scores.faults[1]
    for wrong, options, names in (
        (chosen, MixingOptions(path=f"{file}:other"), r"mixing\.path"),
        ({"one": says(1, weight_by={"orc": 1.0})}, MixingOptions(), r"rewards\.one\.weight_by.*'orc'.*count.*ocr, web"),
        ({"one": says(1, weight_by={"count": 0.0})}, MixingOptions(), "prompt 'c' with label 'count'"),
    ):
        with pytest.raises(ValueError, match=names):
            check_mixing(wrong, options, Prompts.of(PROMPTS))


def test_running_normalisation_is_that_of_all_samples_so_far_and_validation_counts_in_its_units():
    mixing = MixingOptions(normalise=NormaliseOptions(floor=0.5))

    def batch(one, flat):
        rewards = {"one": says(*one), "flat": says(*flat, weight=2.0)}
        scores, group = mixed(mixing, 1, **rewards), torch.zeros(3, dtype=torch.long)
        return rewards, Rollouts(prompts=PROMPTS, group=group, sample=group, scores=scores, update=1, version=0, seed=0)

    rewards, first = batch([1.0, 2.0, None], [3.0, 3.0, 3.0])
    _, second = batch([4.0, 9.0, 5.0], [3.0, 3.0, 3.1])
    running = Normaliser(rewards, mixing)
    equal(running.learned(first).scores.reward, [-math.sqrt(0.5), math.sqrt(0.5), nan])
    resumed = Normaliser(rewards, mixing)
    resumed.load_state_dict(running.state_dict())
    learned = running.learned(second)
    one = torch.tensor([1.0, 2.0, 4.0, 9.0, 5.0])
    flat = torch.tensor([3.0] * 4 + [3.1])  # what belongs to a sample without a reward counts nowhere
    wanted = (one[2:] - one.mean()) / one.std() + 2 * (flat[2:] - flat.mean()) / 0.5  # floored
    torch.testing.assert_close(learned.scores.reward, wanted)
    assert learned.metrics["critic/one/running_std"] == pytest.approx(float(one.std()))
    assert torch.equal(resumed.learned(second).scores.reward, learned.scores.reward)

    alone, plain = says(1.0, 3.0, 5.0), MixingOptions(normalise=NormaliseOptions())
    running = Normaliser({"one": alone}, plain)
    equal(running.validated(mixed(plain, one=alone)).reward, [-1.0, 0.0, 1.0])
    equal(running.validated(mixed(plain, one=says(7.0, None, 3.0))).reward, [2.0, nan, 0.0])  # nothing has moved
