"""Algorithms on the forward process, with a linear velocity in place of a network."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from burnish.algorithms.flow.awm import AWM
from burnish.algorithms.flow.crd import CRD
from burnish.algorithms.flow.dgpo import DGPO
from burnish.algorithms.flow.diffusion_dpo import DiffusionDPO
from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.sft import SFT
from burnish.batches import NoiseLevels, judge, take, without_prompts
from burnish.flow.schedules import schedule
from burnish.types.batch import Gathered
from burnish.types.rollout import Conditioning, Denoising, OfflineSamples, Prompt, Scored, Scores

SIZE, GROUPS, DIM = 4, 3, 5
COUNT = SIZE * GROUPS
TIMES = schedule(10, {"shift": 3.0}).double()


def conditioning(count: int, mark: float = 0.0) -> Gathered[Conditioning]:
    table = Conditioning(tokens=torch.full((count, 1, 1), mark), pooled=torch.arange(count)[:, None] + mark)
    return Gathered(table=table, index=torch.arange(count))


def scored(*, missing=(), reward=None, seed: int = 3) -> Scored:
    none = torch.zeros(COUNT, 0, dtype=torch.float64)
    trace = Denoising(
        conditioning=conditioning(COUNT), unconditional=conditioning(COUNT, 100.0),
        latents=torch.randn(COUNT, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
        state=none[..., None], next_state=none[..., None], time=none, time_next=none, logprob=none, node=none.long(),
        schedule=TIMES,
    )  # fmt: skip
    reward = torch.arange(float(COUNT)).sin() if reward is None else torch.tensor(reward)
    gone = torch.zeros(COUNT, dtype=torch.bool)
    gone[list(missing)] = True
    return Scored(
        prompts=[Prompt(text=f"prompt {i // SIZE}") for i in range(COUNT)],
        group=torch.arange(COUNT) // SIZE, sample=torch.arange(COUNT) % SIZE, trace=trace,
        scores=Scores(
            reward=reward, missing=gone, components=reward[:, None], names=("r",), notes=[""] * COUNT
        ),
        update=2, version=1, seed=seed,
    )  # fmt: skip


def given(members: int, uids: str = "abc") -> OfflineSamples:
    count = len(uids)
    return OfflineSamples(
        conditioning=conditioning(count), unconditional=conditioning(count, 100.0),
        latents=torch.randn(count, members, DIM, generator=torch.Generator().manual_seed(2), dtype=torch.float64),
        uid=list(uids), schedule=TIMES, update=2, version=1, seed=3,
    )  # fmt: skip


class Linear:
    """Roles whose velocities are x W + t; it counts who was asked for how many."""

    def __init__(self, *, moved: bool = True) -> None:
        generator = torch.Generator().manual_seed(5)
        draw = torch.randn(3, DIM, DIM, generator=generator, dtype=torch.float64) * 0.3
        self.weight = draw[0].clone().requires_grad_()
        matrices = {"policy": self.weight, "old": draw[1] if moved else self.weight.detach(), "reference": draw[2]}
        self.old_is_policy, self.moved, self.on_policy, self.micro_batch_size = not moved, moved, True, 8
        self.asked: dict[str, int] = dict.fromkeys(matrices, 0)
        self.guidance: set[float | None] = set()
        self.decays: list[float] = []
        self.optimizer_steps = 0
        for name, matrix in matrices.items():
            setattr(self, name, self._role(name, matrix))

    def _role(self, name, matrix):
        def predict(x, time, conditioning, unconditional, *, guidance=None):
            assert len(conditioning) == len(unconditional) == len(x)
            self.asked[name] += len(x)
            self.guidance.add(guidance)
            return x @ matrix + time[:, None]

        return predict

    def blend_old(self, decay: float) -> None:
        self.decays.append(decay)


def total(algorithm, batch, roles, size=100):
    """The loss of an optimizer batch as the worker computes it, and its metrics."""
    value, metrics = torch.zeros((), dtype=torch.float64), {}
    for part in algorithm.micro_batches(batch, size):
        loss = algorithm.loss(part, roles)
        value = value + loss.total
        for name, (sum_, count) in loss.metrics.items():
            before = metrics.get(name, (0.0, 0.0))
            metrics[name] = (before[0] + float(sum_), before[1] + float(count))
    return value / algorithm.size(batch), metrics


ONLINE = [
    DiffusionNFT(beta=0.7, kl_coef=0.1, train_timesteps=3),
    DiffusionNFT(adaptive_weighting=False, train_timesteps=2, kl_coef=0.0, advantage_mode="binary"),
    AWM(weighting="t", kl_coef=0.1, old_kl_coef=0.2, train_timesteps=3, clip=0.5),
    AWM(weighting="ghuber", ghuber_power=0.4, clip=0.9, times="logit_normal", time_shift=3.0),
    DGPO(beta=2.0, clip=None, kl_coef=0.1, train_timesteps=3),
    DGPO(beta=2.0, clip=0.3, shared_noise=False, times="uniform", time_stratified=True),
    CRD(kl_coef=0.1, kl_adaptive=True, train_timesteps=3),
    CRD(temperature=0.3, matching="mse", baseline="reference", kl_coef=0.1, kl_guidance=2.0),
    DiffusionDPO(beta=3.0, label_smoothing=0.1, train_timesteps=2, sft_coef=0.3),
    DiffusionDPO(beta=3.0, kind="ipo", times="schedule"),
]
NAMES = [f"{algorithm.name}-{i}" for i, algorithm in enumerate(ONLINE)]
OFFLINE = [(DiffusionDPO(online=False, beta=3.0, train_timesteps=2), 2), (SFT(train_timesteps=2), 1)]


def batches():
    yield from ((algorithm, algorithm.credit(scored())[0]) for algorithm in ONLINE)
    yield from ((algorithm, algorithm.credit(given(members))[0]) for algorithm, members in OFFLINE)


ALL = list(batches())
ALL_NAMES = [*NAMES, "dpo-offline", "sft"]


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


class TestRows:
    @pytest.mark.parametrize("algorithm", [DGPO(train_timesteps=2), CRD(train_timesteps=2)], ids=["dgpo", "crd"])
    def test_groups_stay_whole_and_share_time_and_noise(self, algorithm):
        batch, _ = algorithm.credit(scored())
        assert len(batch) == GROUPS
        for part in batch.terms(1):
            assert len(part) == SIZE
            assert part.atom.unique().numel() == part.time.unique().numel() == 1
            noise = part.target + part.clean
            torch.testing.assert_close(noise, noise[:1].expand_as(noise))
            assert part.clean.unique(dim=0).shape[0] == SIZE
            assert part.conditioning.rows().pooled.unique().numel() == 1

    def test_without_shared_noise_only_the_time_is_common(self):
        batch, _ = DGPO(shared_noise=False).credit(scored())
        part = next(batch.terms(SIZE))
        assert part.time.unique().numel() == 1
        assert (part.target + part.clean).unique(dim=0).shape[0] == SIZE

    def test_a_pair_is_best_and_worst_with_one_noise(self):
        reward = [0.0, 3.0, 1.0, 2.0, *[1.0] * 4, 5.0, 5.0, 4.0, 4.0]
        batch, metrics = DiffusionDPO().credit(scored(reward=reward))
        assert metrics["train/pairs"] == len(batch) == 2  # equal rewards make no pair
        latents = scored().trace.latents
        torch.testing.assert_close(batch.clean, torch.stack([latents[[1, 0]], latents[[8, 11]]]))
        assert batch.value.tolist() == [[1, -1], [1, -1]]
        for part in batch.terms(1):
            noise = part.target + part.clean
            assert len(part) == 2
            torch.testing.assert_close(noise[0], noise[1])

    def test_no_pair_at_all(self):
        batch, metrics = DiffusionDPO().credit(scored(reward=[1.0] * COUNT))
        assert metrics["train/pairs"] == len(batch) == DiffusionDPO().size(batch) == 0
        assert not list(batch.terms(8))

    def test_the_margin_that_a_pair_needs(self):
        reward = [0.0, 3.0, 1.0, 2.0, *[1.0, 1.0, 1.0, 1.5], 5.0, 5.0, 4.0, 4.0]
        assert len(DiffusionDPO(min_margin=0.5).credit(scored(reward=reward))[0]) == 2

    def test_a_picture_twice_in_a_batch_gets_other_noise(self):
        judged = take(given(1, "aa"), NoiseLevels(count=2, kind="uniform"), torch.ones(1))
        noise = next(judged.terms(9))
        assert (noise.target + noise.clean).unique(dim=0).shape[0] == 4
        assert judged.time.unique().numel() == 4

    def test_prompts_are_left_out_by_share_and_by_picture(self):
        uids = "".join(map(chr, range(97, 97 + 200)))
        judged = take(given(1, uids), NoiseLevels(count=1), torch.ones(1))
        without = without_prompts(judged, 0.3)
        dropped = without.conditioning.rows().tokens.flatten() == 100.0
        assert 0.2 < dropped.double().mean() < 0.4
        rows = torch.tensor([5, 3, 150])
        again = without_prompts(judged.select(rows), 0.3).conditioning.rows().tokens.flatten() == 100.0
        assert torch.equal(again, dropped[rows])
        own = judged.conditioning.rows().pooled[~dropped]
        assert torch.equal(without.conditioning.rows().pooled[~dropped], own)


KEYS: list[tuple[int | str, ...]] = [(0, "time", i) for i in range(500)]


KEYS: list[tuple[int | str, ...]] = [(0, "time", i) for i in range(500)]


class TestLevels:
    def test_a_part_of_the_schedule(self):
        drawn = NoiseLevels(count=3, low=0.4, high=1.0).draw(KEYS, TIMES)
        assert set(drawn.flatten().tolist()) == set(TIMES[:6].tolist())
        assert all(len(set(row)) == 3 for row in drawn.tolist())
        low = NoiseLevels(count=2, low=0.0, high=0.2).draw(KEYS, TIMES)
        assert set(low.flatten().tolist()) == set(TIMES[8:10].tolist())

    @pytest.mark.parametrize(("fraction", "count"), [(0.05, 1), (0.25, 2), (1.0, 10)])
    def test_a_share_of_the_schedule(self, fraction, count):
        drawn = NoiseLevels(count=99, fraction=fraction).draw(KEYS[:3], TIMES)
        assert drawn.shape == (3, count)

    def test_they_depend_on_their_own_key_alone(self):
        for kind in ("schedule", "uniform", "logit_normal"):
            levels = NoiseLevels(count=4, kind=kind)
            assert torch.equal(levels.draw(KEYS[7:9], TIMES), levels.draw(KEYS, TIMES)[7:9])

    def test_stratified_levels_fill_every_part(self):
        drawn = NoiseLevels(count=5, kind="uniform", stratified=True).draw(KEYS, TIMES)
        assert torch.equal((drawn * 5).floor(), torch.arange(5.0).expand(500, 5))

    def test_the_middle_of_logit_normal(self):
        plain = NoiseLevels(count=8, kind="logit_normal").draw(KEYS, TIMES)
        shifted = NoiseLevels(count=8, kind="logit_normal", shift=3.0).draw(KEYS, TIMES)
        assert plain.median().item() == pytest.approx(0.5, abs=0.02)
        assert shifted.median().item() == pytest.approx(0.75, abs=0.02)
        assert 0.15 < plain.std() < 0.25


class TestWhoIsAsked:
    @pytest.mark.parametrize("algorithm", [DiffusionNFT(kl_coef=0.0), AWM(), CRD()], ids=["nft", "awm", "crd"])
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


class TestChoosing:
    def test_best_of_n_imitates_the_best_and_nothing_else(self):
        algorithm = SFT(online=True, best=2, train_timesteps=2, times="uniform")
        assert algorithm.needs().data == "prompts"
        samples = scored(missing=(0,))
        batch, metrics = algorithm.credit(samples)
        reward = samples.scores.reward
        best = [row for g in range(GROUPS) for row in sorted(
            (r for r in range(g * SIZE, (g + 1) * SIZE) if r != 0), key=lambda r: -float(reward[r]))[:2]]  # fmt: skip
        assert torch.equal(batch.clean[:, 0], samples.trace.latents[sorted(best)])
        assert (batch.value == 1).all()
        assert metrics["train/imitated"] == 6
        assert metrics["train/imitated_reward"] == pytest.approx(float(reward[best].mean()))
        few, metrics = SFT(online=True, best=2, min_reward=0.9).credit(samples)
        assert len(few) == metrics["train/imitated"] == int((reward[best] >= 0.9).sum()) > 0

    def test_best_of_n_is_supervised_learning_of_these_samples(self):
        algorithm, roles = SFT(online=True, train_timesteps=1, times="uniform"), Linear()
        batch, _ = algorithm.credit(scored())
        value, _ = total(algorithm, batch, roles)
        part = next(batch.terms(100))
        error = (part.noisy @ roles.weight + part.time[:, None] - part.target).square().mean(1)
        torch.testing.assert_close(value, error.mean())

    @pytest.mark.parametrize("algorithm", [AWM, DGPO])
    def test_negative_advantages_may_be_bounded_otherwise(self, algorithm):
        batch, _ = algorithm(advantage_clip=1.0, advantage_clip_low=-0.2).credit(scored())
        value = batch.value.flatten()
        assert float(value.max()) == pytest.approx(1.0)
        assert float(value.min()) == pytest.approx(-0.2)

    @pytest.mark.parametrize("algorithm", [DiffusionNFT, CRD])
    def test_probabilities_are_of_advantages_within_both_bounds(self, algorithm):
        batch, _ = algorithm(advantage_clip=1.0, advantage_clip_low=-0.2).credit(scored())
        assert float(batch.value.max()) == pytest.approx(1.0)
        assert float(batch.value.min()) == pytest.approx(0.5 - 0.2 / 2)


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
    (lambda: CRD(baseline="reference", old_decay="ema", old_ema=0.5), "nothing reads an old policy"),
    (lambda: DiffusionDPO(kind="ipo", label_smoothing=0.1), "label_smoothing"),
    (lambda: DiffusionDPO(online=False, min_margin=0.1), "min_margin"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_options_that_nothing_reads_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_rows_of_their_own_are_as_ever():
    """A sample on its own has the noise that it has beside others."""
    value = torch.arange(float(COUNT))
    alone = judge(scored(), value, NoiseLevels(count=2))
    rows = judge(scored(), value, NoiseLevels(count=2), members=torch.arange(COUNT).view(GROUPS, SIZE))
    noise = next(alone.terms(99)).target + next(alone.terms(99)).clean
    beside = next(rows.terms(99)).target + next(rows.terms(99)).clean
    rearranged = beside.view(GROUPS, 2, SIZE, DIM).transpose(1, 2).reshape(-1, DIM)
    torch.testing.assert_close(noise, rearranged)
    torch.testing.assert_close(replace(alone, update=alone.update).clean[:, 0], scored().trace.latents)
