"""Losses of tokens and responses besides the surrogates: value, balance, entropy, KL, preferences, reward models."""

import math

import pytest
import torch
from torch.nn.functional import kl_div, logsigmoid

from burnish.language import losses
from burnish.language.spans import Aligned, align, spelled, summed
from burnish.registry import lookup
from burnish.rl.kl import KlController, kl_estimate
from burnish.rl.preference import another_success, preference_loss
from burnish.rl.surrogates import (
    divergence,
    gaussian_kl,
    hybrid_divergence,
    sampled_advantage,
    squared_distance,
    with_rest,
)
from tests.conformance import case
from tests.support.token_losses import assert_gradient, batch, mask_of, spoil


def test_kl():
    for name, other in (("loss/kl", "ref_prev_sample_mean"), ("loss/distill_kl", "teacher_prev_sample_mean")):
        c = case("losses", name)
        mean = c.inputs["prev_sample_mean"].clone().requires_grad_()
        kl = gaussian_kl(mean, c.inputs[other], c.inputs["std_dev_t"].flatten()).mean()
        c.close(kl, c.expected["loss"])
        c.close(torch.autograd.grad(kl, mean)[0], c.expected["grad"])
    c = case("losses", "loss/flow_factory_kl_x-based")
    kl = squared_distance(torch.tensor(c.inputs["a"]), torch.tensor(c.inputs["b"]))
    c.close(kl.mean(), c.expected["kl_div"])


KINDS = ["k1", "k2", "k3", "k1+", "k3+", "unbiased"]


def distributions():
    torch.manual_seed(0)
    policy, reference, sampler = torch.randn(3, 6, dtype=torch.float64).mul(0.7)
    return policy.requires_grad_(), reference.log_softmax(-1), sampler.log_softmax(-1)


def expected(kind: str, logits, reference, sampler):
    """What the estimate is on average, drawn from the sampler; gradients go through the estimate only."""
    logprob, every = logits.log_softmax(-1)[None], torch.ones(1, 6, dtype=torch.bool)
    old = sampler[None] if kind == "unbiased" else None
    estimate = kl_estimate(logprob, reference[None], every, kind, old=old)
    return (sampler.exp() * estimate[0]).sum()


def exact(logits, reference):
    logprob = logits.log_softmax(-1)
    return (logprob.exp() * (logprob - reference)).sum()


@pytest.mark.parametrize(("kind", "value", "gradient"), [
    ("k1", True, False), ("k2", False, True), ("k3", True, False), ("k1+", True, True), ("k3+", True, True),
    ("unbiased", True, True),
])  # fmt: skip
def test_what_an_estimate_is_good_for(kind, value, gradient):
    """On the policy's own samples: right in value, in gradient, or in both."""
    logits, reference, _ = distributions()
    own = logits.detach().log_softmax(-1)
    estimate, true = expected(kind, logits, reference, own), exact(logits, reference)
    assert torch.allclose(estimate, true) == value
    slopes = [torch.autograd.grad(total, logits)[0] for total in (estimate, true)]
    assert torch.allclose(*slopes, atol=1e-9) == gradient


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rubbish", [math.nan, math.inf, -math.inf])
def test_rubbish_in_padding_is_nothing(kind, rubbish):
    logprob, reference, _, mask = batch()
    leaf = spoil(logprob, mask, rubbish).requires_grad_()
    old = spoil(logprob, mask, rubbish) if kind == "unbiased" else None
    kl = kl_estimate(leaf, spoil(reference, mask, rubbish), mask, kind, old=old)
    assert kl.isfinite().all()
    assert not kl[~mask].any()
    assert torch.autograd.grad(kl.sum(), leaf)[0].isfinite().all()


