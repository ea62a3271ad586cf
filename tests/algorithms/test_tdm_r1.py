"""TDM-R1: its three losses by hand, and who learns from which."""

from dataclasses import replace

import pytest
import torch

from burnish.registry import lookup
from tests.support.forward_batches import COUNT, DIM, GROUPS, SIZE, scored, total

STEPS = 4
LEARN = ("policy", "fake", "surrogate")
NAMES = (*LEARN, "slow", "reference")


def recorded(*, missing=()):
    plain = scored(missing=missing)
    draw = torch.Generator().manual_seed(8)
    states = torch.randn(COUNT, STEPS + 1, DIM, generator=draw, dtype=torch.float64)
    times = torch.tensor([1.0, 0.9, 0.75, 0.5, 0.0], dtype=torch.float64)
    trace = replace(
        plain.trace, latents=states[:, -1], state=states[:, :-1], next_state=states[:, 1:],
        time=times[:-1].expand(COUNT, -1), time_next=times[1:].expand(COUNT, -1), schedule=times,
        logprob=torch.zeros(COUNT, STEPS), node=torch.zeros(COUNT, STEPS, dtype=torch.long),
    )  # fmt: skip
    return replace(plain, trace=trace)


class Networks:
    """Roles whose velocities are x W + t, and other where there is no prompt; all but two of them may learn."""

    micro_batch_size, optimizer_steps = 8, 0

    def __init__(self):
        draw = torch.randn(len(NAMES), DIM, DIM, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        self.weights = {name: (0.3 * draw[i]).requires_grad_() for i, name in enumerate(NAMES)}
        self.followed = []

    def lagged(self, name):
        def predict(x, time, conditioning, *, guidance=None):
            assert guidance in (None, 1.0)
            asked = conditioning.prompts
            marks = x.new_tensor([[100.0 * (not prompt.text)] for prompt in asked])
            return x @ self.weights[name] * (1 + marks / 1000) + time[:, None]

        return predict

    def blend(self, name, decay, source="policy"):
        self.followed.append((name, decay, source))

    policy = property(lambda self: self.lagged("policy"))
    reference = property(lambda self: self.lagged("reference"))


def by_hand(algorithm, part, roles):
    def velocity(name, x, time, mark=0.0):
        return x @ roles.weights[name] * (1 + mark / 1000) + time[:, None]

    t, u, level, reward_level = (v[:, None] for v in (part.time, part.time_next, part.level, part.reward_level))
    v = velocity("policy", part.state, part.time)
    clean, reached = part.state - t * v, (part.state - (t - u) * v).detach()

    def noised(x, time, tau, noise):
        a = (1 - tau) / (1 - time)
        return a * x + (tau**2 - (time * a) ** 2).sqrt() * noise

    def mean(x):
        return x.square().mean(1)

    with torch.no_grad():
        x = noised(reached, u, level, part.fake_noise)
        target, real = (x - clean) / level, velocity("reference", x, part.level)
    fake = velocity("fake", x, part.level)
    loss = mean(fake - target) + 0.02 * mean(fake - real)

    s, tau = part.surrogate_time[:, None], part.surrogate_level[:, None]
    a = (1 - tau) / (1 - s)
    b = (tau**2 - (s * a) ** 2).sqrt()
    x = a * part.surrogate_state + b * part.surrogate_noise
    target = -part.surrogate_state / (1 - s) + part.surrogate_noise / b * (tau + s**2 * a / (1 - s))
    ours, slow, real = (velocity(name, x, part.surrogate_level) for name in ("surrogate", "slow", "reference"))
    error, before, given = (mean(one - target) for one in (ours, slow.detach(), real.detach()))
    ratio, ratio_real = (before - error).exp(), (given - error).exp()
    far = mean(ours - real).detach().view(-1, SIZE).mean(1).repeat_interleave(SIZE) > algorithm.stray
    up = part.value > 0
    held = torch.where(up, ratio > 1 + algorithm.clip, ratio < 1 - algorithm.clip)
    held = held | (far & torch.where(up, ratio_real > 1, ratio_real < 1))
    weight = torch.sigmoid(algorithm.beta * (part.value * (error - given)).view(-1, SIZE).mean(1)).detach()
    learned = torch.where(held, error.detach(), error)
    surrogate = weight.repeat_interleave(SIZE) * part.value * learned  # the paper's: its gradient is that of DGPO
    surrogate = part.surrogate_weight * (surrogate + algorithm.kl_coef * mean(ours - real.detach()))

    with torch.no_grad():
        x = noised(reached, u, level, part.noise)
        y = noised(reached, u, reward_level, part.reward_noise)
        clean_of = {
            (name, mark): at - tau * velocity(name, at, tau[:, 0], mark)
            for name, at, tau in (("fake", x, level), ("reference", x, level), ("surrogate", y, reward_level))
            for mark in (0.0, 100.0)
        }
        real, empty = clean_of["reference", 0.0], clean_of["reference", 100.0]
        liked, unliked = clean_of["surrogate", 0.0], clean_of["surrogate", 100.0]
        rewarded = unliked + algorithm.reward_guidance * (liked - unliked)
        unrewarded = y - reward_level * velocity("reference", y, part.reward_level)
        w = (clean - (empty + algorithm.real_guidance * (real - empty))).abs().mean(1)
        w_reward = (clean - rewarded).abs().mean(1)
        guided = clean + (algorithm.real_guidance - 1) * (real - empty)
        less_fake = clean + real - clean_of["fake", 0.0]
        better = clean + rewarded - unrewarded
    by_guidance, by_real = (mean(one - clean) / w for one in (guided, less_fake))
    policy = algorithm.real_weight * by_guidance + by_real
    policy = policy + (1 - algorithm.real_weight) * mean(better - clean) / w_reward
    if algorithm.reward_steps is not None:
        later = part.number >= algorithm.reward_steps
        policy = torch.where(later, algorithm.real_weight * (by_guidance + by_real), policy)
    return (loss + surrogate + policy).sum(), held, policy


def made(**options):
    return lookup("flow algorithm", "tdm_r1")(**options)


ALGORITHMS = [
    made(),
    made(beta=10.0, clip=0.2, stray=0.0, reward_steps=2, real_weight=0.6, real_guidance=3.0, reward_guidance=2.5),
    made(stray=100.0, clip=0.5, kl_coef=0.3, train_timesteps=4, advantage_std="group"),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["published", "held", "free"])
def test_its_gradients_are_those_of_the_published_losses(algorithm):
    batch, _ = algorithm.compute_advantages(recorded())
    (part,) = algorithm.micro_batches(batch, 1000)
    ours, theirs = Networks(), Networks()
    found = algorithm.loss(part, ours)
    found.total.backward()
    expected, held, policy = by_hand(algorithm, part, theirs)
    expected.backward()
    for name in LEARN:
        torch.testing.assert_close(ours.weights[name].grad, theirs.weights[name].grad, rtol=1e-9, atol=1e-12)
    assert all(ours.weights[name].grad is None for name in ("slow", "reference"))
    torch.testing.assert_close(found.metrics["actor/policy_loss"][0], policy.detach().sum())
    stopped = sum(float(found.metrics[f"surrogate/{name}"][0]) for name in ("clipfrac", "astrayfrac"))
    assert (stopped > 0) == bool(held.any())


def test_neither_micro_batches_nor_missing_rewards_are_seen():
    algorithm, absent = made(train_timesteps=3), (1, 6, 8, 9, 10, 11)
    without, _ = algorithm.compute_advantages(recorded(missing=absent))
    expected, _ = algorithm.compute_advantages(recorded().select([i for i in range(COUNT) if i not in absent]))
    assert len(without) == GROUPS - 1
    assert algorithm.size(without) == algorithm.size(expected) == (COUNT - len(absent)) * 3
    whole = Networks()
    value, metrics = total(algorithm, expected, whole, 1000)
    value.backward()
    for one, size in ((without, 1000), (without, 1), (without.select([1, 0]), 9)):
        cut = Networks()
        found, reported = total(algorithm, one, cut, size)
        found.backward()
        torch.testing.assert_close(found, value)
        for name in LEARN:
            torch.testing.assert_close(cut.weights[name].grad, whole.weights[name].grad)
        assert metrics.keys() == reported.keys()


def test_the_slow_surrogate_follows_the_surrogate():
    roles = Networks()
    for step in (1, 2, 500):
        roles.optimizer_steps = step
        made().after_update(roles, step)
    assert [name for name, _, _ in roles.followed] == ["slow"] * 3
    assert [decay for _, decay, _ in roles.followed] == pytest.approx([0.001, 0.002, 0.3])
    assert {source for _, _, source in roles.followed} == {"surrogate"}
