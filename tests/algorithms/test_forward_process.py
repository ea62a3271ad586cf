"""Algorithms on noised samples, with a linear velocity in place of a network: what they mean, and which rows count."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from burnish.data.scored import scored_groups
from burnish.diffusion.offline import as_sampled
from burnish.registry import lookup
from burnish.types.rollout import OfflineSamples
from burnish.utils import random
from tests.support.forward_batches import ALL, COUNT, DIM, GROUPS, ONLINE, SIZE, TIMES, Linear, given, scored, total

FIXED = 3  # elements that are not noised, besides those that are


def made(name, **options):
    return lookup("flow algorithm", name)(**options)


def prepared(algorithm, **more):
    batch, _ = algorithm.compute_advantages(scored(**more))
    (part,) = algorithm.micro_batches(batch, 1000)
    return batch, part, Linear()


def errors(part, roles, *names, **guidance):
    """Squared errors of velocities, those of the policy with a gradient of its own."""
    weight = roles.weight.detach().clone().requires_grad_()
    asked = (part.state, part.time, part.conditioning)
    velocity = part.state @ weight + part.time[:, None]
    others = [getattr(roles, name)(*asked, **guidance.get(name, {})) for name in names]
    return weight, velocity, others, [(v - part.target).square().mean(1) for v in (velocity, *others)]


def agree(algorithm, batch, roles, expected, weight):
    value, _ = total(algorithm, batch, roles)
    value.backward()
    expected.backward()
    torch.testing.assert_close(value, expected, check_dtype=False)
    torch.testing.assert_close(roles.weight.grad, weight.grad, rtol=1e-5, atol=1e-9)


def by_group(values):
    return values.view(GROUPS, SIZE)


@pytest.mark.parametrize("clip_kl", [False, True])
@pytest.mark.parametrize("baseline", ["old", "reference"])
def test_dgpos_three_modes_by_hand(baseline, clip_kl):
    """As its authors': the reference has guidance in the preference and in the KL; the old policy may be its
    baseline instead; and what clip holds may be held in the KL, too."""
    algorithm = made("dgpo", beta=3.0, clip=0.2, kl_coef=0.4, train_timesteps=1, baseline=baseline, clip_kl=clip_kl,
                     reference_guidance=2.5)  # fmt: skip
    batch, part, roles = prepared(algorithm)
    weight, velocity, (_, reference), (error, old, base) = errors(
        part, roles, "old", "reference", reference={"guidance": 2.5}
    )
    ratio = (old - error).exp()
    held = torch.where(part.value > 0, ratio > 1.2, ratio < 0.8)
    assert 0 < held.sum() < len(held)
    moved = torch.where(held, error.detach(), error)
    margin = -by_group(part.value * (moved - (old if baseline == "old" else base))).mean(1)
    distance = (velocity - reference).square().mean(1)
    distance = torch.where(held, distance.detach(), distance) if clip_kl else distance
    agree(algorithm, batch, roles, -logsigmoid(3.0 * margin).mean() / 3.0 + 0.4 * distance.mean(), weight)


@pytest.mark.parametrize("matching", ["bce", "mse"])
def test_crd_by_hand(matching):
    """As in its code: advantage_clip / beta times the squared distance of the centred rewards, or their likelihood."""
    algorithm = made("crd", beta=2.0, matching=matching, train_timesteps=1, advantage_clip=3.0)
    batch, part, roles = prepared(algorithm)
    weight, _, _, (error, old) = errors(part, roles, "old")
    ours, theirs = 2.0 * by_group(old - error), by_group(part.value)
    ours, theirs = ours - ours.detach().mean(1, keepdim=True), theirs - theirs.mean(1, keepdim=True)
    expected = (ours - theirs).square().mean()
    if matching == "bce":
        expected = binary_cross_entropy_with_logits(ours, theirs.sigmoid().double())
    agree(algorithm, batch, roles, 3.0 / 2.0 * expected, weight)


def test_diffusion_dpo_of_a_model_that_predicts_noise_is_the_papers_loss():
    """-log sigmoid(-beta / 2 ((|eps - eps_w|^2 - |eps - ref_w|^2) - the same of the loser)), at x_t = a x + s eps."""
    algorithm = made("diffusion_dpo", online=False, beta=3.0, error="noise")
    (part,) = algorithm.micro_batches(algorithm.compute_advantages(given(2))[0], 100)
    a = torch.rand(len(part), 1, generator=torch.Generator().manual_seed(4), dtype=torch.float64) + 0.1
    s = a * part.time[:, None] / (1 - part.time[:, None])  # noise levels that are these times
    noise = part.state + (1 - part.time[:, None]) * part.target
    torch.testing.assert_close((a + s) * part.state, a * part.clean + s * noise)
    matrices = torch.randn(2, DIM, DIM, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    predicted = [((a + s) * part.state) @ matrix for matrix in matrices]
    policy, reference = (
        lambda x, time, *rest, epsilon=epsilon, **more: (epsilon - x) / (1 - time[:, None]) for epsilon in predicted
    )
    error, before = ((epsilon - noise).square().mean(1).view(-1, 2) for epsilon in predicted)
    inside = (error[:, 0] - error[:, 1]) - (before[:, 0] - before[:, 1])
    loss = algorithm.loss(part, SimpleNamespace(policy=policy, reference=reference))
    torch.testing.assert_close(loss.total, -logsigmoid(-1.5 * inside).sum())


@pytest.mark.parametrize("algorithm", ALL, ids=lambda algorithm: algorithm.name)
def test_neither_cuts_nor_order_nor_given_elements_change_anything(algorithm):
    """Elements that are never noised are those of a given first frame; their velocities are 0."""
    plain = scored() if getattr(algorithm, "online", True) else given(2 if algorithm.name == "diffusion_dpo" else 1)
    batch, _ = algorithm.compute_advantages(plain)
    whole = Linear()
    expected, metrics = total(algorithm, batch, whole)
    expected.backward()
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    wide = with_given(plain.trace.latents if hasattr(plain, "trace") else plain.latents)
    wide = replace(plain, trace=replace(plain.trace, **wide)) if hasattr(plain, "trace") else replace(plain, **wide)
    framed, _ = algorithm.compute_advantages(wide)
    for one, size, roles in ((batch, 1, Linear()), (batch.select(order), 13, Linear()), (framed, 100, Given())):
        got, reported = total(algorithm, one, roles, size)
        got.backward()
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(roles.weight.grad, whole.weight.grad, rtol=1e-5, atol=1e-6)
        assert reported.keys() == metrics.keys()
        assert all(reported[name] == pytest.approx(value, rel=1e-5, abs=1e-6) for name, value in metrics.items())


@pytest.mark.parametrize("algorithm", ONLINE, ids=lambda algorithm: algorithm.name)
def test_a_missing_reward_is_as_if_the_sample_were_not_there(algorithm):
    absent = (1, 6)
    without, _ = algorithm.compute_advantages(scored(missing=absent))
    expected, _ = algorithm.compute_advantages(scored().select([i for i in range(COUNT) if i not in absent]))
    assert algorithm.size(without) == algorithm.size(expected)
    torch.testing.assert_close(total(algorithm, without, Linear())[0], total(algorithm, expected, Linear())[0])


class Given(Linear):
    """A model of more elements, which are given."""

    def _role(self, name, matrix):
        predict = super()._role(name, matrix)

        def masked(x, *rest, **more):
            velocity = predict(x[:, :DIM], *rest, **more)
            return torch.cat([velocity, velocity.new_zeros(len(x), FIXED)], 1)

        return masked


def with_given(latents):
    """Latents, and which of them are noised; what is given differs by row, as images of prompts do."""
    values = torch.arange(FIXED * len(latents), dtype=latents.dtype).view(-1, *[1] * (latents.ndim - 2), FIXED)
    noised = torch.tensor([True] * DIM + [False] * FIXED).expand(len(latents), -1).contiguous()
    return {"latents": torch.cat([latents, values.expand(*latents.shape[:-1], FIXED)], -1), "noised": noised}


@pytest.mark.parametrize("name", ["dgpo", "crd"])
def test_groups_stay_whole_and_share_time_and_noise(name):
    batch, _ = made(name, train_timesteps=2).compute_advantages(scored())
    for part in batch.terms(1):
        noise = part.target + part.clean
        assert len(part) == SIZE
        assert part.atom.unique().numel() == part.time.unique().numel() == 1
        torch.testing.assert_close(noise, noise[:1].expand_as(noise))
        assert part.clean.unique(dim=0).shape[0] == SIZE
        assert len({prompt.text for prompt in part.conditioning.prompts}) == 1
    # the first member names the noise of its group also where its reward is missing
    batch, _ = made("dgpo").compute_advantages(scored(missing=[0, *range(4, 8)]))
    whole, _ = made("dgpo").compute_advantages(scored())
    assert len(batch) == GROUPS - 1
    torch.testing.assert_close(next(batch.terms(100)).state[:3], next(whole.terms(100)).state[1:4])


def test_noise_and_levels_are_those_of_a_sample_whoever_lies_beside_it():
    for times in ("schedule", "uniform", "logit_normal"):
        algorithm = made("awm", train_timesteps=2, times=times)
        alone, whole = (algorithm.compute_advantages(one)[0] for one in (scored().select([7, 5]), scored()))
        assert torch.equal(alone.time, whole.time[[7, 5]])
        torch.testing.assert_close(next(alone.terms(9)).state[:2], next(whole.select([7]).terms(9)).state)
    # an image twice in a batch
    twice, _ = made("sft", train_timesteps=2, times="uniform").compute_advantages(given(1, "aa"))
    part = next(twice.terms(9))
    assert (part.target + part.clean).unique(dim=0).shape[0] == twice.time.unique().numel() == 4


@pytest.mark.parametrize("stratified", [False, True])
def test_levels_are_drawn_from_their_range_and_shifted_below_the_first_of_the_schedule(stratified):
    keys, schedule = [(0, "a"), (0, "b")], torch.tensor([0.9, 0.6, 0.3, 0.0])
    draws = random.uniform(3, keys)
    drawn = 0.2 + 0.4 * ((torch.arange(3) + draws) / 3 if stratified else draws)
    own = {"train_timesteps": 3, "time_range": (0.2, 0.6), "time_shift": 2.0, "time_stratified": stratified}
    for times, level in (("uniform", drawn), ("logit_normal", torch.special.ndtri(drawn).sigmoid())):
        found = made("awm", times=times, **own).levels(keys, schedule)
        torch.testing.assert_close(found, 0.9 * 2 * level / (1 + level))


@pytest.mark.parametrize(("low", "high", "steps", "expected"), [
    (0, 1, 4, range(4)), (0, 0.5, 4, range(2, 4)), (0.5, 1, 4, range(2)), (0.25, 0.75, 4, range(1, 3)),
    (0.3, 0.7, 10, range(3, 7)), (0.1, 0.35, 4, range(2, 4)),
])  # fmt: skip
def test_steps_lie_in_the_part_of_the_way_that_is_asked_for(low, high, steps, expected):
    algorithm = made("awm", train_timesteps=len(expected), time_range=(low, high))
    (levels,) = algorithm.levels([(0, "a")], torch.arange(steps, -1, -1))
    assert sorted(steps - level for level in levels.tolist()) == list(expected)


def test_best_of_n_imitates_the_best_and_nothing_else():
    algorithm, samples = made("sft", online=True, best=2, train_timesteps=2, times="uniform"), scored(missing=(0,))
    batch, metrics = algorithm.compute_advantages(samples)
    reward = samples.scores.reward.masked_fill(samples.scores.missing, -torch.inf)
    best = (reward.view(GROUPS, SIZE).topk(2).indices + torch.arange(GROUPS)[:, None] * SIZE).flatten().sort().values
    assert torch.equal(batch.clean[:, 0], samples.trace.latents[best])
    assert metrics["train/imitated_reward"] == pytest.approx(float(reward[best].mean()))
    few, metrics = made("sft", online=True, best=2, min_reward=0.9).compute_advantages(samples)
    assert len(few) == metrics["train/imitated"] == int((reward[best] >= 0.9).sum()) > 0
    batch, part, roles = prepared(algorithm := made("sft", online=True, train_timesteps=1, times="uniform"))
    weight, _, _, (error,) = errors(part, roles)
    agree(algorithm, batch, roles, error.mean(), weight)


def test_likelihood_is_weighted_by_the_exponential_of_the_reward():
    reward = [0.0, 1.0, 2.0, 9.0] * GROUPS
    batch, _ = made("sft", online=True, best=3, reward_temperature=0.5).compute_advantages(scored(reward=reward))
    weights = [math.exp(value / 0.5) for value in (1.0, 2.0, 9.0)]
    expected = torch.tensor([weight / sum(weights) * 3 for weight in weights] * GROUPS)
    torch.testing.assert_close(batch.value.flatten(), expected)


@pytest.mark.parametrize("algorithm", ONLINE, ids=str)
def test_samples_with_scores_teach_what_they_taught_when_they_were_sampled(algorithm):
    sampled = scored()
    rows = zip(sampled.prompts, sampled.scores.reward.tolist(), strict=True)
    records = [SimpleNamespace(prompt=prompt, scores=(2 * reward, 7.0)) for prompt, reward in rows]
    weights = {"half": 0.5, "logged": 0.0}
    groups = scored_groups([*records[::2], *records[1::2]], weights)
    groups = [replace(group, members=tuple(sorted(group.members, key=records.index))) for group in groups]
    images = OfflineSamples(
        conditioning=sampled.trace.conditioning, latents=sampled.trace.latents[:, None], uid=[""] * COUNT,
        schedule=TIMES, update=2, version=1, seed=3,
    )  # fmt: skip
    given = as_sampled(images, groups, weights)
    batches = [algorithm.compute_advantages(one)[0] for one in (sampled, given)]
    losses = [total(algorithm, batch, Linear()) for batch in batches]
    assert losses[0] == losses[1]
    assert given.scores.components[:, 1].tolist() == [7.0] * COUNT


def test_policies_that_lag_follow_by_their_own_schedules():
    """CRD's paper: min(.25 + .005 t, .999), and a sampling model that is the policy for 75 steps."""
    roles, algorithm = Linear(), made(
        "crd", old={"decay": "linear", "linear": (0, 0.25, 0.005, 0.999)}, sample_with="sampling",
        lagged={"sampling": {"decay": "linear", "linear": (75, 0.0, 0.0075, 0.999)}},
    )  # fmt: skip
    assert algorithm.needs().sampler == "sampling"
    assert algorithm.needs().lagged == ("old", "sampling")
    for steps, old, sampling in ((0, 0.25, 0), (74, 0.62, 0), (75, 0.625, 0), (115, 0.825, 0.3), (1000, 0.999, 0.999)):
        roles.optimizer_steps = steps
        metrics = algorithm.after_update(roles, 1)
        found = (metrics["old_policy/decay"], metrics["lagged/sampling/decay"])
        assert found == pytest.approx((old, sampling))
    assert roles.followed == ["old", "sampling"] * 5
    rising = {"decay": "linear_to_0_5"}
    made("diffusion_nft", old=rising).after_update(roles, 2)
    made("diffusion_nft", old=rising | {"counts": "updates"}).after_update(roles, 75)
    made("awm", old={"decay": "ema", "ema": 0.3}).after_update(roles, 1)
    assert roles.decays[-3:] == pytest.approx([0.5, 0.075, 0.3]), "1000 gradient steps, 75 updates"
    assert made("dgpo").after_update(roles, 1)["old_policy/copy_update"] == 1
    assert made("crd", baseline="reference").after_update(roles, 1) == {}