@pytest.mark.parametrize("kind", ["k3", "k3+"])
def test_k3_counts_no_further_than_ten(kind):
    """Values and gradients below that bound are those of the formula; above it verl's clamp is followed."""
    logprob = torch.tensor([[-1.0, -3.0, -9.0, -0.1]], requires_grad=True)
    reference, mask = torch.tensor([[-1.5, -1.0, -1.0, -30.0]]), torch.ones(1, 4, dtype=torch.bool)
    kl = kl_estimate(logprob, reference, mask, kind)
    d = (logprob - reference).detach().clamp(-20, 20)
    torch.testing.assert_close(kl.detach(), ((-d).exp() - 1 + d).clamp(max=10))
    assert kl[0, 2] == kl[0, 3] == 10
    (slope,) = torch.autograd.grad(kl.sum(), logprob)
    beyond = d[:, 2:] if kind == "k3+" else torch.zeros(1, 2)
    torch.testing.assert_close(slope[0, 2], beyond[0, 0])


def test_a_controller_leaves_out_what_is_no_number_and_goes_on_where_it_was():
    control = KlController(0.1, target=0.5, horizon=1000)
    for bad in (math.nan, math.inf):
        control.update(bad, 256)
    assert control.coef == 0.1, "a KL that is no number says nothing"
    control.update(5.0, 256)
    other = KlController(0.1, target=0.5, horizon=1000)
    other.load_state_dict(control.state_dict())
    assert other.coef == control.coef != 0.1
    fixed = KlController(0.2)
    fixed.update(5.0, 256)
    fixed.load_state_dict(control.state_dict())
    assert fixed.coef == 0.2, "without a target it is that of the options"


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_value_loss_and_padding(clip):
    value, old, returns, mask = batch()
    assert_gradient(lambda at: losses.value_loss(at, old, returns, mask, clip=clip)[0].sum(), value)
    clean = losses.value_loss(value, old, returns, mask, clip=clip)
    spoilt = spoil(value, mask, math.nan).requires_grad_()
    got = losses.value_loss(spoilt, spoil(old, mask, math.inf), spoil(returns, mask, math.nan), mask, clip=clip)
    torch.testing.assert_close(got, clean, rtol=0, atol=0)
    assert torch.autograd.grad(got[0].sum(), spoilt)[0].isfinite().all()


def test_what_moved_too_far_towards_the_return_has_no_gradient():
    value = torch.tensor([[1.0, -1.0, 0.1]], requires_grad=True)
    returns = torch.full((1, 3), 2.0)
    loss, values = losses.value_loss(value, torch.zeros(1, 3), returns, mask_of([3], 3), clip=0.2)
    torch.testing.assert_close(loss, torch.tensor([[1.8**2, 3.0**2, 1.9**2]]) / 2)
    assert (torch.autograd.grad(loss.sum(), value)[0] != 0).tolist() == [[False, True, True]]
    assert values["critic/vf_clipfrac"].tolist() == [[1, 0, 0]]


EXPERTS, LAYERS, TOP = 6, 3, 2


def test_experts_balance_is_transformers_loss():
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    torch.manual_seed(0)
    logits = [torch.randn(20, EXPERTS).requires_grad_() for _ in range(LAYERS)]
    expected, own = load_balancing_loss_func(tuple(logits), EXPERTS, TOP), losses.load_balancing(logits, TOP)
    torch.testing.assert_close(own, expected)
    torch.testing.assert_close(torch.autograd.grad(own, logits), torch.autograd.grad(expected, logits))


def test_one_threshold_over_the_batch():
    """The fifth of all chosen tokens, wherever they are: here both in one sequence."""
    values = torch.tensor([[9.0, 8.0, 1.0, 1.5, 2.0], [3.0, 4.0, 5.0, 0.5, 0.1]])
    mask = torch.ones(2, 5, dtype=torch.bool)
    assert losses.high_entropy_mask(values, mask, 0.2).nonzero().tolist() == [[0, 0], [0, 1]]
    assert losses.high_entropy_mask(values, mask, 0.2, per="sequence").nonzero().tolist() == [[0, 0], [1, 2]]


