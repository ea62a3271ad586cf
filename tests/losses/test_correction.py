"""Importance correction: reference numbers, and what must hold for any mask."""

import pytest
import torch

from burnish.algorithms.correction import RolloutCorrection
from burnish.losses.correction import importance_weights, rejection_mask
from burnish.losses.correction_metrics import (
    correction_metrics,
    rejected_fractions,
    rejection_metrics,
    variance_proxies,
    weight_metrics,
)
from burnish.training.step_metrics import signal_metrics
from tests.conformance import Case, case, cases

LEVELS = {"token": "step", "sequence": "sample"}
RULES = [
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3",
    "seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3",
]  # fmt: skip


def bounds(threshold: float | str) -> dict[str, float]:
    """A number bounds from above, "lower_upper" on both sides."""
    if isinstance(threshold, str):
        lower, upper = (float(bound) for bound in threshold.split("_"))
        return {"lower": lower, "upper": upper}
    return {"upper": threshold}


def everything(like: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(like, dtype=torch.bool)


def same(c: Case, got: dict[str, float], expected: dict[str, float]) -> None:
    for name, value in expected.items():
        c.close(got[f"rollout_corr/{name.removeprefix('rollout_corr/')}"], value)


def rejecting(rule: str, threshold: float | str) -> dict:
    found = bounds(threshold)
    return {"reject": rule, "reject_above": found["upper"], "reject_below": found.get("lower")}


@pytest.mark.parametrize("c", cases("correction", "rollout_corr/is/"), ids=lambda c: c.id)
def test_importance_weights(c):
    ours, theirs = c.inputs["old_log_prob"], c.inputs["rollout_log_prob"]
    made = RolloutCorrection(
        weights=LEVELS[c.inputs["rollout_is"]],
        batch_normalise=c.inputs["batch_normalize"],
        **bounds(c.inputs["threshold"]),
    )
    weights, _, found = made.apply(ours, theirs, everything(ours))
    c.close(weights, c.expected["weights"])
    same(c, found, c.expected["metrics"])


@pytest.mark.parametrize("c", cases("correction", "rollout_corr/rs/"), ids=lambda c: c.id)
def test_rejection(c):
    log_ratio = c.inputs["log_ratio(old-rollout)"]
    made = RolloutCorrection(weights="none", **rejecting(c.inputs["mode"], c.inputs["threshold"]))
    weights, kept, found = made.apply(log_ratio, torch.zeros_like(log_ratio), everything(log_ratio))
    assert (weights == 1).all()
    c.close(kept, c.expected["keep_mask"])
    same(c, found, c.expected["metrics"])


def test_weights_and_rejection_together():
    c = case("correction", "rollout_corr/decoupled_folded")
    given = c.inputs
    ours, theirs = given["old_log_prob"], given["rollout_log_prob"]
    made = RolloutCorrection(
        weights=LEVELS[given["rollout_is"]], **bounds(given["rollout_is_threshold"]),
        **rejecting(given["rollout_rs"], given["rollout_rs_threshold"]),
    )  # fmt: skip
    weights, kept, found = made.apply(ours, theirs, everything(ours))
    c.close(weights * kept, c.expected["rollout_is_weights"])
    same(c, found, c.expected["metrics"])


def test_metrics_of_a_rejected_step():
    c = case("correction", "total_loss/flow_grpo_bypass_rs")
    ours, theirs = c.inputs["log_prob"][:, None], c.inputs["old_log_prob(=rollout)"][:, None]
    made = RolloutCorrection(weights="sample", **rejecting(c.inputs["rollout_rs"], c.inputs["threshold"]))
    _, _, found = made.apply(ours, theirs, everything(ours))
    same(c, found, {name: v for name, v in c.expected["metrics"].items() if name.startswith("rollout_corr/")})


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
    total = float(found["variance_proxy/proxy2_total_power"])
    sums = {"sum variance_proxy/proxy2_total_power": total * len(score)}
    sums["count variance_proxy/proxy2_total_power"] = len(score)
    found |= signal_metrics(sums, given["gradient_norm"])
    assert found.keys() == c.expected["metrics"].keys()
    for name, value in c.expected["metrics"].items():
        c.close(found[name], value)


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
            clean = importance_weights(ours - theirs, mask, **options)
            assert torch.equal(importance_weights(dirty - theirs, mask, **options), clean)
            assert (clean[~mask] == 0).all()
            assert weight_metrics(dirty - theirs, mask, **options) == weight_metrics(ours - theirs, mask, **options)
    for rule in RULES:
        options = {"rule": rule, "upper": 1.2 if rule.endswith("k1") else 0.05}
        clean = rejection_mask(ours - theirs, mask, **options)
        assert torch.equal(rejection_mask(dirty - theirs, mask, **options), clean)
        assert not clean[~mask].any()
        assert rejection_metrics(dirty - theirs, mask, **options) == rejection_metrics(ours - theirs, mask, **options)
    assert correction_metrics(dirty, theirs, mask) == correction_metrics(ours, theirs, mask)


def test_padding_changes_no_metric():
    ours, theirs, mask = ragged(1)
    rows = mask.any(1)
    wide = [
        torch.nn.functional.pad(value, (0, 3), value=v) for value, v in ((ours, -9.0), (theirs, 4.0), (mask, False))
    ]
    narrow = [value[rows] for value in (ours, theirs, mask)]
    for found, expected in (
        (correction_metrics(*wide), correction_metrics(*narrow)),
        (
            weight_metrics(wide[0] - wide[1], wide[2], level="sample", upper=1.3),
            weight_metrics(narrow[0] - narrow[1], narrow[2], level="sample", upper=1.3),
        ),
        (
            rejection_metrics(wide[0] - wide[1], wide[2], rule="seq_mean_k3", upper=0.03),
            rejection_metrics(narrow[0] - narrow[1], narrow[2], rule="seq_mean_k3", upper=0.03),
        ),
    ):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("level", LEVELS.values())
@pytest.mark.parametrize("lower", [None, 0.8])
def test_normalised_weights_have_mean_1(level, lower):
    ours, theirs, mask = ragged(2)
    weights = importance_weights(ours - theirs, mask, level=level, upper=1.2, lower=lower, batch_normalise=True)
    rows = mask.any(1)
    by_sample = weights.sum(1)[rows] / mask.sum(1)[rows]
    mean = weights[mask].mean() if level == "step" else by_sample.mean()
    torch.testing.assert_close(mean, torch.tensor(1.0))


def test_weights_that_all_vanish_stay_finite():
    log_ratio = torch.full((2, 3), -9.0)
    options = {"level": "step", "lower": 0.5, "upper": 2.0, "batch_normalise": True}
    assert (importance_weights(log_ratio, everything(log_ratio), **options) == 0).all()
    found = weight_metrics(log_ratio, everything(log_ratio), **options)
    assert found["rollout_corr/rollout_is_eff_sample_size"] == 0
    assert found["rollout_corr/rollout_is_batch_norm_factor"] == 1


def test_importance_weights_correct_an_expectation():
    """Statistical, 100,000 draws: samples of one Gaussian, weighted, have the mean of another."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(100_000, 1, generator=g)
    sampler, learner = torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.4, 1.0)
    weights = importance_weights(learner.log_prob(x) - sampler.log_prob(x), everything(x), level="step", upper=1e6)
    assert (weights * x).mean() == pytest.approx(0.4, abs=0.02)
    ours, theirs = learner.log_prob(x), sampler.log_prob(x)
    assert correction_metrics(ours, theirs, everything(x))["rollout_corr/k3_kl"] == pytest.approx(0.08, abs=5e-3)


def test_extreme_ratios_stay_finite():
    ours, theirs = torch.tensor([[900.0, -900.0]]), torch.zeros(1, 2)
    mask = everything(ours)
    for level in LEVELS.values():
        assert importance_weights(ours, mask, level=level, upper=1e30).isfinite().all()
    for rule in RULES:
        found = rejection_metrics(ours, mask, rule=rule, upper=2.0)
        assert all(abs(value) < float("inf") for value in found.values())
    found = weight_metrics(ours, mask, level="step", upper=2.0)
    assert all(abs(value) < float("inf") for value in found.values())
    assert correction_metrics(ours, theirs, mask)["rollout_corr/chi2_token"] < float("inf")


def test_weights_carry_no_gradient():
    ours = torch.zeros(2, 3, requires_grad=True)
    assert not importance_weights(ours, everything(ours), level="step", upper=2.0).requires_grad


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 3)], ids=str)
def test_where_nothing_counts_there_is_nothing_to_report(shape):
    value, mask = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    assert importance_weights(value, mask, level="sample", upper=2.0, batch_normalise=True).shape == shape
    assert rejection_mask(value, mask, rule="token_k1", upper=2.0).shape == shape
    assert correction_metrics(value, value, mask) == {}
    assert weight_metrics(value, mask, level="step", upper=2.0) == {}
    assert rejection_metrics(value, mask, rule="seq_sum_k1", upper=2.0) == {}
    assert rejected_fractions(mask, mask) == {}


@pytest.mark.parametrize(("lower", "upper"), [(2.0, 1.0), (0.0, 1.0), (None, 0.0), (-1.0, 2.0)])
def test_bounds_that_nothing_lies_between_are_refused(lower, upper):
    with pytest.raises(ValueError, match="upper is"):
        importance_weights(torch.zeros(1, 1), torch.ones(1, 1).bool(), level="step", lower=lower, upper=upper)


def test_a_lower_bound_that_is_never_read_is_refused():
    with pytest.raises(ValueError, match="token_k3 is never negative"):
        rejection_mask(torch.zeros(1, 1), torch.ones(1, 1).bool(), rule="token_k3", lower=0.5, upper=2.0)
