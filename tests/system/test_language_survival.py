"""A run of a language model gives the same numbers twice, and however often it is killed in between."""

from __future__ import annotations

import os

import pytest

from tests.support.runs import Runs, killed_at_calls, killed_at_random_moments, last_state, metrics_of

pytestmark = pytest.mark.slow

STEPS = 4
PLACES = 5 if os.environ.get("BURNISH_THOROUGH") else 3  # where a run is killed while it saves
SMALL = [
    f"steps={STEPS}", "data.train_batch_size=4", "rollout.n=4", "rollout.max_new_tokens=4", "validation.every=2",
    "validation.n=1", "validation.max_prompts=4", "checkpoint.every=2", "scoring.processes=0",
    "optimizer.warmup_steps=2",
]  # fmt: skip
# every state that a run can have is in one of them
RUNS = {
    "ppo": [
        "algorithm=ppo", "critic.warmup_updates=1", "trainer={mini_batch_size: 8, epochs: 2}", "ema.decay=0.5",
        "algorithm.kl={route: reward, coef: 0.01, controller: adaptive, target: 0.5, horizon: 100}",
        "algorithm.reward_norm=true", "data.overlong=filter",
        "ptx={train_files: 'burnish:vlm_quickstart/supervised.jsonl', batch_size: 2}",
    ],
    "grpo": [
        "algorithm=grpo", "model.lora.rank=2", "model.lora.targets=[q_proj, v_proj]",
        "algorithm.kl={coef: 0.01, refresh_every: 2}", "optimizer.schedule=cosine",
        "trainer={mini_batch_size: 16, rollouts_per_update: 2}", "mixing.normalise={floor: 0.05}",
        "rewards.repetition={weight: -1, schedule: {points: [[1, 1.0], [4, 0.2]]}}",
    ],
    "dpo": ["algorithm=dpo", "ema=null", "trainer.mini_batch_size=null"],
}  # fmt: skip
STATE = {
    "ppo": ["critic.value_head.weight", "memory.kl", "memory.rewards", "groups.critic", "ema.", "source."],
    "grpo": ["lora", "reference.", "memory.kl", "groups.actor", "source.", "normaliser.known", "normaliser.first"],
    "dpo": ["policy.", "groups.actor", "source."],
}


@pytest.fixture(scope="module")
def runs():
    runs = Runs("vlm_quickstart")
    yield lambda folder, name, *more, **death: runs(folder, [*SMALL, *RUNS[name], *more], **death)
    runs.close()


@pytest.fixture(scope="module", params=["ppo", "grpo", pytest.param("dpo", marks=pytest.mark.thorough)])
def uninterrupted(runs, request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    answer = runs(folder, request.param)
    assert answer["status"] == 0
    return request.param, folder, answer


def assert_same(folder, whole):
    assert metrics_of(folder) == metrics_of(whole)
    assert last_state(folder) == last_state(whole)


def test_what_there_is_to_remember_is_in_the_checkpoint(uninterrupted):
    name, whole, _ = uninterrupted
    lines = metrics_of(whole)
    assert [line["training/global_step"] for line in lines] == list(range(STEPS + 1))
    assert [any(key.startswith("val-core/") for key in line) for line in lines] == [True, False, True, False, True]
    names = list(last_state(whole))
    for part in STATE[name]:
        assert any(part in entry for entry in names), part
    if name == "ppo":
        assert len({line["actor/kl_coef"] for line in lines[1:]}) == STEPS
        assert len({line["actor/ptx_loss"] for line in lines[1:]}) == STEPS


def test_the_same_seed_gives_the_same_numbers(runs, uninterrupted, tmp_path):
    name, whole, _ = uninterrupted
    assert runs(tmp_path / "again", name)["status"] == 0
    assert_same(tmp_path / "again", whole)
    assert runs(tmp_path / "other", name, "seed=1")["status"] == 0
    assert metrics_of(tmp_path / "other") != metrics_of(whole)


@pytest.mark.thorough
def test_killed_at_random_moments(runs, uninterrupted, tmp_path):
    name, whole, answer = uninterrupted
    killed_at_random_moments(
        lambda folder, **death: runs(folder, name, **death), lambda folder: assert_same(folder, whole),
        tmp_path / "run", seed=name, seconds=answer["seconds"], deaths=4, lives=30,
    )  # fmt: skip


@pytest.mark.parametrize(  # the one with a critic has all that the others have
    "uninterrupted",
    ["ppo", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("grpo", "dpo"))],
    indirect=True,
)
def test_killed_at_states_of_saving(runs, uninterrupted, tmp_path):
    name, whole, answer = uninterrupted
    calls = answer["calls"]
    assert calls > 30
    killed_at_calls(
        lambda folder, **death: runs(folder, name, **death), lambda folder: assert_same(folder, whole), tmp_path,
        at=range(1 + list(RUNS).index(name), calls, max(calls // PLACES, 1) | 1), deaths=PLACES - 1,
    )  # fmt: skip
