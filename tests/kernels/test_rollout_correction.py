"""Importance weights and rejection: published numbers, and what must hold for any mask."""

import math

import pytest
import torch

from burnish.rl.importance import correction_metrics, importance_weights, joint_metrics, rejected_fractions, rejection
from burnish.rl.surrogates import variance_proxies
from tests.conformance import Case, case, cases

NAN = math.nan
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


@pytest.mark.parametrize("apart", [0, 30])
def test_how_far_policies_are_apart_is_measured_sample_by_sample(apart):
    """In nats of whole steps, no further than 20, but for differences of log-probs; padding is never read."""
    ours, theirs, mask = ragged(1)
    theirs[0, 1] -= apart
    ours[~mask] = theirs[~mask] = NAN
    scale = 1 + mask.cumsum(1)
    found = correction_metrics(ours, theirs, mask, scale=scale)
    nats, rows = ((ours - theirs) * scale).double(), mask.any(1)
    each, sums = nats[mask], nats.nansum(1)[rows]
    difference = (theirs - ours).nanmean(1)[rows]
    expected = {
        "kl": -each.mean(), "k3_kl": (each.clamp(max=20).exp() - each - 1).mean(),
        "chi2_token": (2 * each.clamp(max=20)).exp().mean() - 1, "chi2_seq": (2 * sums.clamp(max=20)).exp().mean() - 1,
        "training_ppl": (-ours.nanmean(1)[rows]).exp().mean(), "rollout_log_ppl": -theirs.nanmean(1)[rows].mean(),
        "log_ppl_abs_diff": difference.abs().mean(), "log_ppl_diff_min": difference.min(),
        "logprob_abs_diff_mean": (ours - theirs)[mask].abs().mean(),
    }  # fmt: skip
    for name, value in expected.items():
        assert found[f"rollout_corr/{name}"] == pytest.approx(float(value), rel=1e-4), name
    for level, shares in (("step", each.exp()), ("sample", sums.exp())):
        share = joint_metrics((ours - theirs) * scale, mask, level=level, applied=mask.float())
        effective = float(shares.mean().square() / shares.square().mean())
        assert [*share.values()] == pytest.approx([effective, 1.0], rel=1e-4)


WILD = torch.tensor([[1.0, -2.0, 30.0], [1.0, NAN, NAN], [0.0, 0.0, NAN], [NAN] * 3, [-0.5, 0.25, 0.0]])


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_rejects_what_is_beyond_its_bounds_and_counts_it(rule):
    """What lies on a bound stays; log-ratios beyond 20 count as 20."""
    how, _, kind = rule.rpartition("_")
    low, high, bound = (0.0, 0.0, 1.0) if kind == "k1" else (-math.inf, 0.5, 0.5)
    kept, found = rejection(WILD, mask := ~WILD.isnan(), rule=rule, upper=bound)
    x = WILD.clamp(max=20.0)
    each = {"k1": -x, "k2": x.square() / 2, "k3": x.exp() - 1 - x}[kind]
    if how != "token":
        row = {"seq_sum": each.nansum(1), "seq_mean": each.nanmean(1), "seq_max": each.nan_to_num(0.0).amax(1)}[how]
        each = torch.where(mask, row[:, None], NAN)
    assert torch.equal(kept, (each >= low) & (each <= high))
    steps, means = each[mask], each.nanmean(1)[mask.any(1)]
    judged, named = steps if how == "token" else means, f"rollout_corr/rollout_rs_{rule}_"
    expected = {"fraction_low": (judged < low).float().mean(), "masked_fraction": (~kept[mask]).float().mean()}
    for part, values in (("", steps), ("seq_", means)):
        expected |= {f"{part}{name}": getattr(values, name)() for name in ("mean", "max", "min")}
        beyond = means if part else judged
        expected[f"{part}fraction_high"] = (beyond > high).float().mean()
    assert [found[named + name] for name in expected] == pytest.approx([*map(float, expected.values())])


@pytest.mark.parametrize("level", LEVELS.values())
def test_weights_are_products_over_what_counts_divided_by_their_mean(level):
    mask, options = ~WILD.isnan(), {"level": level, "upper": 1.5, "batch_normalise": True}
    weights, found = importance_weights(WILD, mask, **options)
    ratio = WILD if level == "step" else torch.where(mask, WILD.nansum(1, keepdim=True), NAN)
    expected = ratio.exp().clamp(max=1.5)
    by_sample = expected.nanmean(1)[mask.any(1)]
    mean = expected[mask].mean() if level == "step" else by_sample.mean()
    torch.testing.assert_close(weights, (expected / mean).nan_to_num(0.0))
    assert found["rollout_corr/rollout_is_seq_max_deviation"] == pytest.approx(float((by_sample - 1).abs().max()))
    one = {"level": level, "upper": 1.0, "lower": 1.0}  # a ratio of 1 lies on both bounds
    weights, found = importance_weights(torch.zeros(1, 2), torch.ones(1, 2).bool(), **one)
    assert weights.tolist() == [[1, 1]]
    assert {value for name, value in found.items() if "fraction" in name or name.endswith(("oob_ratio", "std"))} == {0}


def test_weights_that_all_vanish_stay_finite():
    log_ratio = torch.full((2, 3), -9.0)
    options = {"level": "step", "lower": 0.5, "upper": 2.0, "batch_normalise": True}
    weights, found = importance_weights(log_ratio, everything(log_ratio), **options)
    assert (weights == 0).all()
    assert found["rollout_corr/rollout_is_eff_sample_size"] == 0
    assert found["rollout_corr/rollout_is_batch_norm_factor"] == 1
    weights, _ = importance_weights(log_ratio / 90, everything(log_ratio), **options)
    torch.testing.assert_close(weights, torch.ones(2, 3))