def test_srpo_recovers_samples_by_their_own_noise_and_climbs_words_down_and_up():
    """x' = x_0 + (t_end - t) (v - (eps - x_0)) / (1 - t_end); (1 + k) r(positive) - r(negative), and the reverse."""
    algorithm = made("srpo", ceiling=None, positive=["up"], negative=["down", "low"], time_range=(0.2, 0.6),
                     emphasis=((0.1, 0.2), (0.4, 0.3)))  # fmt: skip
    samples, off = scored(), torch.tensor([0.1, 0.0, -0.3, 0.0, 0.2], dtype=torch.float64)
    noise = torch.randn(COUNT, 1, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    half = torch.full((COUNT, 1), 0.5)  # networks that predict noise begin below t = 1
    trace = replace(samples.trace, state=noise / 2, next_state=noise, time=half, time_next=noise[..., 0])
    samples = replace(samples, trace=trace)
    (part,) = algorithm.micro_batches(samples, 100)
    start, end = part.times.unbind(1)
    assert algorithm.size(samples) == len(part) == 2 * COUNT
    assert torch.equal(part.denoises, start > end)
    assert (part.times - 0.2 >= 0).all()
    assert torch.equal(end[::2], end[1::2])
    clean, eps = (value.repeat_interleave(2, 0) for value in (trace.latents, noise[:, 0]))
    torch.testing.assert_close(part.state, (1 - start[:, None]) * clean + start[:, None] * eps)
    k = torch.where(part.denoises, 0.1 + 0.1 * (end - 0.2) / 0.4, 0.4 - 0.1 * (start - 0.2) / 0.4)
    expected = (clean + ((end - start) / (1 - end))[:, None] * off).sum(1)
    up, down = 3 * expected, 2 * expected  # by the words that an update has: the second negative one in update 2

    def reward(images, prompts):
        factor = {"up": 3.0, "down": 7.0, "low": 2.0}
        return images.sum(1) * torch.tensor([factor[prompt.text.partition(".")[0]] for prompt in prompts])

    roles = SimpleNamespace(policy=lambda *asked: eps - clean + off, images=lambda x, asked: x, reward=reward)
    climbed = torch.where(part.denoises, (1 + k) * up - down, (1 + k) * down - up)
    torch.testing.assert_close(algorithm.loss(part, roles).total, -climbed.sum(), rtol=1e-5, atol=1e-5)
