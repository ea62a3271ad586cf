"""PPO's clipped ratio against reference numbers and closed forms, and how the losses of actions become one number."""

import pytest
import torch

from burnish.algorithms.correction import RolloutCorrection
from burnish.losses.kl import gaussian_kl
from burnish.losses.policy import Surrogate, flow_clip, ppo_clip, terms, weights
from burnish.registry import lookup
from tests.conformance import case, cases
from tests.support.token_losses import aggregate, mask_of

MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


def all_of(values) -> torch.Tensor:
    return torch.ones_like(values, dtype=torch.bool)


def published(given: dict):
    """The published form: advantages clipped to +-5, one clip range."""
    logprob = torch.as_tensor(given["log_prob"]).clone().requires_grad_()
    advantage = torch.as_tensor(given["advantages"])
    limit = given.get("adv_clip_max", 5.0)
    clip = given.get("clip_ratio", given.get("clip_range"))
    old = torch.as_tensor(given["old_log_prob"])
    made = lookup("flow algorithm", "flow_grpo")(clip=clip, advantage_clip=limit)
    bounded, _ = made.clipped(advantage[:, None], all_of(logprob)[:, None])
    one = (value[:, None] for value in (logprob, old))
    loss, metrics = made.objective(*one, bounded, all_of(bounded), torch.ones_like(bounded))
    ratio = metrics["actor/ratio_mean"][:, 0]
    return logprob, Surrogate(loss[:, 0], ratio, {name: value[:, 0] for name, value in metrics.items()})


@pytest.mark.parametrize("c", cases("losses", "loss/flow_grpo/"), ids=lambda c: c.id)
def test_flow_clip(c):
    logprob, found = published(c.inputs)
    c.close(found.loss.mean(), c.expected["loss"])
    (gradient,) = torch.autograd.grad(found.loss.mean(), logprob)
    c.close(gradient, c.expected["grad_log_prob"])
    for name in ("actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_higher", "actor/pg_clipfrac_lower"):
        c.close(found.metrics[name].mean(), c.expected["metrics"][name])
    c.close(found.ratio.mean(), c.expected["metrics"]["actor/ratio_mean"])
    c.close(found.ratio.std(), c.expected["metrics"]["actor/ratio_std"])


def test_flow_clip_with_published_kl():
    c = case("losses", "loss/flow_grpo_ppo_kl")
    given = c.inputs
    logprob, found = published(given)
    c.close(found.loss.mean(), c.expected["policy_loss"])
    c.close(torch.autograd.grad(found.loss.mean(), logprob)[0], c.expected["grad_log_prob"])
    mean, reference = torch.tensor(given["mean"]), torch.tensor(given["mean_ref"])
    kl = gaussian_kl(mean, reference, torch.full((len(mean),), given["std_dev_t"]))
    c.close(kl.mean(), c.expected["kl_loss"])
    c.close(found.loss.mean() + given["beta"] * kl.mean(), c.expected["loss"])


@pytest.mark.parametrize("c", cases("losses", "total_loss/flow_grpo_kl"), ids=lambda c: c.id)
def test_surrogate_and_kl_add_up(c):
    """verl-omni divides by accumulation steps, times sequence-parallel ranks; ours divides once."""
    given = c.inputs
    _, found = published(given)
    kl = gaussian_kl(given["prev_sample_mean"], given["ref_prev_sample_mean"], given["std_dev_t"].flatten())
    total = (found.loss + given["kl_loss_coef"] * kl).mean() / given["gradient_accumulation_steps"] * given["sp_size"]
    c.close(total, c.expected["loss"])
    c.close(found.metrics["actor/ppo_kl"].mean(), c.expected["metrics"]["actor/ppo_kl"])
    c.close(kl.mean(), c.expected["metrics"]["actor/kl_loss"])


def test_a_rejected_step_leaves_the_denominator():
    """verl-omni still divides by all steps."""
    c = case("correction", "total_loss/flow_grpo_bypass_rs")
    given = dict(c.inputs)
    old, logprob = given["old_log_prob(=rollout)"], given["log_prob"]
    lower, upper = (float(bound) for bound in given["threshold"].split("_"))
    rule = {"reject": given["rollout_rs"], "reject_above": upper, "reject_below": lower}
    correction = RolloutCorrection(mode="bypass", weights="none", **rule)
    _, kept, _ = correction.apply(logprob[:, None], old[:, None], torch.ones(len(old), 1).bool())
    kept = kept[:, 0]
    _, found = published(given | {"old_log_prob": old})
    c.close((found.loss * kept).mean(), c.expected["loss"])
    for name in found.metrics.keys() & c.expected["metrics"].keys():
        c.close(found.metrics[name].mean(), c.expected["metrics"][name])
    assert kept.tolist() == [True, False, True, True]
    # what is required: three terms; the ratio is to the sampler already, so no weight comes on top
    torch.testing.assert_close(found.loss[kept].mean(), c.expected["loss"] * 4 / 3)


@pytest.mark.parametrize("clipped", [ppo_clip, flow_clip])
def test_at_ratio_one_the_gradient_is_the_policy_gradient(clipped):
    logprob = torch.randn(6, requires_grad=True)
    advantage = torch.randn(6)
    found = clipped(logprob, logprob.detach(), advantage, all_of(advantage), clip=1e-4)
    torch.testing.assert_close(torch.autograd.grad(found.loss.sum(), logprob)[0], -advantage)
    assert found.metrics["actor/pg_clipfrac"].sum() == 0


