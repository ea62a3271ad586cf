"""Importance weights and rejection: published numbers, and what must hold for any mask."""

import pytest
import torch

from burnish.rl.importance import (
    correction_metrics,
    importance_weights,
    rejected_fractions,
    rejection,
)
from burnish.rl.surrogates import variance_proxies
from tests.conformance import Case, case, cases

LEVELS = {"token": "step", "sequence": "sample"}
RULES = [
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3",
    "seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3",
]  # fmt: skip


def bounds(threshold: float | str) -> dict[str, float]:
    if isinstance(threshold, str):
        lower, upper = (float(bound) for bound in threshold.split("_"))
        return {"lower": lower, "upper": upper}
    return {"upper": threshold}


def everything(like: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(like, dtype=torch.bool)


def same(c: Case, got: dict[str, float], expected: dict[str, float]) -> None:
    for name, value in expected.items():
        c.close(got[f"rollout_corr/{name.removeprefix('rollout_corr/')}"], value)


@pytest.mark.parametrize("c", cases("correction", "rollout_corr/is/"), ids=lambda c: c.id)
def test_importance_weights(c):
    given = c.inputs
    log_ratio = given["old_log_prob"] - given["rollout_log_prob"]
    options = {"level": LEVELS[given["rollout_is"]], "batch_normalise": given["batch_normalize"]} | bounds(
        given["threshold"]
    )
    weights, found = importance_weights(log_ratio, everything(log_ratio), **options)
    c.close(weights, c.expected["weights"])
    found |= correction_metrics(given["old_log_prob"], given["rollout_log_prob"], everything(log_ratio))
    same(c, found, c.expected["metrics"])


@pytest.mark.parametrize("c", cases("correction", "rollout_corr/rs/"), ids=lambda c: c.id)
def test_rejection(c):
    log_ratio = c.inputs["log_ratio(old-rollout)"]
    mask, options = everything(log_ratio), {"rule": c.inputs["mode"]} | bounds(c.inputs["threshold"])
    kept, found = rejection(log_ratio, mask, **options)
    c.close(kept, c.expected["keep_mask"])
    same(c, found | rejected_fractions(kept, mask), c.expected["metrics"])


def test_weights_and_rejection_together():
    c = case("correction", "rollout_corr/decoupled_folded")
    given = c.inputs
    log_ratio = given["old_log_prob"] - given["rollout_log_prob"]
    mask = everything(log_ratio)
    kept, _ = rejection(log_ratio, mask, rule=given["rollout_rs"], **bounds(given["rollout_rs_threshold"]))
    weights, _ = importance_weights(
        log_ratio, mask, level=LEVELS[given["rollout_is"]], **bounds(given["rollout_is_threshold"])
    )
    c.close(weights * kept, c.expected["rollout_is_weights"])
    moved = torch.tensor([[0.2, 0.5, -0.5]])
    kept, _ = rejection(moved, everything(moved), rule="token_k1", upper=2.0, lower=0.7)
    assert kept.tolist() == [[True, False, True]]


def test_difference_by_timestep():
    c = case("correction", "rollout_corr/consistency_metrics")
    ours, theirs = c.inputs["old_log_prob"], c.inputs["rollout_log_prob"]
    found = correction_metrics(ours, theirs, everything(ours), time=c.inputs["timesteps"] / 1000)
    same(c, found, c.expected["metrics"])
    assert found.keys() == c.expected["metrics"].keys()


def test_variance_proxies():
    """verl's are of tokens, whose score has a squared norm of 1 - 2 p + sum p^2; those of steps know theirs."""
    c = case("metrics", "metrics/variance_proxy")
    given = c.inputs
    score = (1 - 2 * given["old_log_probs"].exp() + given["sum_pi_squared"]).sum(1)
    found = {name: value.mean() for name, value in variance_proxies(given["advantages"][:, 0], score).items()}
    for name in found.keys() & c.expected["metrics"].keys():
        c.close(found[name], c.expected["metrics"][name])
    assert len(found.keys() & c.expected["metrics"].keys()) >= 2


def ragged(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs [6, 5] under trainer and sampler with a ragged mask; one row has nothing."""
    g = torch.Generator().manual_seed(seed)
    ours = -torch.rand(6, 5, generator=g)
    theirs = ours + 0.3 * torch.randn(6, 5, generator=g)
    length = torch.tensor([5, 3, 1, 4, 0, 2])
    return ours, theirs, torch.arange(5) < length[:, None]


@pytest.mark.parametrize("spoil", [torch.nan, torch.inf, -1e30])
def test_what_does_not_count_is_never_read(spoil):
    ours, theirs, mask = ragged(0)
    dirty = torch.where(mask, ours, spoil)
    for level in LEVELS.values():
        for extra in ({}, {"lower": 0.5}, {"batch_normalise": True}):
            options = {"level": level, "upper": 1.5, **extra}
            clean, found = importance_weights(ours - theirs, mask, **options)
            spoilt, same_found = importance_weights(dirty - theirs, mask, **options)
            assert torch.equal(spoilt, clean)
            assert (clean[~mask] == 0).all()
            assert same_found == found
    for rule in RULES:
        options = {"rule": rule, "upper": 1.2 if rule.endswith("k1") else 0.05}
        clean, found = rejection(ours - theirs, mask, **options)
        spoilt, same_found = rejection(dirty - theirs, mask, **options)
        assert torch.equal(spoilt, clean)
        assert not clean[~mask].any()
        assert same_found == found
    assert correction_metrics(dirty, theirs, mask) == correction_metrics(ours, theirs, mask)


def test_weights_that_all_vanish_stay_finite():
    log_ratio = torch.full((2, 3), -9.0)
    options = {"level": "step", "lower": 0.5, "upper": 2.0, "batch_normalise": True}
    weights, found = importance_weights(log_ratio, everything(log_ratio), **options)
    assert (weights == 0).all()
    assert found["rollout_corr/rollout_is_eff_sample_size"] == 0
    assert found["rollout_corr/rollout_is_batch_norm_factor"] == 1
    weights, _ = importance_weights(log_ratio / 90, everything(log_ratio), **options)
    torch.testing.assert_close(weights, torch.ones(2, 3))
