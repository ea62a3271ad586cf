"""Algorithms on the forward process, with a linear velocity in place of a network."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from burnish.algorithms.flow.awm import AWM
from burnish.algorithms.flow.crd import CRD
from burnish.algorithms.flow.dgpo import DGPO
from burnish.algorithms.flow.diffusion_dpo import DiffusionDPO
from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.sft import SFT
from tests.support.forward_batches import (
    ALL,
    ALL_NAMES,
    COUNT,
    DIM,
    GROUPS,
    NAMES,
    ONLINE,
    SIZE,
    Linear,
    given,
    scored,
    total,
)


class TestGradients:
    @pytest.mark.parametrize(("algorithm", "batch"), ALL, ids=ALL_NAMES)
    def test_it_is_that_of_the_loss(self, algorithm, batch):
        """Finite differences, but where a weight is held: they would move it, too."""
        if isinstance(algorithm, DiffusionNFT) and algorithm.adaptive_weighting:
            pytest.skip("the adaptive weight has no gradient on purpose; its closed form is tested with the loss")
        if isinstance(algorithm, CRD) or (isinstance(algorithm, DGPO) and algorithm.clip is not None):
            pytest.skip("held averages and held errors have no gradient on purpose")
        roles = Linear()
        total(algorithm, batch, roles)[0].backward()
        step = torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
        with torch.no_grad():
            ends = []
            for sign in (1, -1):
                roles.weight += sign * 1e-6 * step
                ends.append(float(total(algorithm, batch, roles)[0]))
                roles.weight -= sign * 1e-6 * step
        slope = (ends[0] - ends[1]) / 2e-6
        torch.testing.assert_close(float((roles.weight.grad * step).sum()), slope, rtol=1e-4, atol=1e-7)

    def test_crd_by_hand(self):
        algorithm = CRD(beta=2.0, train_timesteps=1, advantage_clip=2.0)
        batch, _ = algorithm.credit(scored())
        part = next(batch.terms(100))
        roles = Linear()
        total(algorithm, batch, roles)[0].backward()
        weight = roles.weight.detach().clone().requires_grad_()
        velocity = part.noisy @ weight + part.time[:, None]
        old = roles.old(part.noisy, part.time, part.conditioning, part.unconditional)
        implicit = (old - part.target).square().mean(1) - (velocity - part.target).square().mean(1)
        ours = implicit.view(GROUPS, SIZE)
        ours = 2.0 * (ours - ours.detach().mean(1, keepdim=True))
        theirs = part.value.view(GROUPS, SIZE)
        theirs = (theirs - theirs.mean(1, keepdim=True)).sigmoid().double()
        functional.binary_cross_entropy_with_logits(ours, theirs).backward()
        torch.testing.assert_close(roles.weight.grad, weight.grad, rtol=1e-5, atol=1e-9)

    def test_at_the_old_policy_awm_follows_the_advantage_weighted_matching_error(self):
        algorithm = AWM(train_timesteps=2)
        batch, _ = algorithm.credit(scored())
        roles = Linear(moved=False)
        total(algorithm, batch, roles)[0].backward()
        weight = roles.weight.detach().clone().requires_grad_()
        part = next(batch.terms(100))
        error = (part.noisy @ weight + part.time[:, None] - part.target).square().mean(1)
        (part.value * error).mean().backward()
        torch.testing.assert_close(roles.weight.grad, weight.grad)
        assert roles.asked["old"] == 0

    def test_advantages_of_awm_reach_to_their_bound_or_to_a_bound_of_their_own(self):
        plain, scaled = (AWM(advantage_clip=5.0, **most).credit(scored())[0] for most in ({}, {"advantage_max": 1.0}))
        torch.testing.assert_close(scaled.value, plain.value / 5)
        assert plain.value.abs().sum() > 0

    def test_dgpo_weighs_groups_by_how_wrong_they_are(self):
        algorithm = DGPO(beta=3.0, clip=None, train_timesteps=1)
        batch, _ = algorithm.credit(scored())
        roles = Linear()
        total(algorithm, batch, roles)[0].backward()
        weight = roles.weight.detach().clone().requires_grad_()
        part = next(batch.terms(100))
        reference = roles.reference(part.noisy, part.time, part.conditioning, part.unconditional)
        error = (part.noisy @ weight + part.time[:, None] - part.target).square().mean(1)
        base = (reference - part.target).square().mean(1)
        difference = (part.value * (error - base)).view(GROUPS, SIZE).mean(1)
        wrong = torch.sigmoid(3.0 * difference.detach())
        (wrong * difference).mean().backward()
        torch.testing.assert_close(roles.weight.grad, weight.grad)

    @pytest.mark.parametrize("clip_kl", [False, True])
    @pytest.mark.parametrize("baseline", ["old", "reference"])
    def test_dgpos_three_modes_by_hand(self, baseline, clip_kl):
        """As its authors': the reference has guidance in the preference and in the KL; the old policy may be its
        baseline instead; and what clip holds may be held in the KL, too."""
        algorithm = DGPO(
            beta=3.0, clip=0.2, kl_coef=0.4, train_timesteps=1, baseline=baseline, clip_kl=clip_kl,
            reference_guidance=2.5,
        )  # fmt: skip
        batch, _ = algorithm.credit(scored())
        part = next(batch.terms(100))
        roles = Linear()
        value, _ = total(algorithm, batch, roles)
        value.backward()
        weight = roles.weight.detach().clone().requires_grad_()

        def error(velocity):
            return (velocity - part.target).square().mean(1)

        asked = (part.noisy, part.time, part.conditioning, part.unconditional)
        velocity, old = part.noisy @ weight + part.time[:, None], roles.old(*asked)
        reference = roles.reference(*asked, guidance=2.5)
        ratio = (error(old) - error(velocity)).exp()
        held = torch.where(part.value > 0, ratio > 1.2, ratio < 0.8)
        assert held.any()
        assert not held.all()
        moved = torch.where(held, error(velocity).detach(), error(velocity))
        base = error(old if baseline == "old" else reference)
        margin = -(part.value * (moved - base)).view(GROUPS, SIZE).mean(1)
        distance = (velocity - reference).square().mean(1)
        if clip_kl:
            distance = torch.where(held, distance.detach(), distance)
        expected = -functional.logsigmoid(3.0 * margin).mean() / 3.0 + 0.4 * distance.mean()
        expected.backward()
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(roles.weight.grad, weight.grad)

    def test_crd_is_scaled_by_its_bound_over_beta(self):
        """As in its code: advantage_clip / beta times (beta r - a)^2, both centred within the group."""
        algorithm = CRD(beta=2.0, matching="mse", train_timesteps=1, advantage_clip=3.0)
        batch, _ = algorithm.credit(scored())
        roles = Linear()
        value, _ = total(algorithm, batch, roles)
        part = next(batch.terms(100))
        asked = (part.noisy, part.time, part.conditioning, part.unconditional)
        errors = [(role(*asked) - part.target).square().mean(1) for role in (roles.old, roles.policy)]
        implicit, target = ((v.view(GROUPS, SIZE) - v.view(GROUPS, SIZE).mean(1, keepdim=True)).flatten()
                            for v in (errors[0] - errors[1], part.value))  # fmt: skip
        torch.testing.assert_close(value, 3.0 / 2.0 * (2.0 * implicit - target).square().mean())


class TestInvariance:
    @pytest.mark.parametrize("size", [1, 3, 8, 13])
    @pytest.mark.parametrize(("algorithm", "batch"), ALL, ids=ALL_NAMES)
    def test_micro_batches_change_nothing(self, algorithm, batch, size):
        whole, cut = Linear(), Linear()
        expected, metrics = total(algorithm, batch, whole)
        got, cut_metrics = total(algorithm, batch, cut, size)
        expected.backward()
        got.backward()
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(cut.weight.grad, whole.weight.grad)
        assert metrics.keys() == cut_metrics.keys()
        for name, value in metrics.items():
            assert cut_metrics[name] == pytest.approx(value), name

    @pytest.mark.parametrize(("algorithm", "batch"), ALL, ids=ALL_NAMES)
    def test_order_changes_nothing(self, algorithm, batch):
        order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(
            total(algorithm, batch.select(order), Linear())[0], total(algorithm, batch, Linear())[0]
        )

    @pytest.mark.parametrize("algorithm", ONLINE, ids=NAMES)
    def test_a_missing_reward_is_as_if_the_sample_were_not_there(self, algorithm):
        absent = (1, 6)
        kept = [i for i in range(COUNT) if i not in absent]
        without, _ = algorithm.credit(scored(missing=absent))
        expected, _ = algorithm.credit(scored().select(kept))
        assert algorithm.size(without) == algorithm.size(expected)
        torch.testing.assert_close(total(algorithm, without, Linear())[0], total(algorithm, expected, Linear())[0])

    def test_the_first_member_may_be_the_missing_one(self):
        """It names the noise of its group nevertheless."""
        batch, _ = DGPO().credit(scored(missing=[0, *range(4, 8)]))
        assert len(batch) == GROUPS - 1
        whole, _ = DGPO().credit(scored())
        torch.testing.assert_close(next(batch.terms(100)).noisy[:3], next(whole.terms(100)).noisy[1:4])


class TestWhoIsAsked:
    @pytest.mark.parametrize(
        "algorithm", [DiffusionNFT(kl_coef=0.0), AWM(), CRD(), DGPO(baseline="old")], ids=["nft", "awm", "crd", "dgpo"]
    )
    def test_no_reference_without_its_coefficient(self, algorithm):
        assert not algorithm.needs().reference
        roles = Linear()
        total(algorithm, algorithm.credit(scored())[0], roles)
        assert roles.asked["reference"] == 0
        assert roles.asked["policy"] == roles.asked["old"] > 0

    @pytest.mark.parametrize("algorithm", ONLINE, ids=NAMES)
    def test_each_role_once_per_term_and_only_those_that_are_needed(self, algorithm):
        batch, _ = algorithm.credit(scored())
        terms = int(batch.present.sum()) * batch.time.shape[1]
        roles = Linear(moved=False)
        total(algorithm, batch, roles)
        assert roles.asked["policy"] == terms
        assert roles.asked["old"] == 0
        once = {False: 0, True: terms}[algorithm.needs().reference]
        twice = isinstance(algorithm, CRD) and algorithm.kl_guidance is not None
        assert roles.asked["reference"] == once * (2 if twice else 1)

    def test_guidance(self):
        for algorithm, expected in (
            (DiffusionNFT(kl_coef=0.0), {1.0}),
            (AWM(kl_coef=1.0), {1.0}),
            (DGPO(), {1.0}),
            (DiffusionNFT(train_guidance="rollout"), {None}),
            (CRD(kl_coef=1.0, kl_guidance=4.0), {1.0, 4.0}),
        ):
            roles = Linear()
            total(algorithm, algorithm.credit(scored())[0], roles)
            assert roles.guidance == expected

    def test_the_old_policy_follows_its_schedule(self):
        roles = Linear()
        for update in (1, 75, 100, 600):
            DiffusionNFT(old_decay="delayed_linear_to_0_999", old_decay_counts="updates").after_update(roles, update)
            DiffusionNFT(old_decay="linear_to_0_5", old_decay_counts="updates").after_update(roles, update)
        AWM(old_decay="ema", old_ema=0.3).after_update(roles, 1)
        assert DGPO().after_update(roles, 1)["old_policy/copy_update"] == 1
        assert roles.decays == pytest.approx([0, 0.001, 0, 0.075, 0.1875, 0.1, 0.999, 0.5, 0.3, 0])
        assert CRD(baseline="reference").after_update(roles, 1) == {}

    def test_the_schedules_of_the_old_policy_count_gradient_steps_as_their_paper_does(self):
        roles, rising = Linear(), {"old_decay": "linear", "old_linear": (4, 0.25, 0.005, 0.999)}
        for steps in (0, 3, 4, 10, 400):
            roles.optimizer_steps = steps
            CRD(**rising).after_update(roles, 1)
        assert roles.decays == pytest.approx([0.0, 0.0, 0.25, 0.28, 0.999])
        DiffusionNFT(old_decay="linear_to_0_5").after_update(roles, 2)
        assert roles.decays[-1] == pytest.approx(0.4), "400 gradient steps in two updates"


REFUSED = [
    (lambda: AWM(time_shift=3.0), "never read when times is schedule"),
    (lambda: AWM(times="uniform", time_mean=1.0), "never read when times is uniform"),
    (lambda: AWM(times="uniform", timestep_fraction=0.5), "timestep_fraction"),
    (lambda: AWM(advantage_clip=1.0, advantage_clip_low=1.0), "nothing lies between"),
    (lambda: AWM(old_decay="linear"), "linear needs old_linear"),
    (lambda: AWM(old_linear=(0, 0.1, 0.1, 1.0)), "linear needs old_linear"),
    (lambda: AWM(old_decay_counts="updates"), "never read when old_decay is copy"),
    (lambda: SFT(best=2), "never read when online is false"),
    (lambda: AWM(time_range=(0.5, 0.5)), "time_range is"),
    (lambda: AWM(ghuber_power=0.5), "ghuber_power"),
    (lambda: AWM(clip=1.5), "clip is 1.5"),
    (lambda: AWM(old_decay="ema"), "ema needs old_ema"),
    (lambda: CRD(kl_guidance=2.0), "kl_coef is 0"),
    (lambda: DGPO(baseline="old", reference_guidance=2.0), "reference_guidance is never read"),
    (lambda: DGPO(clip_kl=True), "clip_kl is never read"),
    (lambda: DGPO(clip_kl=True, clip=None, kl_coef=0.1), "clip_kl is never read"),
    (lambda: CRD(baseline="reference", old_decay="ema", old_ema=0.5), "nothing reads an old policy"),
    (lambda: DiffusionDPO(kind="ipo", label_smoothing=0.1), "label_smoothing"),
    (lambda: DiffusionDPO(online=False, min_margin=0.1), "min_margin"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_options_that_nothing_reads_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_diffusion_dpo_of_a_model_that_predicts_noise_is_the_papers_loss():
    """-log sigmoid(-beta / 2 ((|eps - eps_w|^2 - |eps - ref_w|^2) - the same of the loser)), at x_t = a x + s eps."""
    algorithm = DiffusionDPO(online=False, beta=3.0, error="noise")
    batch, _ = algorithm.credit(given(2))
    (part,) = algorithm.micro_batches(batch, 100)
    a = torch.rand(len(part), 1, generator=torch.Generator().manual_seed(4), dtype=torch.float64) + 0.1
    s = a * part.time[:, None] / (1 - part.time[:, None])  # noise levels that are these times
    noise = part.noisy + (1 - part.time[:, None]) * part.target
    torch.testing.assert_close((a + s) * part.noisy, a * part.clean + s * noise)
    matrices = torch.randn(2, DIM, DIM, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    predicted = [((a + s) * part.noisy) @ matrix for matrix in matrices]

    def flow(epsilon):
        return lambda x, time, *rest, **more: (epsilon - x) / (1 - time[:, None])

    roles = SimpleNamespace(policy=flow(predicted[0]), reference=flow(predicted[1]))
    error, before = ((epsilon - noise).square().mean(1).view(-1, 2) for epsilon in predicted)
    inside = (error[:, 0] - error[:, 1]) - (before[:, 0] - before[:, 1])
    torch.testing.assert_close(algorithm.loss(part, roles).total, -functional.logsigmoid(-1.5 * inside).sum())
