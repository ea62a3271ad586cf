"""Surrogates and advantages by name in runs of the quickstarts: what one half only could do, both do."""

from __future__ import annotations

import math

import pytest
import torch

from burnish.config import load
from burnish.loop import run
from burnish.tasks import assemble

pytestmark = pytest.mark.slow

DRAWN = [
    "rewards.ocr=null", "rewards.border_darkness.weight=1", "data.train_batch_size=2", "rollout.n=4",
    "trainer.mini_batch_size=4", "scoring.processes=0", "steps=2", "output_dir=unused",
]  # fmt: skip
ANSWERED = [
    "data.train_batch_size=8", "rollout.n=8", "trainer.mini_batch_size=32", "optimizer.warmup_steps=0",
    "scoring.processes=0", "steps=2", "output_dir=unused",
]  # fmt: skip


def trained(recipe: str, *overrides: str) -> tuple[list[dict[str, float]], float]:
    """The metrics of two updates, and how far weights have moved."""
    assembly = assemble(load(recipe, list(overrides)))
    assembly.check()
    before = [value.detach().clone() for value in assembly.roles.parameters().values()]
    rows: list[dict[str, float]] = []
    run(range(1, 3), assembly.source, assembly.workers,
        [lambda update, metrics: rows.append(dict(metrics))], watch=assembly.watch, stop=lambda: False)  # fmt: skip
    after = assembly.roles.parameters().values()
    moved = max(float((now.detach() - then).abs().max()) for now, then in zip(after, before, strict=True))
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert all(row["actor/skipped_updates"] == 0 for row in rows)
    return rows, moved


@pytest.mark.parametrize(
    "surrogate",
    ["gspo", "gmpo", "cispo", "sapo", "{name: cpgd, drift_coef: 0.1}", "reinforce", "{name: gspo, clip: 1e-6}"],
)
def test_pictures_by_every_surrogate(surrogate):
    torch.manual_seed(0)
    rows, moved = trained("quickstart", "algorithm=flow_grpo", f"algorithm.surrogate={surrogate}", *DRAWN)
    assert moved > 1e-4
    if surrogate != "reinforce":
        assert rows[-1]["actor/ratio_mean"] != 1.0  # the second step of an update is away from the old policy
        assert 0 <= rows[-1]["actor/pg_clipfrac"] <= 1
    if "1e-6" in surrogate:
        assert rows[-1]["actor/pg_clipfrac"] > 0


@pytest.mark.parametrize("algorithm", ["flow_grpo", "diffusion_nft"])
def test_pictures_by_another_advantage(algorithm):
    rows, moved = trained("quickstart", f"algorithm={algorithm}", "algorithm.advantage=leave_one_out", *DRAWN)
    assert moved > 1e-4
    assert rows[-1]["critic/advantages/mean"] == pytest.approx(0.0, abs=1e-5)


def test_responses_by_rewards_one_by_one():
    """Two rewards: what is learned differs from what their sum teaches."""
    found = {
        how: trained("vlm_quickstart", f"algorithm.advantage_aggregation={how}", *ANSWERED)[0]
        for how in ("sum", "each", "gdpo")
    }
    first = {how: rows[0]["actor/grad_norm"] for how, rows in found.items()}
    assert len(set(first.values())) == 3
    assert {rows[0]["critic/rewards/mean"] for rows in found.values()} == {found["sum"][0]["critic/rewards/mean"]}
    assert all(rows[-1]["actor/ratio_mean"] != 1.0 for rows in found.values())
