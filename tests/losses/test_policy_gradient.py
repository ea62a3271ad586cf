"""Policy gradients: reference numbers with gradients, and what must hold for any policy."""

import pytest
import torch

from burnish.flow.transitions import transition
from burnish.losses import clipped_surrogate, surrogate_of
from burnish.losses.correction import rejection_mask
from burnish.losses.kl import gaussian_kl, squared_distance
from burnish.losses.surrogates import guard_log_ratio, guard_weights, kl_trust_region
from tests.conformance import case, cases


def published(given: dict):
    """The published form: advantages clipped to +-5, one clip range."""
    logprob = torch.as_tensor(given["log_prob"]).clone().requires_grad_()
    advantage = torch.as_tensor(given["advantages"])
    limit = given.get("adv_clip_max", 5.0)
    clip = given.get("clip_ratio", given.get("clip_range"))
    loss, values = clipped_surrogate(
        logprob,
        torch.as_tensor(given["old_log_prob"]),
        advantage.clamp(-limit, limit),
        clip_low=clip,
        clip_high=clip,
    )
    return logprob, loss, values


@pytest.mark.parametrize("c", cases("losses", "loss/flow_grpo/"), ids=lambda c: c.id)
def test_clipped_surrogate(c):
    logprob, loss, values = published(c.inputs)
    c.close(loss.mean(), c.expected["loss"])
    (gradient,) = torch.autograd.grad(loss.mean(), logprob)
    c.close(gradient, c.expected["grad_log_prob"])
    for name in ("actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_higher", "actor/pg_clipfrac_lower"):
        c.close(values[name].mean(), c.expected["metrics"][name])
    c.close(values["ratio"].mean(), c.expected["metrics"]["actor/ratio_mean"])
    c.close(values["ratio"].std(), c.expected["metrics"]["actor/ratio_std"])


def test_clipped_surrogate_with_published_kl():
    c = case("losses", "loss/flow_grpo_ppo_kl")
    given = c.inputs
    logprob, loss, _ = published(given)
    c.close(loss.mean(), c.expected["policy_loss"])
    c.close(torch.autograd.grad(loss.mean(), logprob)[0], c.expected["grad_log_prob"])
    mean, reference = torch.tensor(given["mean"]), torch.tensor(given["mean_ref"])
    kl = gaussian_kl(mean, reference, torch.full((len(mean),), given["std_dev_t"]))
    c.close(kl.mean(), c.expected["kl_loss"])
    c.close(loss.mean() + given["beta"] * kl.mean(), c.expected["loss"])


@pytest.mark.parametrize("c", cases("losses", "total_loss/flow_grpo_kl"), ids=lambda c: c.id)
def test_surrogate_and_kl_add_up(c):
    """verl-omni divides by accumulation steps, times sequence-parallel ranks; ours divides once."""
    given = c.inputs
    _, loss, values = published(given)
    kl = gaussian_kl(given["prev_sample_mean"], given["ref_prev_sample_mean"], given["std_dev_t"].flatten())
    total = (loss + given["kl_loss_coef"] * kl).mean() / given["gradient_accumulation_steps"] * given["sp_size"]
    c.close(total, c.expected["loss"])
    c.close(values["actor/ppo_kl"].mean(), c.expected["metrics"]["actor/ppo_kl"])
    c.close(kl.mean(), c.expected["metrics"]["actor/kl_loss"])


def test_at_ratio_one_the_gradient_is_the_policy_gradient():
    logprob = torch.randn(6, requires_grad=True)
    advantage = torch.randn(6)
    loss, values = clipped_surrogate(logprob, logprob.detach(), advantage, clip_low=1e-4, clip_high=1e-4)
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), logprob)[0], -advantage)
    assert values["actor/pg_clipfrac"].sum() == 0


def test_outside_the_clip_range_only_the_way_back_is_open():
    old = torch.zeros(4)
    logprob = torch.tensor([0.5, 0.5, -0.5, -0.5], requires_grad=True)
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    loss, values = clipped_surrogate(logprob, old, advantage, clip_low=0.1, clip_high=0.2)
    gradient = torch.autograd.grad(loss.sum(), logprob)[0]
    assert (gradient != 0).tolist() == [False, True, True, False]
    assert values["actor/pg_clipfrac_higher"].tolist() == [1, 1, 0, 0]
    assert values["actor/pg_clipfrac_lower"].tolist() == [0, 0, 1, 1]


