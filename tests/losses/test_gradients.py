"""Every loss against finite differences, in float64."""

import pytest
import torch
from torch.autograd import gradcheck

from burnish.losses.kl import gaussian_kl, squared_distance
from burnish.losses.matching import advantage_weighted_matching, awm_logprob, matching_error, negative_aware
from burnish.losses.policy import flow_clip
from burnish.losses.preference import centred_distillation, diffusion_dpo, group_preference, preference_loss
from burnish.losses.surrogates import guard_log_ratio, kl_trust_region


def draw(*shape: int, seed: int = 0, positive: bool = False) -> torch.Tensor:
    value = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return value.abs() + 0.1 if positive else value


ROWS, SHAPE = 5, (5, 2, 3)
A, B, C, D = (draw(*SHAPE, seed=seed) for seed in range(4))
LOGPROB, OLD = 0.3 * draw(ROWS, seed=5), 0.3 * draw(ROWS, seed=6)
ADVANTAGE, TIME = draw(ROWS, seed=7), torch.linspace(0.1, 0.9, ROWS).double()
EVERY = torch.ones(ROWS, dtype=torch.bool)
STD, GROUP = draw(ROWS, seed=8, positive=True), torch.tensor([0, 0, 1, 1, 1])
ERROR, REFERENCE = draw(ROWS, seed=9, positive=True), draw(ROWS, seed=10, positive=True)

LOSSES = {
    "flow_clip": (lambda x: flow_clip(x, OLD, ADVANTAGE, EVERY, clip=0.1, clip_high=0.2).loss, LOGPROB),
    "guard": (
        lambda x, mean: (
            flow_clip(
                guard_log_ratio(x, OLD, mean, B, STD), torch.zeros(ROWS), ADVANTAGE, EVERY, clip=0.1, clip_high=0.2
            ).loss
        ),
        (LOGPROB, A),
    ),
    "kl_trust_region": (lambda x: kl_trust_region(x, OLD, ADVANTAGE, EVERY, STD, threshold=0.5).loss, LOGPROB),
    "gaussian_kl": (lambda mean: gaussian_kl(mean, B, STD), A),
    "distill_kl": (lambda mean: gaussian_kl(mean, B, STD), A),
    "distill_fm_mse": (lambda v: squared_distance(v, B), A),
    "matching_error": (lambda v: matching_error(v, C - B), A),
    "preference_loss": (lambda m: preference_loss(m, beta=2.0, label_smoothing=0.1), ADVANTAGE),
    "preference_loss ipo": (lambda m: preference_loss(m, beta=2.0, kind="ipo"), ADVANTAGE),
    "diffusion_dpo": (
        lambda e: diffusion_dpo(e[:2], e[2:4], REFERENCE[:2], REFERENCE[2:4], beta=3.0)[0],
        ERROR,
    ),
    "group_preference": (lambda e: group_preference(e, REFERENCE, ADVANTAGE, GROUP, beta=3.0)[0], ERROR),
}
for weighting in ("uniform", "t", "t2", "huber", "ghuber"):
    LOSSES[f"awm_logprob {weighting}"] = (
        lambda v, weighting=weighting: awm_logprob(v, B, TIME, weighting=weighting),
        A,
    )
    LOSSES[f"advantage_weighted_matching {weighting}"] = (
        lambda v, weighting=weighting: (
            advantage_weighted_matching(v, A, B, TIME, ADVANTAGE, clip=0.1, clip_high=0.2, weighting=weighting).loss
        ),
        A + 0.02 * C,
    )


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_the_slope(name):
    function, inputs = LOSSES[name]
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    assert gradcheck(function, tuple(value.clone().requires_grad_() for value in inputs))


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_the_weights_of_the_negative_aware_loss_have_no_gradient(beta):
    velocity = A.clone().requires_grad_()
    good = TIME
    loss, positive, negative = negative_aware(velocity, B, C, D, TIME, good, beta=beta)
    t = TIME.view(-1, 1, 1)
    error = {
        sign: D - t * ((1 - sign * beta) * B + sign * beta * A) - C
        for sign in (1, -1)
    }  # fmt: skip
    slope = {sign: 2 * e / e.abs().mean((1, 2), keepdim=True) / 6 for sign, e in error.items()}
    share = good.view(-1, 1, 1)
    expected = share * slope[1] * -t - (1 - share) * slope[-1] * -t
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), velocity)[0], expected)
    torch.testing.assert_close(loss.detach(), ((good * positive + (1 - good) * negative) / beta).detach())


@pytest.mark.parametrize("temperature", [None, 0.5])
@pytest.mark.parametrize("kind", ["bce", "mse"])
def test_the_averages_of_centred_distillation_have_no_gradient(temperature, kind):
    """A sample's slope is that of its own loss while the averages of its group stand still."""
    implicit = ADVANTAGE.clone().requires_grad_()
    options = {"beta": 2.0, "temperature": temperature, "kind": kind}
    loss = centred_distillation(implicit, TIME, GROUP, **options)
    (gradient,) = torch.autograd.grad(loss.sum(), implicit)
    logits = [torch.zeros(ROWS).double()] if temperature is None else [TIME / temperature, -TIME / temperature]
    expected = torch.zeros(ROWS).double()
    for rows in (GROUP == 0, GROUP == 1):
        for logit in logits:
            weight = logit[rows].softmax(0)
            ours = 2.0 * (ADVANTAGE[rows] - weight @ ADVANTAGE[rows])
            theirs = TIME[rows] - weight @ TIME[rows]
            slope = ours.sigmoid() - theirs.sigmoid() if kind == "bce" else 2 * (ours - theirs)
            expected[rows] += 2.0 * slope / len(logits)
    torch.testing.assert_close(gradient, expected)


def test_no_term_no_loss():
    empty, rows = torch.zeros(0), torch.zeros(0, 2, 3)
    nothing = empty.bool()
    assert flow_clip(empty, empty, empty, nothing, clip=0.1).loss.shape == (0,)
    assert guard_log_ratio(empty, empty, rows, rows, empty).shape == (0,)
    assert kl_trust_region(empty, empty, empty, nothing, empty, threshold=0.1).loss.shape == (0,)
    assert matching_error(rows, rows).shape == (0,)
    assert awm_logprob(rows, rows, empty, weighting="ghuber").shape == (0,)
    assert negative_aware(rows, rows, rows, rows, empty, empty, beta=1.0)[0].shape == (0,)


@pytest.mark.parametrize("size", [900.0, -900.0])
def test_wild_log_ratios_stay_finite(size):
    logprob, advantage = torch.full((2,), size, requires_grad=True), torch.tensor([1.0, -1.0])
    old, every = torch.zeros(2), torch.ones(2, dtype=torch.bool)
    for found in (
        flow_clip(logprob, old, advantage, every, clip=0.1),
        kl_trust_region(logprob, old, advantage, every, torch.ones(2), threshold=2.0),
    ):
        assert found.loss.isfinite().all()
        assert torch.autograd.grad(found.loss.sum(), logprob, retain_graph=True)[0].isfinite().all()


@pytest.mark.parametrize("weighting", ["uniform", "t", "t2", "huber", "ghuber"])
def test_a_perfect_prediction_has_a_finite_gradient(weighting):
    velocity = torch.zeros(2, 3, requires_grad=True)
    score = awm_logprob(velocity, torch.zeros(2, 3), torch.tensor([0.0, 1.0]), weighting=weighting)
    assert torch.autograd.grad(score.sum(), velocity)[0].isfinite().all()
