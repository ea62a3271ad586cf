"""Whole sessions that learn from dialogues: the same numbers after a break, missing rewards, turns with their own."""

import json
from dataclasses import replace

import pytest
import torch

from burnish.advantages.shaping import turn_numbers
from burnish.algorithms.language.shaping import shape
from burnish.config import load
from burnish.language.logprobs import response_logprobs
from burnish.utils.errors import ConfigError
from tests.support.language_runs import assembly_of, game, saved, trained, weights

BY_TURN = ["algorithm=ppo", "algorithm.turn_rewards=true", "critic.warmup_updates=0"]


@pytest.mark.parametrize("algorithm", [["algorithm=grpo"], BY_TURN], ids=["grpo", "ppo"])
def test_a_resumed_run_goes_on_bit_by_bit(algorithm):
    varied = "rewards.varied={name: function, path: 'tests.support.games:written'}"
    overrides = [*game(), *algorithm, varied]
    whole = assembly_of(*overrides)
    trained(whole, 1, 1)
    state = saved(whole.state_dict())
    rows = trained(whole, 2, 2)
    resumed = assembly_of(*overrides)
    resumed.load_state_dict(state)
    again = trained(resumed, 2, 2)
    assert torch.equal(weights(resumed), weights(whole))
    assert rows[0]["actor/pg_loss"] == again[0]["actor/pg_loss"]
    assert rows[0]["actor/grad_norm"] > 0
    assert rows[0]["train/dialogue/turns/mean"] == 3
    assert rows[0]["critic/environment/mean"] == 3.0


def test_what_is_learned_from_is_what_was_sampled():
    assembly = assembly_of(*game(), "algorithm=grpo")
    answered = assembly.source.collect(1)
    assert answered.limit == 4 * 6
    scores = response_logprobs(
        assembly.roles.model,
        assembly.roles.model.network,
        answered.trace,
        temperature=assembly.config.rollout.temperature,
    )
    torch.testing.assert_close(scores.logprob, answered.trace.logprob, rtol=0, atol=1e-5)
    assert answered.turn_rewards.tolist() == [[0.25, 0.5, 0.75, 0.0]] * 8


def test_dialogues_that_break_are_missing_and_the_run_goes_on(caplog):
    assembly = assembly_of(*game(fails="type"), "algorithm=grpo")
    answered = assembly.source.collect(1)
    assert answered.scores.missing.all()
    assert answered.scores.components.isnan().all()
    assert "the environment failed: TypeError" in answered.scores.notes[0]
    assert "the environment failed" in caplog.text
    before = weights(assembly)
    row = trained(assembly, 2, 2)[0]
    assert row["train/dialogue/broken_ratio"] == 1
    assert torch.equal(weights(assembly), before)


def test_a_validation_keeps_the_whole_dialogue(tmp_path):
    assembly = assembly_of(*game(turns=2), "algorithm=grpo", "validation.max_prompts=2")
    metrics = assembly.evaluate(tmp_path, n=1)
    assert metrics["val-aux/dialogue/turns/mean"] == 2
    first = json.loads((tmp_path / "samples.jsonl").read_text().splitlines()[0])
    assert first["response"].startswith("[user] [picture]Begin.\n")
    assert "[user] [picture]Turn 1.\n" in first["response"]
    asked = len(assembly.val_prompts[0].images)
    assert len(first["images"]) == asked + 3
    assert first["note"].startswith("2 turns")


def test_rewards_of_turns_stand_at_the_end_of_their_turns():
    assembly = assembly_of(*game(), *BY_TURN, "algorithm.kl=null")
    answered = assembly.source.collect(1)
    algorithm, trace = assembly.config.algorithm, answered.trace
    reward = torch.full((8,), 2.0)  # 1.5 of the environment's, and something else
    scored = replace(answered, scores=replace(answered.scores, reward=reward))
    rewards, _, _ = shape(algorithm, algorithm.annotate(scored, assembly.roles))
    placed, whole = rewards.by_turn, rewards.actions
    for row in range(8):
        ends = [
            max(t for t in range(trace.ids.shape[1]) if trace.mask[row, t] and number[row, t] == turn)
            for number in [turn_numbers(trace.mask)]
            for turn in range(3)
        ]
        expected = torch.zeros(trace.ids.shape[1])
        expected[ends] = torch.tensor([0.25, 0.5, 0.75])
        expected[ends[-1]] += 0.5
        torch.testing.assert_close(placed[row], expected)
    torch.testing.assert_close(whole.sum(1), placed.sum(1))
    assert (whole != 0).sum() == 8
    torch.testing.assert_close(placed.sum(1), rewards.reward)


def test_turns_are_counted_where_the_policy_speaks():
    mask = torch.tensor([[1, 1, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 0, 1]]).bool()
    assert turn_numbers(mask).tolist() == [[0, 0, 0, 1, 0, 0, 2], [0] * 7, [0, 0, 0, 0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (BY_TURN, "there is no environment, whose turns"),
        ([*game(), "algorithm=grpo", "algorithm.turn_rewards=true"], "grpo, which this run uses, never reads it"),
        (
            [*game(), *BY_TURN, "rewards.environment.total=last"],
            "no reward with a weight sums up",
        ),
        (
            [*game(), *BY_TURN, "algorithm.reward_clip=1"],
            "turn_rewards is true, but reward_clip",
        ),
    ],
)
def test_rewards_of_turns_that_nobody_could_place_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load("vlm_quickstart", overrides)
