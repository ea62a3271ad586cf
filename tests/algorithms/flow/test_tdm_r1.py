"""TDM-R1: its three losses by hand, who learns from which, what is drawn, and a tiny model that learns."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from burnish.algorithms.flow.tdm_r1 import TDMR1
from burnish.flow.times import diffuse_further, uniform_above
from burnish.losses.few_steps import hold_astray, preference_target
from burnish.options import OptimizerOptions
from burnish.options.flow import LoraOptions
from tests.support.factory import tiny_pipeline
from tests.support.flow_bench import Bench
from tests.support.forward_batches import COUNT, DIM, GROUPS, SIZE, scored, total

STEPS = 4
NAMES = ("policy", "fake", "surrogate", "slow", "reference")


def recorded(*, missing=(), given=0):
    """Samples of four recorded steps, some of whose elements are given."""
    plain = scored(missing=missing)
    draw = torch.Generator().manual_seed(8)
    states = torch.randn(COUNT, STEPS + 1, DIM, generator=draw, dtype=torch.float64)
    fixed = torch.arange(float(given), dtype=torch.float64).expand(COUNT, STEPS + 1, -1)
    states = torch.cat([states, fixed], -1)
    times = torch.tensor([1.0, 0.9, 0.75, 0.5, 0.0], dtype=torch.float64)
    trace = replace(
        plain.trace, latents=states[:, -1], state=states[:, :-1], next_state=states[:, 1:],
        time=times[:-1].expand(COUNT, -1), time_next=times[1:].expand(COUNT, -1),
        noised=torch.tensor([True] * DIM + [False] * given).expand(COUNT, -1), schedule=times,
        logprob=torch.zeros(COUNT, STEPS), node=torch.zeros(COUNT, STEPS, dtype=torch.long),
    )  # fmt: skip
    return replace(plain, trace=trace)


class Networks:
    """Roles whose velocities are x W + t, and other where there is no prompt; all but two of them may learn."""

    micro_batch_size = 8

    def __init__(self):
        draw = torch.Generator().manual_seed(5)
        self.weights = {
            name: (torch.randn(DIM, DIM, generator=draw, dtype=torch.float64) * 0.3).requires_grad_() for name in NAMES
        }
        self.asked = dict.fromkeys(NAMES, 0)
        self.followed = []

    def lagged(self, name):
        def predict(x, time, conditioning, unconditional, *, guidance=None):
            assert guidance in (None, 1.0)
            self.asked[name] += len(x)
            marks = conditioning.rows().tokens[:, 0].to(x)  # 100 for negative prompts
            found = x[:, :DIM] @ self.weights[name] * (1 + marks / 1000) + time[:, None]
            return torch.cat([found, torch.zeros_like(x[:, DIM:])], 1)

        return predict

    def blend(self, name, decay, source="policy"):
        self.followed.append((name, decay, source))

    policy = property(lambda self: self.lagged("policy"))
    reference = property(lambda self: self.lagged("reference"))
    optimizer_steps = 0


def by_hand(algorithm, part, roles):
    """The loss of every term, from the formulas."""

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
    loss = mean(fake - target) + algorithm.fake_kl_coef * mean(fake - real)

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


ALGORITHMS = [
    TDMR1(),
    TDMR1(beta=10.0, clip=0.2, stray=0.0, reward_steps=2, real_weight=0.6, real_guidance=3.0, reward_guidance=2.5),
    TDMR1(stray=100.0, clip=0.5, kl_coef=0.3, fake_kl_coef=0.5, train_timesteps=4, advantage_std="group"),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["published", "held", "free"])
def test_its_gradients_are_those_of_the_published_losses(algorithm):
    batch, _ = algorithm.credit(recorded())
    (part,) = algorithm.micro_batches(batch, 1000)
    ours, theirs = Networks(), Networks()
    found = algorithm.loss(part, ours)
    found.total.backward()
    expected, held, policy = by_hand(algorithm, part, theirs)
    expected.backward()
    for name in ("policy", "fake", "surrogate"):
        torch.testing.assert_close(ours.weights[name].grad, theirs.weights[name].grad, rtol=1e-9, atol=1e-12)
    assert all(ours.weights[name].grad is None for name in ("slow", "reference"))
    torch.testing.assert_close(found.metrics["actor/policy_loss"][0], policy.detach().sum())
    stopped = sum(float(found.metrics[f"surrogate/{name}"][0]) for name in ("clipfrac", "astrayfrac"))
    assert (stopped > 0) == bool(held.any())


def test_a_surrogate_that_prefers_nothing_yet_has_dgpos_loss():
    algorithm = TDMR1(beta=2.0, kl_coef=0.0)
    (part,) = algorithm.micro_batches(algorithm.credit(recorded())[0], 1000)
    roles = Networks()
    roles.weights["surrogate"] = roles.weights["reference"].detach().clone().requires_grad_()
    value, count = algorithm.loss(part, roles).metrics["surrogate/loss"]
    assert float(value) / count == pytest.approx(-float(functional.logsigmoid(torch.zeros(()))) / 2.0)


@pytest.mark.parametrize("size", [1, 9, 1000])
def test_micro_batches_and_order_change_nothing(size):
    algorithm = TDMR1(train_timesteps=3)
    batch, _ = algorithm.credit(recorded())
    whole, cut, turned = Networks(), Networks(), Networks()
    results = [
        total(algorithm, one, roles, of)
        for one, roles, of in ((batch, whole, 1000), (batch, cut, size), (batch.select([2, 0, 1]), turned, 1000))
    ]
    for (value, metrics), roles in zip(results, (whole, cut, turned), strict=True):
        torch.testing.assert_close(value, results[0][0])
        value.backward()
        for name in ("policy", "fake", "surrogate"):
            torch.testing.assert_close(roles.weights[name].grad, whole.weights[name].grad)
        assert metrics.keys() == results[0][1].keys()


def test_a_missing_reward_is_as_if_the_sample_were_not_there():
    algorithm, absent = TDMR1(), (1, 6, 8, 9, 10, 11)
    without, _ = algorithm.credit(recorded(missing=absent))
    expected, _ = algorithm.credit(recorded().select([i for i in range(COUNT) if i not in absent]))
    assert len(without) == GROUPS - 1
    assert algorithm.size(without) == algorithm.size(expected) == (COUNT - len(absent)) * 2
    torch.testing.assert_close(total(algorithm, without, Networks())[0], total(algorithm, expected, Networks())[0])


def test_given_elements_change_nothing():
    algorithm = TDMR1()
    (part,) = algorithm.micro_batches(algorithm.credit(recorded(given=3))[0], 1000)
    tensors = ("state", "fake_noise", "noise", "reward_noise", "surrogate_state", "surrogate_noise", "noised")
    alone = replace(
        part, **{name: getattr(part, name)[:, :DIM] for name in tensors}, share=torch.ones(len(part))
    )  # fmt: skip
    wide, narrow = Networks(), Networks()
    losses = [algorithm.loss(one, roles) for one, roles in ((part, wide), (alone, narrow))]
    torch.testing.assert_close(losses[0].total, losses[1].total)
    for loss in losses:
        loss.total.backward()
    for name in ("policy", "fake", "surrogate"):
        torch.testing.assert_close(wide.weights[name].grad, narrow.weights[name].grad)


def test_what_is_drawn():
    algorithm = TDMR1(train_timesteps=2, reward_floor=0.4, surrogate_floor=0.6)
    seen, late = set(), 0
    for seed in range(60):
        batch, _ = algorithm.credit(replace(recorded(), seed=seed))
        for steps, levels, floor in (
            (batch.step, batch.level, 0.0),
            (batch.step, batch.reward_level, 0.4),
            (batch.surrogate_step, batch.surrogate_level, 0.6),
        ):
            ends = batch.time_next.gather(1, steps).clamp_min(floor)
            assert (levels > ends).all()
            assert (levels <= 1).all()
        assert all(len(set(row)) == 2 for row in batch.step.tolist())
        seen |= set(batch.step.flatten().tolist())
        late += int((batch.surrogate_step == STEPS - 1).sum())
    assert seen == set(range(STEPS))
    assert late / (60 * GROUPS * 2) == pytest.approx(0.4, abs=0.07), "the k-th of N steps is as likely as k"
    (part,) = algorithm.micro_batches(batch, 1000)
    first = part.atom == 0
    assert (part.reward_noise[first] == part.reward_noise[0]).all(), "compared with the same noise"
    assert len(part.noise[first].unique(dim=0)) == SIZE


def test_levels_are_uniform_before_their_shift():
    draw = torch.linspace(0, 1, 5)
    levels = uniform_above(draw, torch.tensor(0.5), shift=3.0, gap=0.02)
    before = levels / (3 - 2 * levels)
    torch.testing.assert_close(before, 0.27 + draw * 0.73)
    torch.testing.assert_close(uniform_above(draw, torch.tensor(0.0), shift=1.0, gap=0.0), draw)


def test_states_that_are_noised_on_are_as_noised_as_they_say():
    """The parts of clean sample and noise are 1 - t and t; the target's average is the noise less the sample."""
    time, level = torch.tensor([0.0, 0.3, 0.6]), torch.tensor([0.5, 0.7, 0.99])
    parts = torch.eye(3)  # of a clean sample, of the noise in the state, of the noise that is added
    state = (1 - time)[:, None] * parts[0] + time[:, None] * parts[1]
    noise = parts[2].expand(3, -1)
    x, a, b = diffuse_further(state, noise, time, level)
    torch.testing.assert_close(x[:, 0], 1 - level)
    torch.testing.assert_close(x[:, 1:].square().sum(1), level.square())
    target = preference_target(state, noise, time, level, a, b)
    torch.testing.assert_close((target * x).sum(1), level - (1 - level))  # as that of noise - sample with x
    torch.testing.assert_close(target[0], noise[0] - state[0])


