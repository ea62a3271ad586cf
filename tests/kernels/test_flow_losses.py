"""Losses of generators by matching and by comparison: published numbers, gradients, closed forms."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import logsigmoid

from burnish.diffusion.losses import awm_logprob, matching_error, negative_aware
from burnish.diffusion.steps import diffuse
from burnish.language.losses import implicit_rewards
from burnish.registry import lookup
from burnish.rl.advantages import optimality
from burnish.rl.preference import centred_distillation, diffusion_dpo, group_preference, hold_clipped
from burnish.rl.surrogates import squared_distance
from burnish.types.rollout import Steps
from tests.conformance import case, cases


class Terms(SimpleNamespace):
    """Terms [M] of a case; what it doesn't hold is not read."""

    streams = ()

    def __len__(self) -> int:
        return len(self.target)


def forward_terms(target: Tensor, **given: Tensor) -> Any:
    unread = torch.zeros(len(target))
    names = ("conditioning", "atom", "clean", "state", "time", "value")
    return Terms(target=target, share=torch.ones(len(target)), kl_factor=[1.0], **dict.fromkeys(names, unread) | given)


def roles_that_say(policy: Tensor, reference: Tensor, old: Tensor | None = None) -> Any:
    def says(velocity: Tensor | None) -> Any:
        return lambda *asked, **guidance: velocity

    return SimpleNamespace(
        policy=says(policy), reference=says(reference), is_policy=lambda name: False,
        lagged=lambda name: says(reference if name == "reference" else old),
    )  # fmt: skip