def test_ties_are_treated_alike_and_everything_is_chosen_by_nothing_and_by_all():
    values, mask = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]]), torch.ones(1, 5, dtype=torch.bool)
    assert losses.high_entropy_mask(values, mask, 0.4).tolist() == [[False, True, True, True, False]]
    for fraction in (0.0, 1.0, 2.0):
        assert losses.high_entropy_mask(torch.rand(4, 5), mask_of(), fraction).equal(mask_of())


def test_the_mean_of_covariances_is_the_covariance():
    draw = torch.Generator().manual_seed(0)
    logprob, advantage = torch.randn(4, 6, generator=draw), torch.randn(4, 6, generator=draw)
    mask = torch.rand(4, 6, generator=draw) < 0.7
    found = losses.covariance(logprob.masked_fill(~mask, torch.nan), advantage, mask)
    assert not found[~mask].any()
    expected = torch.cov(torch.stack([logprob[mask], advantage[mask]]), correction=0)[0, 1]
    torch.testing.assert_close(found.sum() / mask.sum(), expected)
    each = (logprob - logprob[mask].mean()) * (advantage - advantage[mask].mean())
    torch.testing.assert_close(found[mask], each[mask])


PAIR = torch.tensor([[-10.0, -12.0, -8.0], [-11.0, -11.5, -9.0], [-10.5, -12.5, -8.0], [-10.0, -11.0, -9.5]]).double()
MARGIN = PAIR[0] - PAIR[2] - (PAIR[1] - PAIR[3])


def test_a_smoothed_label_is_a_mixture_of_both_orders():
    right, wrong = preference_loss(MARGIN, beta=0.3), preference_loss(-MARGIN, beta=0.3)
    torch.testing.assert_close(preference_loss(MARGIN, beta=0.3, label_smoothing=0.1), 0.9 * right + 0.1 * wrong)


def test_kto_weighs_two_kinds_of_samples():
    logprob, reference, desirable = PAIR[0], PAIR[2], torch.tensor([True, False, True])
    point = torch.tensor(0.3, dtype=torch.float64)
    loss, values = losses.kto(
        logprob, reference, desirable, point, beta=0.5, desirable_weight=2.0, undesirable_weight=3.0
    )
    ahead = torch.tensor([0.5 * (0.5 - 0.3), 0.5 * (0.3 - 0.5), 0.5 * (0.0 - 0.3)], dtype=torch.float64)
    torch.testing.assert_close(loss, torch.tensor([2.0, 3.0, 2.0]).double() * (1 - ahead.sigmoid()))
    assert values["rewards/chosen"].isnan().tolist() == [False, True, False]
    assert values["rewards/rejected"].isnan().tolist() == [True, False, True]
    assert_gradient(lambda at: losses.kto(at, reference, desirable, point, beta=0.5)[0].sum(), logprob)


def test_the_reference_point_is_never_negative():
    torch.testing.assert_close(losses.kto_reference_point(PAIR[0] - PAIR[2]).item(), 1 / 3)
    assert losses.kto_reference_point(PAIR[2] - PAIR[0]) == 0


def test_simpo_is_the_likelihood_per_token_with_a_margin():
    chosen, rejected = torch.tensor([-0.5, -2.0]), torch.tensor([-1.0, -0.5])
    loss = losses.simpo(chosen, rejected, beta=2.0, margin=1.0)
    torch.testing.assert_close(loss, -torch.sigmoid(torch.tensor([0.0, -4.0])).log())
    assert losses.implicit_rewards(chosen, rejected, beta=2.0)["rewards/accuracies"].tolist() == [1.0, 0.0]


def test_orpo_is_the_ratio_of_odds():
    chosen, rejected = torch.tensor([0.6, 0.2]), torch.tensor([0.3, 1 - 1e-9])
    ratio = (0.6 / 0.4) / (0.3 / 0.7)
    loss = losses.orpo(chosen.log(), rejected.log())
    torch.testing.assert_close(loss[0].item(), math.log(1 + 1 / ratio))
    assert loss[1] > 10, "certain of the wrong one, which stays finite"
    assert_gradient(lambda at: losses.orpo(at, rejected.double().log()).sum(), chosen.double().log())