def test_samples_that_would_lead_a_network_further_astray_are_held():
    error = torch.tensor([1.0, 1.0, 3.0, 3.0, 1.0], requires_grad=True)
    value, astray = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]), torch.tensor([True] * 4 + [False])
    kept, held = hold_astray(error, torch.full((5,), 2.0), value, astray)
    kept.sum().backward()
    assert held.tolist() == [True, False, False, True, False]
    assert error.grad.tolist() == [0.0, 1.0, 1.0, 0.0, 1.0]


def test_the_slow_surrogate_follows_the_surrogate():
    roles = Networks()
    for step in (1, 2, 500):
        roles.optimizer_steps = step
        TDMR1().after_update(roles, step)
    assert [name for name, _, _ in roles.followed] == ["slow"] * 3
    assert [decay for _, decay, _ in roles.followed] == pytest.approx([0.001, 0.002, 0.3])
    assert {source for _, _, source in roles.followed} == {"surrogate"}


FAST = OptimizerOptions(lr=1e-2, betas=(0.0, 0.999))


def published(tmp_path, **options):
    algorithm = TDMR1(fake_optimizer=FAST, surrogate_optimizer=OptimizerOptions(lr=1e-2))
    folder = tmp_path / "pipeline"
    pipeline = folder if folder.exists() else tiny_pipeline(tmp_path, vae=False)
    return Bench(pipeline, algorithm, optimizer=FAST, **options)