def by_name(name: str, part: Any, roles: Any, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean loss of the algorithm that a recipe names, and the means of what it reports."""
    loss = lookup("flow algorithm", name)(**options).loss(part, roles)
    return loss.total / len(part), {key: total / count for key, (total, count) in loss.metrics.items()}


def test_distillation_by_velocity():
    c = case("losses", "loss/distill_fm_mse")
    student, teacher = c.inputs["noise_pred"], c.inputs["teacher_noise_pred"]
    unread: Any = torch.zeros(len(student))
    part = Steps(
        conditioning=unread, state=student, next_state=student, time=unread, time_next=unread,
        logprob=unread, stream_logprob=unread, share=torch.ones(len(student)), stream_share=unread, time_max=1.0,
    )  # fmt: skip
    roles: Any = SimpleNamespace(policy=lambda *asked: student, teachers=[lambda *asked: teacher])
    loss = lookup("flow algorithm", "distill")().loss(part, roles)
    c.close(loss.total / len(part), c.expected["loss"])
    total, count = loss.metrics["actor/distill_fm_mse_loss"]
    c.close(total / count, c.expected["metrics"]["actor/distill_fm_mse_loss"])


WEIGHTINGS = {"Uniform": "uniform", "t": "t", "t**2": "t2", "huber": "huber", "ghuber": "ghuber"}


@pytest.mark.parametrize("c", cases("losses", "loss/diffusion_nft/"), ids=lambda c: c.id)
def test_negative_aware_of_verl_omni(c):
    given, expected = c.inputs, c.expected
    velocity = given["forward_prediction"].clone().requires_grad_()
    part = forward_terms(
        velocity, clean=given["x0"], state=given["xt"], time=given["t"].flatten(), value=given["reward_prob"]
    )
    roles = roles_that_say(velocity, given["ref_forward_prediction"], given["old_prediction"])
    total, values = by_name(
        "diffusion_nft", part, roles, beta=given["mix_beta"], adaptive_min=given["adaptive_weight_min"],
        advantage_clip=given["adv_clip_max"], kl_coef=given["ref_kl_coef"],
    )  # fmt: skip
    c.close(total, expected["loss"])
    c.close(torch.autograd.grad(total, velocity)[0], expected["grad_forward_prediction"])
    for name in values.keys() & expected["metrics"].keys():
        c.close(values[name], expected["metrics"][name])
    assert values.keys() >= {"actor/positive_loss", "actor/negative_loss"}


@pytest.mark.parametrize("c", cases("losses", "loss/nft_official"), ids=lambda c: c.id)
def test_negative_aware_of_the_authors(c):
    given = {name: torch.tensor(v) if isinstance(v, list) else v for name, v in c.inputs.items()}
    good = optimality(given["advantages"], given["adv_clip_max"], "continuous")
    c.close(good, c.expected["r"])
    velocity = given["v_new"].clone().requires_grad_()
    part = forward_terms(
        velocity, clean=given["x0"], state=diffuse(given["x0"], given["noise"], given["t"]), time=given["t"], value=good
    )
    total, values = by_name(
        "diffusion_nft", part, roles_that_say(velocity, given["v_ref"], given["v_old"]),
        beta=given["nft_beta"], advantage_clip=given["adv_clip_max"], kl_coef=given["kl_beta"],
    )  # fmt: skip
    c.close(values["actor/positive_loss"], torch.tensor(c.expected["positive_loss"]).mean())
    c.close(values["actor/negative_loss"], torch.tensor(c.expected["negative_loss"]).mean())
    c.close(total, c.expected["loss"])
    c.close(torch.autograd.grad(total, velocity)[0], c.expected["grad_v_new"])


def test_a_squared_error_is_divided_by_no_less_than_a_floor():
    a, b = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0))
    plain = matching_error(a, b)
    for floor, divisor in ((10.0, 10.0), (1e-5, (a - b).abs().mean(1))):
        torch.testing.assert_close(matching_error(a, b, adaptive=True, floor=floor), plain / divisor)
        loss, *parts = negative_aware(a, a, b, a, torch.zeros(3), torch.ones(3), beta=0.5, floor=floor)
        torch.testing.assert_close((loss, *parts), (2 * plain / divisor, plain / divisor, plain / divisor))


@pytest.mark.parametrize("c", cases("losses", "loss/awm_logprob_"), ids=lambda c: c.id)
def test_logprob_of_advantage_weighted_matching(c):
    given = {name: torch.tensor(v) if isinstance(v, list) else v for name, v in c.inputs.items()}
    got = awm_logprob(
        given["v"], given["noise"] - given["x0"], given["t"],
        weighting=WEIGHTINGS[given["weighting"]], power=given["ghuber_power"],
    )  # fmt: skip
    c.close(got, c.expected["log_prob"])
    c.close(got, c.expected["flow_factory_log_prob"])


@pytest.mark.parametrize("weighting", WEIGHTINGS.values())
def test_a_perfect_prediction_has_logprob_0_and_a_finite_gradient_and_every_error_less(weighting):
    target, time = torch.randn(6, 4), torch.linspace(0.0, 1, 6)
    options = {"weighting": weighting, "power": 0.25}
    perfect = awm_logprob(velocity := target.clone().requires_grad_(), target, time, **options)
    torch.testing.assert_close(perfect.detach(), torch.zeros(6), rtol=0, atol=1e-5)
    assert torch.autograd.grad(perfect.sum(), velocity)[0].isfinite().all()
    assert gradcheck(lambda v: awm_logprob(v, target, time, **options), (target + 0.1).double().requires_grad_())
    scores = [awm_logprob(target + size, target, time, **options)[1:] for size in (0.1, 0.5, 2.0)]
    assert (scores[0] < 0).all()
    assert (scores[1] < scores[0]).all()
    assert (scores[2] < scores[1]).all()


def interleaved(values: torch.Tensor) -> torch.Tensor:
    return torch.stack(values.chunk(2), 1).flatten(0, 1)


@pytest.mark.parametrize("c", cases("losses", "loss/diffusion_dpo/"), ids=lambda c: c.id)
def test_pairs_of_verl_omni(c):
    given, expected = c.inputs, c.expected
    velocity = given["model_noise_pred"].clone().requires_grad_()
    part, roles = forward_terms(given["noise"] - given["latent"]), roles_that_say(velocity, given["ref_noise_pred"])
    loss, values = by_name("diffusion_dpo", part, roles, beta=given["dpo_beta"])
    loss = 2 * loss  # a mean over pairs, not over rows
    c.close(loss, expected["loss"])
    c.close(torch.autograd.grad(loss, velocity)[0], expected["grad_model_noise_pred"])
    shared = values.keys() & expected["metrics"].keys()
    for name in shared:
        c.close(values[name], expected["metrics"][name])
    assert len(shared) == 5


def test_pairs_of_the_authors():
    c = case("losses", "loss/dpo_flow_grpo")
    given = {name: torch.tensor(value) for name, value in c.inputs.items()}
    velocity = given["v"].clone().requires_grad_()
    target = given["noise"] - given["latents"]
    part, roles = forward_terms(interleaved(target)), roles_that_say(interleaved(velocity), interleaved(given["v_ref"]))
    loss, values = by_name("diffusion_dpo", part, roles, beta=float(given["beta"]))
    c.close(2 * loss, c.expected["loss"])
    c.close(values["rewards/margins"], torch.tensor(c.expected["inside_term"]).mean())
    c.close(torch.autograd.grad(2 * loss, velocity)[0], c.expected["grad_v"])
    c = case("losses", "loss/dpo_salesforce")
    given = {
        name: interleaved(torch.tensor(value)) if value is not c.inputs["beta"] else value
        for name, value in c.inputs.items()
    }
    roles = roles_that_say(given["pred"], given["ref_pred"])
    loss, _ = by_name("diffusion_dpo", forward_terms(given["target"]), roles, beta=float(given["beta"]))
    c.close(2 * loss, c.expected["loss"])


def test_a_group_of_two_is_a_pair():
    error, reference = torch.rand(4), torch.rand(4)
    advantage, group = torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.tensor([7, 7, 3, 3])
    loss, values = group_preference(error, reference, advantage, group, beta=50.0)
    pair, reported = diffusion_dpo(error[::2], error[1::2], reference[::2], reference[1::2], beta=50.0)
    torch.testing.assert_close(50 * loss, pair.flip(0))  # groups in rising order of ids
    torch.testing.assert_close(-logsigmoid(values["rewards/margins"]), 50 * loss)
    for one in (values, reported):
        assert torch.equal(one["actor/implicit_acc"], (one["rewards/margins"] > 0).float())


def test_clipping_of_dgpo():
    c = case("losses", "loss/dgpo_clip_mask")
    given = {name: torch.tensor(value) for name, value in c.inputs.items()}
    velocity = given["v"].clone().requires_grad_()
    error, old = squared_distance(velocity, given["v_target"]), squared_distance(given["v_old"], given["v_target"])
    held, which = hold_clipped(error, old, given["advantages"], clip=float(given["clip_range"]))
    c.close((old - error).exp(), c.expected["ratio"])
    assert which.tolist() == [bool(v) for v in c.expected["should_clip"]]
    assert torch.equal(held, error)
    assert not held.requires_grad or (torch.autograd.grad(held.sum(), velocity)[0] == 0).all()

    old, advantage = torch.ones(6), torch.tensor([1.0, -1.0, 0.0]).repeat(2)
    error = torch.tensor([0.5] * 3 + [1.5] * 3, requires_grad=True)  # better and worse than the old policy
    held, which = hold_clipped(error, old, advantage, clip=0.1)
    assert which.tolist() == [True, False, False, False, True, True]
    assert torch.autograd.grad(held.sum(), error)[0].tolist() == [0, 1, 1, 1, 0, 0], "the way back is open"


@pytest.mark.parametrize("c", cases("losses", "loss/crd_"), ids=lambda c: c.id)
def test_centred_distillation(c):
    given = c.inputs
    temperature = given["weight_temp"] if given["weight_temp"] > 0 else None
    loss = centred_distillation(
        torch.tensor(given["r_theta"]), torch.tensor(given["adv01"]), torch.zeros(4).long(),
        beta=given["crd_beta"], temperature=temperature, kind=given["loss"],
    )  # fmt: skip
    c.close(loss.mean(), c.expected["loss"])


def test_huge_errors_stay_finite():
    error = torch.tensor([1e6, 0.0], requires_grad=True)
    loss, _ = diffusion_dpo(error[:1], error[1:], torch.zeros(1), torch.zeros(1), beta=5000.0)
    assert loss.isfinite().all()
    assert torch.autograd.grad(loss.sum(), error)[0].isfinite().all()
    held, _ = hold_clipped(error, error.detach().flip(0), torch.ones(2), clip=0.1)
    assert held.isfinite().all()


@pytest.mark.parametrize("c", cases("losses", "omni_dpo/"), ids=lambda c: c.id)
def test_preference_of_sequences(c):
    given, kind = c.inputs, c.id.split("/")[1]
    smoothing = {"label_smoothing": given["label_smoothing"]} if kind == "sigmoid" else {}
    made = lookup("language algorithm", {"sigmoid": "dpo"}.get(kind, kind))(beta=given["beta"], **smoothing)
    won, lost = (given[f"pi_{which}"] - given[f"ref_{which}"] for which in ("chosen", "rejected"))
    loss, values = made.preferred(won, lost, torch.zeros(len(won)))[0], implicit_rewards(won, lost, beta=given["beta"])
    c.close(loss.mean(), c.expected["loss"])
    names = {"chosen": "chosen_rewards", "rejected": "rejected_rewards", "margins": "reward_margin",
             "accuracies": "reward_accuracy"}  # fmt: skip
    for ours, theirs in names.items():
        c.close(values[f"rewards/{ours}"].mean(), c.expected["metrics"][theirs])


def test_groups_know_nothing_of_each_other():
    g = torch.Generator().manual_seed(0)
    error, reference, advantage = torch.rand(3, 12, generator=g)
    group = torch.randint(3, (12,), generator=g)
    whole, _ = group_preference(error, reference, advantage, group, beta=10.0)
    for i in range(3):
        rows = group == i
        alone, _ = group_preference(error[rows], reference[rows], advantage[rows], group[rows], beta=10.0)
        torch.testing.assert_close(alone[0], whole[i])