def test_clip_ranges_are_two():
    old, advantage = torch.zeros(2), torch.tensor([1.0, -1.0])
    loss, _ = clipped_surrogate(torch.tensor([9.0, -9.0]), old, advantage, clip_low=0.1, clip_high=0.3)
    torch.testing.assert_close(loss, torch.tensor([-1.3, 0.9]))


def test_a_wild_ratio_stays_finite():
    logprob = torch.tensor([1e4, -1e4], requires_grad=True)
    loss, _ = clipped_surrogate(logprob, torch.zeros(2), torch.tensor([-1.0, 1.0]), clip_low=0.2, clip_high=0.2)
    assert loss.isfinite().all()
    assert torch.autograd.grad(loss.sum(), logprob)[0].isfinite().all()


def transitions_of(given: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard deviation of the step with the root of its length, and that length, both [M]."""
    step = given["sqrt_dt"].square()
    return given["std_dev_t"].flatten() * given["sqrt_dt"], step


@pytest.mark.parametrize("c", cases("losses", "loss/grpo_guard/"), ids=lambda c: c.id)
def test_guard_of_verl_omni(c):
    """It takes the mean of spread and step over the batch, which are equal in all of its rows here."""
    given, expected = c.inputs, c.expected
    logprob = given["log_prob"].clone().requires_grad_()
    mean = given["prev_sample_mean"].clone().requires_grad_()
    std, step = transitions_of(given)
    log_ratio = guard_log_ratio(logprob, given["old_log_prob"], mean, given["old_prev_sample_mean"], std)
    advantage = given["advantages"].clamp(-given["adv_clip_max"], given["adv_clip_max"])
    loss, values = surrogate_of(log_ratio, advantage, given["clip_ratio"], given["clip_ratio"])
    total = (loss * guard_weights(step)).mean()
    c.close(total, expected["loss"])
    by_logprob, by_mean = torch.autograd.grad(total, (logprob, mean))
    c.close(by_logprob, expected["grad_log_prob"])
    c.close(by_mean, expected["grad_prev_sample_mean"])
    for name in ("actor/pg_clipfrac", "actor/pg_clipfrac_higher", "actor/pg_clipfrac_lower"):
        c.close(values[name].mean(), expected["metrics"][name])
    c.close((given["old_log_prob"] - logprob).mean(), expected["metrics"]["actor/ppo_kl"])
    c.close(values["ratio"].mean(), expected["metrics"]["actor/ratio_mean"])
    c.close(values["ratio"].std(), expected["metrics"]["actor/ratio_std"])


def test_guard_of_flow_factory():
    """Per sample; its division by the step length is missing there, so only the ratio is compared."""
    c = case("losses", "loss/grpo_guard_flow_factory")
    given = {name: torch.tensor(value) for name, value in c.inputs.items()}
    old, new = (
        transition(
            "sde", given[v], given["x"], given["sigma"], given["sigma_next"],
            noise=float(given["noise_level"]), t_max=0.96,
        )
        for v in ("v_old", "v_new")
    )  # fmt: skip
    log_ratio = guard_log_ratio(new.logprob(given["next"]), old.logprob(given["next"]), new.mean, old.mean, new.std)
    c.close(log_ratio.exp(), c.expected["ratio_row0"])
    c.close(log_ratio, (given["z"] * (new.mean - old.mean)).flatten(1).mean(1))


@pytest.mark.parametrize("t", [0.95, 0.6, 0.1])
def test_the_guarded_log_ratio_has_the_mean_0_and_the_spread_of_the_move(t):
    """Statistical, 20,000 draws; the plain log-ratio is biased by a KL and its spread grows as the noise shrinks."""
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(20_000, 1, generator=g)
    std, old_mean = torch.full((20_000,), 0.3 * t), torch.zeros(20_000, 1)
    mean = old_mean + 0.1
    landed = old_mean + std[:, None] * noise

    def density(centre):
        return torch.distributions.Normal(centre[:, 0], std).log_prob(landed[:, 0])

    guarded = guard_log_ratio(density(mean), density(old_mean), mean, old_mean, std)
    assert abs(guarded.mean()) < 4 * 0.1 / 20_000**0.5
    torch.testing.assert_close(guarded.std(), torch.tensor(0.1), rtol=0.02, atol=0)
    assert (density(mean) - density(old_mean)).mean() < -0.4 * (0.1 / (0.3 * t)) ** 2


@pytest.mark.parametrize("c", cases("losses", "loss/flow_dppo/"), ids=lambda c: c.id)
def test_trust_region_of_flow_dppo(c):
    given, expected = c.inputs, c.expected
    logprob = given["log_prob"].clone().requires_grad_()
    mean = given["prev_sample_mean"].clone().requires_grad_()
    std, _ = transitions_of(given)
    kl = squared_distance(mean, given["old_prev_sample_mean"]) / 2
    if given["add_kl_coefficient"]:
        kl = gaussian_kl(mean, given["old_prev_sample_mean"], std)
    loss, values = kl_trust_region(
        logprob, given["old_log_prob"], given["advantages"], kl, threshold=given["kl_mask_threshold"]
    )
    c.close(loss.mean(), expected["loss"])
    by_logprob, by_mean = torch.autograd.grad(loss.mean(), (logprob, mean), allow_unused=True)
    c.close(by_logprob, expected["grad_log_prob"])
    assert by_mean is None
    metrics = expected["metrics"]
    for name in values.keys() & metrics.keys():
        c.close(values[name].mean(), metrics[name])
    assert len(values.keys() & metrics.keys()) == 7
    c.close(values["actor/kl_new_old"].mean(), metrics["actor/kl_new_old_mean"])
    c.close(values["actor/kl_new_old"].max(), metrics["actor/kl_new_old_max"])
    ratio = values["ratio"]
    for name, value in (("mean", ratio.mean()), ("min", ratio.min()), ("max", ratio.max())):
        c.close(value, metrics[f"actor/ratio_{name}"])
    c.close(ratio.std(correction=0), metrics["actor/ratio_std"])


def test_beyond_the_trust_region_only_the_way_back_is_open():
    logprob = torch.tensor([0.5, 0.5, -0.5, -0.5], requires_grad=True)
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    far, near = torch.full((4,), 0.2), torch.full((4,), 0.05)
    for kl, still in ((far, [False, True, True, False]), (near, [True] * 4)):
        loss, values = kl_trust_region(logprob, torch.zeros(4), advantage, kl, threshold=0.1)
        (gradient,) = torch.autograd.grad(loss.sum(), logprob)
        assert (gradient != 0).tolist() == still
        assert values["actor/unmasked_fraction"].bool().tolist() == still


def test_a_rejected_step_leaves_the_denominator():
    """verl-omni still divides by all steps."""
    c = case("correction", "total_loss/flow_grpo_bypass_rs")
    given = dict(c.inputs)
    old, logprob = given["old_log_prob(=rollout)"], given["log_prob"]
    lower, upper = (float(bound) for bound in given["threshold"].split("_"))
    mask, log_ratio = torch.ones(len(old), 1).bool(), (logprob - old)[:, None]
    kept = rejection_mask(log_ratio, mask, rule=given["rollout_rs"], lower=lower, upper=upper)[:, 0]
    advantage = given["advantages"].clamp(-5, 5)
    loss, values = clipped_surrogate(
        logprob, old, advantage, clip_low=given["clip_ratio"], clip_high=given["clip_ratio"]
    )
    c.close((loss * kept).mean(), c.expected["loss"])
    for name in values.keys() & c.expected["metrics"].keys():
        c.close(values[name].mean(), c.expected["metrics"][name])
    assert kept.tolist() == [True, False, True, True]
    # what is required: three terms; the ratio is to the sampler already, so no weight comes on top
    torch.testing.assert_close(loss[kept].mean(), c.expected["loss"] * 4 / 3)