@pytest.mark.parametrize("lora", [True, False], ids=["adapters", "all weights"])
def test_each_network_has_weights_and_an_optimizer_of_its_own(lora, tmp_path):
    bench = published(tmp_path, lora=lora)
    roles, names = bench.roles, ("policy", "fake", "surrogate", "slow")
    assert [group.name for group in bench.workers.groups] == ["actor", "fake", "surrogate"]
    before = {name: {k: v.detach().clone() for k, v in roles.parameters(name).items()} for name in names}
    bench.train(1)
    after = {name: roles.parameters(name) for name in names}

    def moved(name):
        return any(not torch.equal(before[name][key], value) for key, value in after[name].items())

    assert all(map(moved, names))
    for one, other in (("fake", "policy"), ("surrogate", "policy"), ("surrogate", "fake")):
        assert any(not torch.equal(after[one][key], value) for key, value in after[other].items())
    for key, slow in after["slow"].items():  # decay 0.001 at its first step
        torch.testing.assert_close(slow, torch.lerp(before["slow"][key], after["surrogate"][key], 0.999))
    state = bench.workers.state_dict()
    saved = {name: {k: v.clone() for k, v in state["roles"][name].items()} for name in names}
    other = published(tmp_path / "other", lora=lora)
    other.workers.load_state_dict(state)
    for name in names:
        for key, value in other.roles.parameters(name).items():
            assert torch.equal(value, saved[name][key])


