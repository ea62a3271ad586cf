"""Algorithms on the forward process: which samples are learned, at which noise levels, beside which others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from burnish.algorithms.flow.awm import AWM
from burnish.algorithms.flow.crd import CRD
from burnish.algorithms.flow.dgpo import DGPO
from burnish.algorithms.flow.diffusion_dpo import DiffusionDPO
from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.sft import SFT
from burnish.batches.levels import NoiseLevels
from burnish.batches.samples import judge, take, without_prompts
from tests.support.forward_batches import (
    COUNT,
    DIM,
    GROUPS,
    SIZE,
    TIMES,
    Linear,
    given,
    scored,
    total,
)


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

    def test_advantages_may_be_scaled_to_another_maximum(self):
        plain, scaled = (AWM(advantage_clip=5.0, **more).credit(scored())[0] for more in ({}, {"advantage_max": 1.0}))
        torch.testing.assert_close(scaled.value, plain.value / 5)

    @pytest.mark.parametrize("algorithm", [DiffusionNFT, CRD])
    def test_probabilities_are_of_advantages_within_both_bounds(self, algorithm):
        batch, _ = algorithm(advantage_clip=1.0, advantage_clip_low=-0.2).credit(scored())
        assert float(batch.value.max()) == pytest.approx(1.0)
        assert float(batch.value.min()) == pytest.approx(0.5 - 0.2 / 2)


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