def test_bco_judges_each_response_by_itself():
    loss = losses.bco(torch.tensor([1.0]), torch.tensor([-2.0]), beta=0.5, shift=torch.tensor(0.1))
    expected = -torch.sigmoid(torch.tensor(0.5 - 0.1)).log() - torch.sigmoid(torch.tensor(-(-1.0 - 0.1))).log()
    torch.testing.assert_close(loss, expected[None])


def test_ties_are_as_the_papers_write_them():
    first, second, theta, nu = math.exp(0.7), 1.0, 5.0, 0.3
    won, tie, _ = losses.log_outcomes(torch.tensor(0.7), ties="rao_kupper", strength=theta)
    assert won.exp() == pytest.approx(first / (first + theta * second))
    both = (first + theta * second) * (theta * first + second)
    assert tie.exp() == pytest.approx((theta**2 - 1) * first * second / both)
    won, tie, _ = losses.log_outcomes(torch.tensor(0.7), ties="davidson", strength=nu)
    whole = first + second + nu * math.sqrt(first * second)
    assert won.exp() == pytest.approx(first / whole)
    assert tie.exp() == pytest.approx(nu * math.sqrt(first * second) / whole)


def test_a_comparison_is_what_was_preferred_with_its_margin():
    first, second = torch.tensor([1.0, 1.0, 1.0, 1.0]), torch.tensor([0.2, 0.2, 0.2, 0.2])
    outcome = torch.tensor([1.0, -1.0, math.nan, 1.0])
    loss = losses.comparison(first, second, outcome, torch.tensor([0.0, 0.0, 9.0, 0.5]), center=0.1)
    expected = -logsigmoid(torch.tensor([0.8, -0.8, 0.0, 0.3])) + 0.1 * 1.2**2
    torch.testing.assert_close(loss[[0, 1, 3]], expected[[0, 1, 3]])
    assert loss[2] == 0


def test_what_nobody_labelled_has_no_gradient():
    score = torch.tensor([1.0, 2.0], requires_grad=True)
    target = torch.tensor([0.25, math.nan])
    for kind in ("mse", "bce"):
        loss = losses.regression(score, target, kind=kind)
        (gradient,) = torch.autograd.grad(loss.sum(), score)
        assert gradient[1] == 0
        assert gradient[0] == pytest.approx(2 * 0.75 if kind == "mse" else float(torch.tensor(1.0).sigmoid()) - 0.25)
    outcome = torch.tensor([math.nan, 0.0])
    loss = losses.comparison(score, -score, outcome, torch.zeros(2), ties="rao_kupper")
    assert torch.autograd.grad(loss.sum(), score)[0][0] == 0


def test_a_sample_is_shown_the_first_other_success_of_its_group():
    reward, group = torch.tensor([1.0, 0.0, 2.0, 0.0, 1.0, 5.0]), torch.tensor([0, 0, 0, 1, 1, 1])
    assert another_success(reward, group, reward > 2, 1.0).tolist() == [2, 0, 0, 4, -1, -1]


def test_experts_are_imitated_by_a_share_that_falls_and_where_the_policy_is_unsure():
    weight = losses.token_weight(torch.tensor([0.1, 0.5, 1.0]).log(), "phi")
    torch.testing.assert_close(weight, torch.tensor([0.09, 0.25, 0.0]))
    chord, turn = lookup("language algorithm", "chord")(mu_decay=4), 0.2 * 2**0.5
    own, mu = zip(*(chord.shares(update, 0.85) for update in range(1, 7)), strict=True)
    assert mu == pytest.approx([0.85, 0.45 + turn, 0.45, 0.45 - turn, 0.05, 0.05])
    assert own == pytest.approx([1 - one for one in mu])


