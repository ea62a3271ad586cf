"""Losses on comparisons: reference numbers, closed forms, and independence of what is compared elsewhere."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import logsigmoid

from burnish.losses.kl import squared_distance
from burnish.losses.preference import (
    centred_distillation,
    diffusion_dpo,
    group_preference,
    hold_clipped,
    preference_loss,
)
from burnish.registry import lookup
from tests.conformance import case, cases
from tests.support.published_terms import by_name, forward_terms, roles_that_say


def interleaved(values: torch.Tensor) -> torch.Tensor:
    """Winners, then losers, as rows of pairs."""
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


def test_pairs_of_flow_grpo():
    c = case("losses", "loss/dpo_flow_grpo")
    given = {name: torch.tensor(value) for name, value in c.inputs.items()}
    velocity = given["v"].clone().requires_grad_()
    target = given["noise"] - given["latents"]
    part, roles = forward_terms(interleaved(target)), roles_that_say(interleaved(velocity), interleaved(given["v_ref"]))
    loss, values = by_name("diffusion_dpo", part, roles, beta=float(given["beta"]))
    c.close(2 * loss, c.expected["loss"])
    c.close(values["rewards/margins"], torch.tensor(c.expected["inside_term"]).mean())
    c.close(torch.autograd.grad(2 * loss, velocity)[0], c.expected["grad_v"])


def test_pairs_of_the_authors():
    c = case("losses", "loss/dpo_salesforce")
    given = {name: torch.tensor(value) for name, value in c.inputs.items()}
    part = forward_terms(interleaved(given["target"]))
    roles = roles_that_say(interleaved(given["pred"]), interleaved(given["ref_pred"]))
    loss, _ = by_name("diffusion_dpo", part, roles, beta=float(given["beta"]))
    c.close(2 * loss, c.expected["loss"])


@pytest.mark.parametrize("c", cases("losses", "omni_dpo/"), ids=lambda c: c.id)
def test_preference_of_sequences(c):
    given, kind = c.inputs, c.id.split("/")[1]
    made = lookup("language algorithm", {"sigmoid": "dpo"}.get(kind, kind))(beta=given["beta"])
    if kind == "sigmoid":
        made = replace(made, label_smoothing=given["label_smoothing"])
    sides = [given[f"{who}_{which}"] for who in ("pi", "ref") for which in ("chosen", "rejected")]
    loss, values = made.preferred(*sides, torch.zeros(len(sides[0])))
    c.close(loss.mean(), c.expected["loss"])
    names = {"chosen": "chosen_rewards", "rejected": "rejected_rewards", "margins": "reward_margin",
             "accuracies": "reward_accuracy"}  # fmt: skip
    for ours, theirs in names.items():
        c.close(values[f"rewards/{ours}"].mean(), c.expected["metrics"][theirs])


def test_without_a_difference_to_the_reference_a_pair_is_undecided():
    error = torch.rand(2, 3)
    loss, values = diffusion_dpo(*error, *error, beta=2000.0)
    torch.testing.assert_close(loss, torch.full((3,), 2.0).log())
    assert (values["rewards/margins"] == 0).all()
    assert (values["actor/implicit_acc"] == 0).all()


def test_smoothed_labels_are_least_where_the_policy_is_as_sure():
    """Conservative DPO: at smoothing s the loss is least where the policy prefers the winner with 1 - s."""
    margin = torch.linspace(-6, 6, 2001)
    loss = preference_loss(margin, beta=1.0, label_smoothing=0.2)
    torch.testing.assert_close(margin[loss.argmin()].sigmoid(), torch.tensor(0.8), rtol=0, atol=2e-3)


def test_ipo_is_least_at_its_target():
    margin = torch.linspace(-6, 6, 1201)
    assert margin[preference_loss(margin, beta=0.25, kind="ipo").argmin()] == pytest.approx(2.0, abs=6e-3)


def test_a_group_of_two_is_a_pair():
    error, reference = torch.rand(4), torch.rand(4)
    advantage, group = torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.tensor([7, 7, 3, 3])
    loss, values = group_preference(error, reference, advantage, group, beta=50.0)
    pair, _ = diffusion_dpo(error[::2], error[1::2], reference[::2], reference[1::2], beta=50.0)
    torch.testing.assert_close(50 * loss, pair.flip(0))  # groups in rising order of ids
    torch.testing.assert_close(-logsigmoid(values["rewards/margins"]), 50 * loss)


def test_groups_know_nothing_of_each_other_and_their_order():
    g = torch.Generator().manual_seed(0)
    error, reference, advantage = torch.rand(3, 12, generator=g)
    group = torch.randint(3, (12,), generator=g)
    whole, _ = group_preference(error, reference, advantage, group, beta=10.0)
    order = torch.randperm(12, generator=g)
    mixed, _ = group_preference(error[order], reference[order], advantage[order], group[order], beta=10.0)
    torch.testing.assert_close(whole, mixed)
    for i in range(3):
        rows = group == i
        alone, _ = group_preference(error[rows], reference[rows], advantage[rows], group[rows], beta=10.0)
        torch.testing.assert_close(alone[0], whole[i])


@pytest.mark.parametrize("beta", [10.0, 100.0])
def test_the_gradient_of_a_group_is_that_of_the_authors(beta):
    """They weight each error by its advantage and by how wrong the group is; beta is in that weight alone."""
    g = torch.Generator().manual_seed(0)
    error, reference, advantage = (torch.rand(12, generator=g) for _ in range(3))
    advantage, group, size = advantage - 0.5, torch.arange(12) // 4, 4
    error.requires_grad_()
    loss, _ = group_preference(error, reference, advantage, group, beta=beta)
    (gradient,) = torch.autograd.grad(loss.mean(), error)
    wrong = (beta * advantage * (error.detach() - reference) / size).view(3, size).sum(1).sigmoid()
    weighted = (wrong.repeat_interleave(size) * advantage * error).mean()
    torch.testing.assert_close(gradient, torch.autograd.grad(weighted, error)[0])


def test_beta_does_not_change_how_hard_an_undecided_group_is_pushed():
    """Where the policy is the reference the gradient is A / 2 to each error: a KL beside it keeps its worth."""
    error = torch.rand(4, requires_grad=True)
    advantage, group = torch.tensor([1.0, -1.0, 0.5, -0.5]), torch.zeros(4).long()
    for beta in (1.0, 100.0):
        loss, _ = group_preference(error, error.detach(), advantage, group, beta=beta)
        torch.testing.assert_close(torch.autograd.grad(loss.sum(), error)[0], advantage / 8)


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


def test_clipping_leaves_the_way_back_open():
    old, advantage = torch.ones(4), torch.tensor([1.0, -1.0, 1.0, -1.0])
    error = torch.tensor([0.5, 0.5, 1.5, 1.5], requires_grad=True)  # better and worse than the old policy
    held, which = hold_clipped(error, old, advantage, clip=0.1)
    assert which.tolist() == [True, False, False, True]
    assert torch.autograd.grad(held.sum(), error)[0].tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("c", cases("losses", "loss/crd_"), ids=lambda c: c.id)
def test_centred_distillation(c):
    given = c.inputs
    temperature = given["weight_temp"] if given["weight_temp"] > 0 else None
    loss = centred_distillation(
        torch.tensor(given["r_theta"]), torch.tensor(given["adv01"]), torch.zeros(4).long(),
        beta=given["crd_beta"], temperature=temperature, kind=given["loss"],
    )  # fmt: skip
    c.close(loss.mean(), c.expected["loss"])


@pytest.mark.parametrize("temperature", [None, 0.5])
@pytest.mark.parametrize("kind", ["bce", "mse"])
def test_centring_hides_what_a_prompt_adds_to_all_its_samples(temperature, kind):
    g = torch.Generator().manual_seed(1)
    implicit, target = torch.randn(2, 10, generator=g)
    group = torch.randint(3, (10,), generator=g)
    options = {"temperature": temperature, "kind": kind}
    shifted = centred_distillation(implicit + group, target - 2.0 * group, group, **options)
    torch.testing.assert_close(shifted, centred_distillation(implicit, target, group, **options))
    for i in range(3):
        rows = group == i
        alone = centred_distillation(implicit[rows], target[rows], group[rows], **options)
        torch.testing.assert_close(alone, centred_distillation(implicit, target, group, **options)[rows])


def test_centred_distillation_is_nothing_where_rewards_agree():
    target, group = torch.rand(6), torch.tensor([0, 0, 0, 1, 1, 1])
    loss = centred_distillation(0.5 * target + group, target, group, beta=2.0, kind="mse")
    torch.testing.assert_close(loss, torch.zeros(6), rtol=0, atol=1e-10)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_is_positive(temperature):
    with pytest.raises(ValueError, match="temperature"):
        centred_distillation(torch.rand(2), torch.rand(2), torch.zeros(2), temperature=temperature)


def test_nothing_to_compare():
    empty = torch.zeros(0)
    assert diffusion_dpo(empty, empty, empty, empty, beta=1.0)[0].shape == (0,)
    assert group_preference(empty, empty, empty, empty.long(), beta=1.0)[0].shape == (0,)
    assert centred_distillation(empty, empty, empty.long(), temperature=0.5).shape == (0,)


def test_huge_errors_stay_finite():
    error = torch.tensor([1e6, 0.0], requires_grad=True)
    loss, _ = diffusion_dpo(error[:1], error[1:], torch.zeros(1), torch.zeros(1), beta=5000.0)
    assert loss.isfinite().all()
    assert torch.autograd.grad(loss.sum(), error)[0].isfinite().all()
    held, _ = hold_clipped(error, error.detach().flip(0), torch.ones(2), clip=0.1)
    assert held.isfinite().all()