def test_outside_the_clip_range_only_the_way_back_is_open():
    logprob = torch.tensor([0.5, 0.5, -0.5, -0.5], requires_grad=True)
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    found = flow_clip(logprob, torch.zeros(4), advantage, all_of(advantage), clip=0.1, clip_high=0.2)
    gradient = torch.autograd.grad(found.loss.sum(), logprob)[0]
    assert (gradient != 0).tolist() == [False, True, True, False]
    assert found.metrics["actor/pg_clipfrac_higher"].tolist() == [1, 1, 0, 0]
    assert found.metrics["actor/pg_clipfrac_lower"].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("clipped", [ppo_clip, flow_clip])
def test_clip_ranges_are_two(clipped):
    logprob, old, advantage = torch.tensor([9.0, -9.0]), torch.zeros(2), torch.tensor([1.0, -1.0])
    found = clipped(logprob, old, advantage, all_of(old), clip=0.1, clip_high=0.3)
    torch.testing.assert_close(found.loss, torch.tensor([-1.3, 0.9]))


def test_a_wild_ratio_stays_finite():
    logprob = torch.tensor([1e4, -1e4], requires_grad=True)
    loss = flow_clip(logprob, torch.zeros(2), torch.tensor([-1.0, 1.0]), torch.ones(2).bool(), clip=0.2).loss
    assert loss.isfinite().all()
    assert torch.autograd.grad(loss.sum(), logprob)[0].isfinite().all()


def test_dual_clip_bounds_what_a_bad_token_costs():
    ratio = torch.tensor([[1.1, 5.0, 50.0]], dtype=torch.float64)
    advantage, mask = -torch.ones_like(ratio), mask_of([3], 3)
    found = ppo_clip(ratio.log(), torch.zeros_like(ratio), advantage, mask, clip=0.2, dual_clip=3.0)
    torch.testing.assert_close(found.loss, torch.tensor([[1.1, 3.0, 3.0]], dtype=torch.float64))
    assert found.metrics["actor/pg_clipfrac_lower"].tolist() == [[0, 1, 1]]
    with pytest.raises(ValueError, match="dual_clip is 1"):
        ppo_clip(ratio, ratio, advantage, mask, clip=0.2, dual_clip=1.0)


def test_clipping_is_counted_where_it_acts():
    ratio = torch.tensor([[1.5, 1.5, 0.5, 0.5, 1.5]])
    advantage = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0]])
    found = ppo_clip(ratio.log(), torch.zeros(1, 5), advantage, mask_of([4]), clip=0.2)
    assert found.metrics["actor/pg_clipfrac"].tolist() == [[1, 0, 0, 1, 0]]
    torch.testing.assert_close(found.ratio, torch.tensor([[1.5, 1.5, 0.5, 0.5, 0.0]]))
    torch.testing.assert_close(found.metrics["actor/ppo_kl"][0, :4], -ratio.log()[0, :4])


def constant(mode: str) -> float | None:
    return 10.0 if mode.endswith("norm") else None


@pytest.mark.parametrize(("mode", "expected"), zip(MODES, [21 / 6, (2 + 4.5 + 6) / 3, 21 / 3, 21 / 30], strict=True))
def test_closed_forms(mode, expected):
    """Three sequences of 3, 2 and 1 tokens that count, with losses 1 to 6, and one without a token."""
    mask = mask_of([3, 2, 1, 0], 3)
    values = torch.full((4, 3), torch.nan).masked_scatter(mask, torch.arange(1.0, 7.0))
    assert aggregate(values, mask, mode, constant(mode)).item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_the_cut_into_micro_batches_is_not_seen(mode, rows):
    torch.manual_seed(0)
    mask = torch.rand(7, 6) < 0.5
    mask[2] = False
    values = torch.randn(7, 6, dtype=torch.float64)
    total = sum(
        (part * weights(chosen, mode, constant(mode))).sum()
        for part, chosen in zip(values.split(rows), mask.split(rows), strict=True)
    )
    count = sum(int(terms(chosen, mode)) for chosen in mask.split(rows))
    assert count == int(terms(mask, mode))
    torch.testing.assert_close(total / count, aggregate(values, mask, mode, constant(mode)), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_padding_and_empty_sequences_change_nothing(mode):
    torch.manual_seed(0)
    mask, values = mask_of([3, 2], 3), torch.randn(2, 3)
    wider = torch.nn.functional.pad(mask, (0, 4, 0, 2))
    padded = torch.nn.functional.pad(values, (0, 4, 0, 2), value=torch.inf)
    torch.testing.assert_close(
        aggregate(padded, wider, mode, constant(mode)), aggregate(values, mask, mode, constant(mode))
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(2, 3), (2, 0), (0, 3)])
def test_a_batch_that_says_nothing_is_zero(mode, shape):
    mask = torch.zeros(shape, dtype=torch.bool)
    assert int(terms(mask, mode)) == 0
    assert aggregate(torch.full(shape, torch.nan), mask, mode, constant(mode)).item() == 0


def test_the_constant_belongs_to_one_mode():
    mask = mask_of()
    with pytest.raises(ValueError, match="seq-mean-token-sum-norm"):
        weights(mask, "token-mean", 10.0)
    with pytest.raises(ValueError, match="largest response length"):
        weights(mask, "seq-mean-token-sum-norm")
    with pytest.raises(ValueError, match="above 0"):
        weights(mask, "seq-mean-token-sum-norm", 0.0)
