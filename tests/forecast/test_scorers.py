"""Networks of rewards that share a GPU: of the run, of its suites, and in a pool of their own."""

from pathlib import Path
from typing import Any

import pytest

from burnish.config import load
from burnish.forecast import forecast as forecasts
from burnish.forecast.counter import REWARDS, Peak
from burnish.forecast.forecast import PoolForecast, forecast, needed, sharing
from burnish.forecast.phases import SCORE
from burnish.forecast.scorers import CONTEXT, scorers_of

DETECTOR, CLIP = 68.7e6, 427.6e6  # weights of GenEval's two networks
GENEVAL = "rewards.geneval={name: geneval_mask2former, device: cuda}"
RAY = ["runtime=ray", "pools.rollout.processes=1"]
POOL = [*RAY, "pools.reward.processes=2"]


def run(*options: str) -> Any:
    return load("quickstart", list(options))


def test_all_networks_of_a_reward_count():
    found = scorers_of(run(GENEVAL), samples=True, trains=True)
    assert found.always == int((DETECTOR + CLIP) * 4) + CONTEXT
    assert not found.unknown


@pytest.mark.parametrize(
    ("options", "trains", "there"),
    [
        (RAY, True, True),  # it evaluates
        ([*RAY, "validation.every=null", "validation.before=false"], True, True),  # rewards are tried at the start
        ([*RAY, "validation.every=null", "validation.before=false", "scoring.probe=false"], True, False),
        (RAY, False, False),
        (POOL, True, False),
    ],
)
def test_who_trains_and_samples_nothing_scores_what_it_evaluates(options: list[str], trains: bool, there: bool):
    assert (scorers_of(run(GENEVAL, *options), samples=False, trains=trains).always > 0) == there


def test_suites_have_scorers_of_their_own_even_beside_a_pool_that_scores(tmp_path: Path):
    file = tmp_path / "own.yaml"
    file.write_text(
        "prompts: burnish:quickstart/heldout.jsonl\nscorers: {a: {name: geneval_mask2former, device: cuda}, "
        "b: {name: pickscore, device: cuda, put_away: true, path: who/knows}}\n"
    )
    config = run(*POOL, f"validation.suites=[{file}]")
    found = scorers_of(config, samples=False, trains=True)
    assert found.always == int((DETECTOR + CLIP) * 4) + CONTEXT
    assert found.unknown == ("suite own: scorers.b",)
    assert scorers_of(config, samples=True, trains=False).always == 0


def test_a_pool_that_scores_is_forecast_and_what_is_not_counted_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forecasts, "_pool", lambda config, name, size, samples: PoolForecast(name, size, {}, 0))
    unknown = "rewards.other={name: pickscore, device: cuda, path: who/knows}"
    found = forecast(run(*POOL, GENEVAL, unknown, "pools.reward.gpus=0.5", "checkpoint.export=lora"))
    judges = found.pools[-1]
    assert (judges.name, judges.processes, judges.sharing) == ("reward", 2, 2)
    assert judges.phases[SCORE].parts == {REWARDS: int((DETECTOR + CLIP) * 4) + CONTEXT}
    assert "rewards.other" in found.left_out[0]
    assert "checkpoint.export" in found.left_out[1]


@pytest.mark.parametrize(
    ("gpus", "processes", "together"), [(None, 4, 1), (1, 4, 1), (0.5, 4, 2), (0.3, 4, 3), (0.25, 2, 2), (0, 4, 1)]
)
def test_processes_that_ask_for_a_part_of_a_gpu_share_it(gpus: float | None, processes: int, together: int):
    pool = run(
        "runtime=ray", f"pools.rollout.processes={processes}", *([] if gpus is None else [f"pools.rollout.gpus={gpus}"])
    )
    assert sharing(pool.pools.rollout) == together
    held = PoolForecast("rollout", processes, {"sample": Peak(10 << 30, {REWARDS: 10 << 30})}, 0, sharing=together)
    assert held.needs_of(80 << 30) == together * needed(10 << 30)
    assert held.can_fit((together * 10) << 30)
    assert not held.can_fit(((together * 10) << 30) - 1)
