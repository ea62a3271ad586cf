"""Process rewards in a run: each lies on the token that its step ends with, and PPO and GRPO learn from that."""

from __future__ import annotations

import pytest
import torch

from burnish.config import load
from burnish.language.offline import offline_completion
from burnish.rewards.text.base import Response
from burnish.tasks import assemble
from burnish.utils.errors import ConfigError
from tests.support.reward_models import assembly_of, exported, recipe_of
from tests.support.tiny_recipes import write_lines, write_recipe

TEXTS = ["one\ntwo\nthree", "yes", "no\n\nno", "a\nb"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("process")
    assembly = assembly_of(recipe_of(folder, "llama", "process_reward"))
    # not by the global generator, whose state hangs on the tests before
    torch.nn.init.normal_(assembly.roles.reward_head.weight, generator=torch.Generator().manual_seed(0))
    exported(assembly, folder / "judge")
    write_lines(folder / "questions.jsonl", [{"prompt": "Why?"}, {"prompt": "Who?"}])
    write_recipe(
        folder / "policy.yaml",
        {
            "task": "image-text-to-text",
            "model": {"path": str(folder / "llama"), "device": "cpu"},
            "data": {"train_files": str(folder / "questions.jsonl"), "train_batch_size": 1},
            "rewards": {"reward_model": {"path": str(folder / "judge"), "steps": "each", "weight": 2.0}},
            "rollout": {"n": 4, "max_new_tokens": 20},
            "scoring": {"processes": 0},
            "steps": 1,
            "output_dir": str(folder / "run"),
        },
    )
    return folder


def learned(folder, *overrides):
    """A run whose policy has written TEXTS: what was scored, and the batch that is learned from."""
    assembly = assemble(load(str(folder / "policy.yaml"), list(overrides)))
    assembly.check_data()
    assembly.check()
    model = assembly.roles.model

    def sample(job):
        trace = offline_completion(model, assembly.engine.encode(job.prompts), [model.response_ids(t) for t in TEXTS])
        return trace, [Response(text) for text in TEXTS]

    assembly.engine.sample = sample
    scored = assembly.source.collect(1)
    batch, _ = assembly.workers.credit(assembly.workers.annotate(scored))
    return assembly, scored, batch


def test_a_step_is_paid_where_it_ends(folder):
    assembly, scored, _ = learned(folder, "algorithm=grpo")
    decode = assembly.roles.model.decode
    there = ~scored.step_rewards.isnan()
    ends = [
        [decode(ids[: place + 1].tolist()) for place in row.nonzero().flatten().tolist()]
        for ids, row in zip(scored.trace.ids, there, strict=True)
    ]
    assert ends == [["one\n", "one\ntwo\n", "one\ntwo\nthree"], ["yes"], ["no\n", "no\n\nno"], ["a\n", "a\nb"]]
    torch.testing.assert_close(scored.step_rewards.nan_to_num(0.0).sum(1), scored.scores.reward)
    assert scored.step_rewards[there].unique().numel() > 4  # they differ


def test_reinforce_sums_the_rewards_to_come_and_grpo_compares_steps(folder):
    _, scored, batch = learned(folder, "algorithm=reinforce", "algorithm.whiten=false")
    rewards = scored.step_rewards.nan_to_num(0.0)
    expected = rewards.flip(1).cumsum(1).flip(1) * batch.mask
    torch.testing.assert_close(batch.advantage, expected)
    _, scored, batch = learned(folder, "algorithm=grpo", "algorithm.advantage=group_steps")
    values = scored.step_rewards[~scored.step_rewards.isnan()]
    normal = torch.zeros_like(rewards)
    normal[~scored.step_rewards.isnan()] = (values - values.mean()) / values.std()
    torch.testing.assert_close(batch.advantage, normal.flip(1).cumsum(1).flip(1) * batch.mask, atol=1e-4, rtol=1e-4)


def test_ppo_learns_values_of_what_is_to_come(folder):
    assembly, scored, batch = learned(folder, "algorithm=ppo", "algorithm.lam=1", "algorithm.whiten=false")
    rewards = scored.step_rewards.nan_to_num(0.0)
    torch.testing.assert_close(batch.returns, rewards.flip(1).cumsum(1).flip(1) * batch.mask, atol=1e-5, rtol=1e-5)
    assert assembly.workers.update(batch, 1)["actor/grad_norm"] > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["algorithm.advantage=group_steps", "rewards.reward_model.steps=min"], "no reward gives any"),
        (["algorithm.reward_norm=true"], "steps is each, but algorithm.reward_norm changes the sum"),
        (["algorithm.advantage=group_steps", "algorithm.reward_clip=1"], "advantage is group_steps, but reward_clip"),
    ],
)
def test_what_contradicts_rewards_of_steps_is_refused(folder, given, message):
    with pytest.raises(ConfigError, match=message):
        load(str(folder / "policy.yaml"), ["algorithm=grpo", *given])