def test_spans_of_two_tokenizers_end_at_the_same_characters():
    """A character of two tokens, what a chat template writes before a response, and what ends it."""
    text = "abc\U0001f600!"
    own = [b"ab", b"c", b"\xf0\x9f", b"\x98\x80", b"!", b""]
    theirs = [b" ", b"a", b"bc", b"\xf0\x9f\x98\x80", b"!", b""]
    reader, other = (
        lambda ids, tokens=tokens: b"".join(tokens[i] for i in ids).decode(errors="replace") for tokens in (own, theirs)
    )
    ids, spans = align(reader, range(6), other, lambda written: range(6) if written == text else [])
    assert align(reader, [5], other, lambda written: [0, 5]) == ([0, 5], []), "nothing but an end"
    assert ids == [*range(6)]
    assert spans == [(range(2), range(1, 3)), (range(2, 4), range(3, 4)), (range(4, 5), range(4, 5))]
    found = Aligned.of([spans], [slice(1, 7)], [10], 7)  # behind a response of one token
    assert found.place.tolist() == [-1, 11, -1, 13, -1, 14, -1]
    assert found.scale.tolist() == [0, 2, 0, 2, 0, 2, 0]
    assert (found.rest.tolist(), found.their_rest.tolist()) == ([[2, 4], [1, 3]], [[12], [1]])
    assert summed(torch.arange(7.0), found.rest, 7).tolist() == [0, 2, 0, 4, 0, 0, 0]


@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_the_sampled_advantage_descends_the_divergence(kind):
    """The expectation over tokens of advantage x grad log s is minus the gradient of the divergence."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(7, generator=draw, dtype=torch.float64).requires_grad_()
    teacher = torch.randn(7, generator=draw, dtype=torch.float64).log_softmax(0)
    student = logits.log_softmax(0)
    worth = sampled_advantage(student, teacher, kind).detach()
    (found,) = torch.autograd.grad((student.exp().detach() * worth * student).sum(), logits, retain_graph=True)
    (exact,) = torch.autograd.grad(divergence(student, teacher, kind), logits)
    torch.testing.assert_close(found, -exact)
    middle = (0.2 * teacher.exp() + 0.8 * student.exp()).log()
    parts = [w * kl_div(middle, side.exp(), reduction="sum") for w, side in ((0.2, teacher), (0.8, student))]
    torch.testing.assert_close(divergence(student, teacher, "jsd", mix=0.2), sum(parts))
    never = torch.tensor([-math.inf, 0.0])
    assert [float(divergence(never, never, one)) for one in (kind, "jsd")] == [0, 0], "what both leave out"
    assert sampled_advantage(never[1] - 5, never[1], kind) == (5 if kind == "reverse" else 19), "a weight of 20 at most"


def test_a_token_is_spelled_with_those_before_it_and_broken_characters_are_not_waited_for():
    words, broken = [" a", " b", " c", " d", " e", " f"], [b"\xf0"] * 4 + [b"a"]
    assert spelled(lambda ids: "".join(words[i] for i in ids)[1:], range(6)) == ("a b c d e f", [1, 3, 5, 7, 9, 11])
    text, ends = spelled(lambda ids: b"".join(broken[i] for i in ids).decode(errors="replace"), range(5))
    assert (text, ends) == ("\ufffd" * 4 + "a", [0, 0, 0, 4, 5])


def test_tokens_that_both_have_are_compared_by_name_and_the_others_by_rank():
    student, teacher = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.25, 0.05, 0.6, 0.1]])
    shared, rest = torch.tensor([[0, 1], [2, 0]]), (torch.tensor([2]), torch.tensor([1, 3]))
    found = hybrid_divergence(student.log(), teacher.log(), shared, *rest, "reverse", weight=0.6)
    alike = 0.5 * math.log(0.5 / 0.6) + 0.3 * math.log(0.3 / 0.25)
    assert float(found) == pytest.approx(0.6 * alike + 0.4 * (0.2 - 0.1 + 0.05))
    turned = hybrid_divergence(teacher.log(), student.log(), shared.flip(0), *rest[::-1], "reverse", weight=0.0)
    assert float(turned) == pytest.approx(0.2 - 0.1 + 0.05)
    torch.testing.assert_close(with_rest(student[:, :2].log()), student.log())
    assert with_rest(student.log()).isfinite().all(), "nothing is left for others"