def test_the_policy_learns_from_the_networks_of_before_the_update(tmp_path, monkeypatch):
    """All of its gradient; in the authors' code the last of 24 micro-batches learns from networks that were stepped."""
    bench = published(tmp_path, micro=4)
    weights = {
        name: [value.detach().clone() for value in bench.roles.parameters(name).values()]
        for name in ("fake", "surrogate", "slow")
    }
    met = []
    plain = TDMR1.loss

    def loss(self, part, roles):
        met.extend(
            torch.equal(old, now)
            for name, before in weights.items()
            for old, now in zip(before, roles.parameters(name).values(), strict=True)
        )
        return plain(self, part, roles)

    monkeypatch.setattr(TDMR1, "loss", loss)
    bench.train(1)
    each = sum(map(len, weights.values()))
    assert len(met) > each  # several micro-batches
    assert all(met)
    for name, before in weights.items():
        assert not all(map(torch.equal, before, bench.roles.parameters(name).values()))


def updated(bench, number):
    """The metrics of one update."""
    batch, credited = bench.algorithm.credit(bench.workers.annotate(bench.collect(number)))
    metrics = credited | bench.workers.update(batch, number)
    bench.workers.publish(number)
    return metrics


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path):
    begun, resumed = published(tmp_path), published(tmp_path / "again")
    updated(begun, 1)
    resumed.workers.load_state_dict(copy.deepcopy(begun.workers.state_dict()))
    resumed.workers.publish(1)
    assert updated(resumed, 2) == updated(begun, 2)
    for name in begun.roles.trained:
        for key, value in begun.roles.parameters(name).items():
            assert torch.equal(value, resumed.roles.parameters(name)[key])


def test_only_the_policy_begins_with_the_adapter_that_is_given(tmp_path):
    """The adapter makes a model one of few steps; what judges it begins as the model without it."""
    first = published(tmp_path)
    first.train(1)
    first.roles.model.save_lora(tmp_path / "adapter", "policy")
    lora = LoraOptions(rank=4, path=str(tmp_path / "adapter"))
    again = published(tmp_path, lora=lora)
    for key, value in again.roles.parameters().items():
        torch.testing.assert_close(value, first.roles.parameters()[key])
    for name in ("fake", "surrogate", "slow"):
        assert all((value == 0).all() for key, value in again.roles.parameters(name).items() if "lora_B" in key)
    assert any((value != 0).any() for key, value in again.roles.parameters().items() if "lora_B" in key)


@pytest.mark.slow
def test_a_tiny_model_learns(tmp_path):
    bench = published(tmp_path)
    before = float(bench.collect(100).scores.reward.mean())
    bench.train(15)
    assert float(bench.collect(100).scores.reward.mean()) > before + 0.1


REFUSED = [
    (lambda: TDMR1(advantage_clip=1.0, advantage_clip_low=1.0), "nothing lies between"),
    (lambda: TDMR1(real_weight=1.0, reward_steps=2), "reward_steps is never read"),
    (lambda: TDMR1(advantage="gae"), "gae"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_options_that_nothing_reads_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
