"""Samples of a tiny generator: which steps count, what older weights sampled, teachers, rewards that are followed."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from burnish.algorithms.flow.base import Needs
from burnish.batches.ends import Ends
from burnish.models.flow.teachers import check_teacher, load_teacher
from burnish.options.flow import LoraOptions, ModelOptions
from burnish.registry import lookup, options
from burnish.tasks.flow.roles import FlowRoles
from burnish.utils.errors import UserError
from tests.conformance import case
from tests.support.factory import tiny_flux, tiny_pipeline
from tests.support.flow_bench import POLICY_GRADIENTS, WINDOW, Bench, Red, unconditioned
from tests.support.forward_batches import scored as finished

SHIFT = torch.tensor([0.1, -0.1, 1.5, -1.5, 0.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])  # nats by step
FIXED = {"kind": "fixed", "size": 2}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    return tiny_pipeline(tmp_path_factory.mktemp("sd3"), vae=False)


def bench_of(pipeline, name="flow_grpo", *, bench=None, **chosen):
    return Bench(pipeline, lookup("flow algorithm", name)(**chosen), **(bench or {}))


def credited(bench, scored=None, **scores):
    scored = scored or bench.collect()
    scored = replace(scored, scores=replace(scored.scores, **scores))
    return bench.algorithm.credit(bench.algorithm.annotate(scored, bench.roles))


def gradient(bench, batch, size=100):
    """Of the sum of the loss."""
    bench.roles.model.network.zero_grad()
    for part in bench.algorithm.micro_batches(batch, size):
        bench.algorithm.loss(part, bench.roles).total.backward()
    return torch.cat([p.grad.flatten() for p in bench.roles.parameters().values() if p.grad is not None])


@pytest.mark.parametrize("name", POLICY_GRADIENTS)
def test_on_policy_the_ratio_is_exactly_one_and_the_order_of_samples_changes_nothing(pipeline, name):
    bench = Bench(pipeline, POLICY_GRADIENTS[name](kl_coef=0.1), lora=False, batch_size=5)
    before, metrics = bench.weights(), bench.train(2)
    assert metrics["actor/ratio_mean"] == 1.0
    assert {value for name, value in metrics.items() if name.startswith("actor/ppo_kl")} == {0.0}
    assert metrics["rollout_corr/logprob_abs_diff"] < 1e-4
    assert (bench.weights() - before).abs().max() > 1e-3
    scored = bench.collect()
    order = torch.randperm(len(scored), generator=torch.Generator().manual_seed(1))
    learned = [credited(bench, some)[0] for some in (scored, scored.select(order))]
    first, second = gradient(bench, learned[0]), gradient(bench, learned[1], 5)
    torch.testing.assert_close(second, first, rtol=1e-3, atol=2e-4 * float(first.abs().max()))


def disagreeing(bench, shift=SHIFT):
    """Samples whose sampler had other log-probs: the learner's minus ``shift`` nats at every step."""
    scored = bench.collect()
    moved = scored.trace.logprob - shift[:, None] / elements(scored)
    return replace(scored, trace=replace(scored.trace, logprob=moved))


def elements(scored):
    """Of a latent: what log-probs are means over."""
    return scored.trace.latents[0].numel()


@cache
def untrained(pipeline):
    """A bench that tests may share, since nobody trains it."""
    return bench_of(pipeline, bench={"merge_lora": False}, window=FIXED)


def corrected(pipeline, correction, **more):
    options = {name: value for name, value in ({"clip": 0.5} | more).items() if value is not None}
    bench = copy.copy(untrained(pipeline))
    bench.algorithm = lookup("flow algorithm", "flow_grpo")(window=FIXED, rollout_correction=correction, **options)
    return bench


NO_CLIP = {"clip": 0.99, "clip_high": 1e6}  # bypass clips around the sampler, which is not the subject here


@pytest.mark.parametrize("mode", ["decoupled", "bypass"])
@pytest.mark.parametrize(("correction", "more", "weight"), [
    ({"upper": 2.0}, {"clip": None, "surrogate": "reinforce"}, SHIFT.exp().clamp(max=2.0)),
    ({"upper": 2.0}, NO_CLIP, SHIFT.exp().clamp(max=2.0)),
    ({"upper": 2.0, "lower": 0.5}, NO_CLIP, torch.where(SHIFT.abs() > 0.7, torch.zeros(12), SHIFT.exp())),
    ({"weights": "sample", "upper": 2.0}, NO_CLIP, (2 * SHIFT).exp().clamp(max=2.0)),
], ids=["reinforce", "truncated", "icepop", "of the sample"])  # fmt: skip
def test_every_step_pulls_with_its_bounded_weight(pipeline, mode, correction, more, weight):
    """Also in bypass, where ratios against the sampler hold the unbounded weight already."""
    bench = corrected(pipeline, {"mode": mode} | correction, **more)
    scored = disagreeing(bench)
    actual = gradient(bench, credited(bench, scored)[0])
    plain = lookup("flow algorithm", "flow_grpo")(window=FIXED)
    learned, _ = plain.credit(plain.annotate(scored, bench.roles))
    bench.algorithm = plain
    expected = gradient(bench, replace(learned, weight=weight[:, None].expand(-1, 2)))
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize(("rules", "kept"), [
    ({"reject": "token_k1", "reject_above": 2.0}, 10),
    ({"reject": "seq_mean_k1", "reject_above": 5.0, "reject_below": 0.5}, 11),
    ({"reject": "seq_max_k3", "reject_above": 0.5}, 10),
    ({"reject": "seq_sum_k2", "reject_above": 0.03}, 9),
    ({"reject": ["token_k1", "seq_mean_k1"], "reject_above": [5.0, 2.0], "reject_below": [0.5, 0.1]}, 10),
])  # fmt: skip
def test_what_any_rule_rejects_leaves_the_count(pipeline, rules, kept):
    bench = corrected(pipeline, {"weights": "none"} | rules)
    learned, metrics = credited(bench, disagreeing(bench))
    assert len(learned) == kept
    assert bench.algorithm.size(learned) == 2 * kept
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 - kept / 12)
    assert metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == pytest.approx(1 - kept / 12)
    if isinstance(rules["reject"], list):
        assert metrics["rollout_corr/rollout_rs_token_k1_masked_fraction"] == pytest.approx(1 / 12)


def test_a_single_step_or_a_whole_update_may_be_rejected(pipeline):
    rule = {"weights": "none", "reject": "token_k2", "reject_above": 0.5}
    bench = bench_of(pipeline, bench={"merge_lora": False}, window=FIXED, rollout_correction=rule)
    scored, before = bench.collect(), bench.weights()
    logprob = scored.trace.logprob.clone()
    logprob[3, 1] += 2
    learned, _ = credited(bench, replace(scored, trace=replace(scored.trace, logprob=logprob)))
    assert bench.algorithm.size(learned) == 23
    assert learned.trained[3].tolist() == [True, False]
    assert bench.train(scored=disagreeing(bench, torch.full((12,), 3.0)))["actor/skipped_updates"] == 1
    assert torch.equal(bench.weights(), before)


def test_metrics_of_the_correction_are_of_the_steps_that_count(pipeline):
    bench = corrected(pipeline, {"mode": "decoupled", "measure": "mean", "batch_normalise": True})
    scored = disagreeing(bench, torch.tensor([5.0] + 11 * [0.1]))
    learned, metrics = credited(bench, scored, missing=torch.arange(12) == 0)
    assert float(learned.weight.mean()) == pytest.approx(1.0, abs=1e-5)
    assert metrics["rollout_corr/logprob_abs_diff_max"] == pytest.approx(0.1 / elements(scored), rel=1e-2)
    assert metrics["rollout_corr/kl"] == pytest.approx(-0.1 / elements(scored), rel=1e-2)
    assert metrics["rollout_corr/rollout_is_eff_sample_size"] > 0.999


def aged(pipeline, name="flow_grpo", **chosen):
    """A worker after one update, samples for the next one by the weights of before, and others by the present ones."""
    bench = bench_of(pipeline, name, bench={"merge_lora": False}, window=WINDOW, **chosen)
    stale = replace(bench.collect(2), version=0)
    bench.train()
    return bench, stale, bench.collect(2)


def test_log_probs_of_older_weights_are_not_taken_for_the_policys_own(pipeline):
    bench, stale, fresh = aged(pipeline, clip=1e-3)
    annotated = bench.workers.annotate(fresh)
    assert annotated.metrics["old_policy/recomputed"] == 0
    assert torch.equal(annotated.old, fresh.trace.logprob)
    annotated = bench.workers.annotate(stale)
    assert annotated.metrics["old_policy/recomputed"] == 1
    assert (annotated.old - stale.trace.logprob).abs().max() > 1e-4
    metrics = bench.workers.update(bench.algorithm.credit(annotated)[0], 2)
    assert metrics["actor/ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    bench, stale, _ = aged(pipeline, "flow_dppo")  # which compares means
    annotated = bench.workers.annotate(stale)
    assert annotated.old_mean.shape[2:] == stale.trace.state.shape[2:]
    assert annotated.metrics["old_policy/recomputed"] == 1


@pytest.mark.parametrize("mode", ["decoupled", "bypass"])
def test_the_correction_weighs_what_older_weights_sampled(pipeline, mode):
    bench, stale, fresh = aged(pipeline, clip=0.5, rollout_correction={"mode": mode})
    away = []
    for scored in (stale, fresh):
        annotated = bench.workers.annotate(scored)
        learned, _ = bench.algorithm.credit(annotated)
        difference = annotated.learner - scored.trace.logprob  # means over the elements of a latent
        ratio = (difference * elements(scored)).exp()
        bounded = ratio.clamp(max=2.0)
        torch.testing.assert_close(learned.weight, bounded if mode == "decoupled" else bounded / difference.exp())
        away.append(float((ratio - 1).abs().max()))
    assert away[0] > 1e-2 > 1e-3 > away[1]


def counted(bench):
    """How many rows each forward has, and what was sampled."""
    rows, model, inner = [], bench.roles.model, bench.roles.model.velocity
    model.velocity = lambda network, x, time, asked: rows.append(len(x)) or inner(network, x, time, asked)
    return rows, bench.collect()


def test_a_tree_is_computed_and_trained_edge_by_edge(pipeline):
    """Also when the first leaf of an edge has no reward."""
    rows, scored = counted(bench := Bench(pipeline, POLICY_GRADIENTS["branch_grpo"]()))
    assert rows == [4, 6, 6, 12, 12]  # never fewer than four, which would round otherwise
    for slot, together in enumerate([2, 2, 1, 1]):  # leaves below a node after each of the four steps
        ends = scored.trace.next_state[:, slot].view(3, 4 // together, together, -1)
        assert torch.equal(ends, ends[:, :, :1].expand_as(ends))
        assert len(ends[:, :, 0].flatten(0, 1).unique(dim=0)) == 3 * 4 // together
    assert bench.algorithm.size(credited(bench, scored)[0]) == 3 * (2 + 2 + 4 + 4)
    assert bench.algorithm.size(credited(bench, scored, missing=torch.arange(12) == 0)[0]) == 3 * (2 + 2 + 4 + 4) - 2


@pytest.mark.parametrize(("chosen", "low", "high"), [
    ({"advantage_clip": None}, -1.7, 1.7), ({"advantage_clip": 1.0}, -1.0, 1.0),
    ({"advantage_clip": 1.0, "advantage_clip_low": -0.2}, -0.2, 1.0),
    ({"advantage_clip": None, "advantage_clip_low": -0.2}, -0.2, 1.7),
])  # fmt: skip
def test_advantages_are_bounded_on_either_side_or_not_at_all(pipeline, chosen, low, high):
    """Flow-DPPO is published with no bound but its trust region."""
    bench = bench_of(pipeline, "flow_dppo", window=WINDOW, **chosen)
    learned, _ = credited(bench, reward=torch.tensor([0.0, 0.0, 0.0, 4.0] * 2 + [0.0, 4.0, 4.0, 4.0]))
    assert float(learned.advantage.max()) == pytest.approx(high, abs=0.05)
    assert float(learned.advantage.min()) == pytest.approx(low, abs=0.05)


def test_which_steps_and_samples_count(pipeline):
    bench = bench_of(pipeline, best_of=2)
    reward = torch.tensor([3.0, 0.0, 9.0, 1.0]).repeat(3)
    learned, _ = credited(bench, reward=reward)
    whole, _ = credited(bench_of(pipeline), reward=reward)  # the best and the worst, compared with the whole group
    assert torch.equal(learned.advantage[:, 0], whole.advantage[:, 0].view(3, 4)[:, [1, 2]].flatten())
    for steps in (1, 4):  # advantages don't depend on how many steps are trained
        some, _ = credited(bench_of(pipeline, window={"kind": "fixed", "size": steps}), reward=reward)
        assert torch.equal(some.advantage, whole.advantage[:, :1].expand(-1, steps))
    bench = bench_of(pipeline, "dance_grpo", timestep_fraction=0.5)
    scored = bench.collect()
    trained = bench.algorithm.trained_steps(scored)
    assert (trained.sum(1) == 2).all()
    assert torch.equal(bench.algorithm.trained_steps(scored.select([7, 3])), trained[[7, 3]])
    assert not torch.equal(bench.algorithm.trained_steps(bench.collect(2)), trained)
    bench = bench_of(pipeline, "tempflow_grpo", transition="dance", window={"kind": "all"})
    trace = bench.collect().trace
    length = trace.time - trace.time_next  # steps weigh as much as their noise
    weight = bench.algorithm.step_weights(bench.collect())
    torch.testing.assert_close(weight, length.sqrt() / length.sqrt().mean(1, keepdim=True))


def test_policies_that_lag_follow_and_are_restored(pipeline):
    chosen = {"old_decay": "ema", "old_ema": 0.5, "train_timesteps": 2, "sample_with": "slow",
              "lagged": {"slow": {"decay": "ema", "ema": 0.75, "update_interval": 2}}}  # fmt: skip
    bench = bench_of(pipeline, "diffusion_nft", **chosen)
    start = [value.detach().clone() for value in bench.roles.parameters("slow").values()]
    first = bench.collect().trace.latents
    bench.train(1)
    assert not bench.roles.is_policy("slow")
    assert torch.equal(bench.collect().trace.latents, first), "it follows at every second update"
    bench.workers.update(credited(bench, bench.collect(2))[0], 2)
    slow, policy = (list(bench.roles.parameters(name).values()) for name in ("slow", "policy"))
    torch.testing.assert_close(slow, [0.75 * was + 0.25 * now for was, now in zip(start, policy, strict=True)])
    other = bench_of(pipeline, "diffusion_nft", **chosen)
    other.workers.load_state_dict(bench.workers.state_dict())
    assert not other.roles.is_policy("slow")
    for name in ("policy", "old", "slow"):
        assert all(map(torch.equal, other.roles.parameters(name).values(), bench.roles.parameters(name).values()))
    before = bench_of(pipeline, "diffusion_nft", train_timesteps=2).workers.state_dict()
    with pytest.raises(UserError, match="slow"):
        other.workers.load_state_dict(before)


def test_blending_the_old_policy():
    c = case("credit", "nft/ema_update")
    network = torch.nn.Linear(3, 1, bias=False)
    model = SimpleNamespace(network=network, device=torch.device("cpu"), runs_own=False)
    roles = FlowRoles(model, Needs(lagged=("old",)), None, guidance=1.0, micro_batch_size=4, on_policy=True, seed=0)
    with torch.no_grad():
        roles.parameters("old")["weight"].copy_(torch.tensor([c.inputs["old"]]))
        network.weight.copy_(torch.tensor([c.inputs["current"]]))
    roles.blend("old", c.inputs["decay"])
    c.close(roles.parameters("old")["weight"][0], c.expected["new_old"])
    assert not roles.is_policy("old")
    roles.blend("old", 0.0)
    assert torch.equal(roles.parameters("old")["weight"], network.weight)
    assert roles.is_policy("old")


def test_a_teacher_is_asked_with_its_own_weights_and_guidance_and_must_fit(pipeline, tmp_path):
    folders = {name: tmp_path / name for name in ("other", "flux", "vae", "t5")}
    for folder in folders.values():
        folder.mkdir()
    other, student = tiny_pipeline(folders["other"], vae=False, seed=1), ModelOptions(path=str(pipeline))
    trained = ModelOptions(path=str(pipeline), lora=LoraOptions(rank=4))
    check_teacher(trained, str(other), None, "algorithm.teachers[0]")
    teacher = load_teacher(trained, str(other), None)
    teachers = [{"path": str(other), "guidance_scale": 2.0}, {"path": str(other)}]
    bench = bench_of(pipeline, "distill", bench={"load_teacher": lambda one: teacher}, teachers=teachers)
    trace = bench.collect().trace
    assert trace.time.shape == (12, 5)  # steps without noise are recorded to the very last
    assert torch.equal(trace.next_state[:, -1], trace.latents)
    part = trace.steps()
    with torch.no_grad():
        asked = (part.state, part.time, part.conditioning, part.unconditional)
        guided, plain = (role(*asked) for role in bench.roles.teachers)
        alone, away = (teacher.velocity(teacher.network, *asked[:2], one.rows()) for one in asked[2:])
    torch.testing.assert_close(plain, alone)
    torch.testing.assert_close(guided, away + 2 * (alone - away), rtol=1e-4, atol=1e-4)
    bench.train()
    refused = {
        "FluxPipeline": tiny_flux(folders["flux"], vae=False), "in_channels": tiny_pipeline(folders["vae"], vae=True),
        "text_encoder_3": tiny_pipeline(folders["t5"], vae=False, t5=True), "nowhere": "nowhere",
    }  # fmt: skip
    for word, path in refused.items():
        with pytest.raises(UserError, match=word) as caught:
            check_teacher(student, str(path), None, "algorithm.teachers[1]")
        assert str(caught.value).startswith("algorithm.teachers[1].path is ")
    with pytest.raises(UserError, match=r"teachers\[0\]\.lora is .*adapter"):
        check_teacher(student, None, str(tmp_path), "algorithm.teachers[0]")
    bench.roles.model.save_lora(tmp_path, "policy")  # an adapter teaches as the policy that was trained with it
    teacher = load_teacher(trained, None, str(tmp_path))
    with torch.no_grad():
        expected = bench.roles.policy(*asked)
        velocity = teacher.velocity(teacher.network, part.state, part.time, part.conditioning.rows())
    torch.testing.assert_close(velocity, expected, rtol=1e-4, atol=1e-4)


@options
class Brightness(Red):
    """Mean brightness, from 0 to 1."""

    def differentiable(self, pictures, prompts):
        return pictures.mean((1, 2, 3))


DRAFTS = {
    "draft": {"last_steps": 3, "recompute": True, "kl_coef": 0.1}, "refl": {"kind": "refl", "first": 1, "last": 4},
    "draft_lv": {"kind": "draft_lv", "renoised": 3},
}  # fmt: skip


def following(pipeline, *, micro=100, **chosen):
    rewards = {"red": Red(weight=2.0), "watched": Brightness(weight=0.0)}
    return bench_of(pipeline, "draft", bench={"rewards": rewards, "lora": False, "micro": micro}, **chosen)


def loss_of(bench, batch):
    """The loss of a batch, as the worker divides it."""
    parts = bench.algorithm.micro_batches(batch, bench.roles.micro_batch_size)
    return sum(bench.algorithm.loss(part, bench.roles).total for part in parts) / bench.algorithm.size(batch)


@pytest.mark.parametrize(("name", "vae"), [("draft", True), ("refl", False), ("draft_lv", False)])
def test_a_reward_is_followed_through_steps_and_decoding(pipeline, name, vae, tmp_path):
    """Its slope is that of finite differences, however the batch is cut."""
    folder = tiny_pipeline(tmp_path, vae=True) if vae else pipeline
    bench, cut = following(folder, **DRAFTS[name]), following(folder, micro=5, **DRAFTS[name])
    batch, _ = bench.algorithm.credit(bench.collect())
    loss_of(bench, batch).backward()
    loss_of(cut, batch).backward()
    slopes = [[p.grad for p in one.roles.parameters().values() if p.grad is not None] for one in (bench, cut)]
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-4)
    parameter = [*bench.roles.parameters().values()][-1]  # the last layer's bias: large effects, little curvature
    slope, values = parameter.grad.clone(), []
    with torch.no_grad():
        for size in (2e-3, -4e-3):
            parameter += size * slope / slope.norm()
            values.append(float(loss_of(bench, batch)))
    assert (values[0] - values[1]) / 4e-3 == pytest.approx(float(slope.norm()), rel=0.05)


def test_what_is_above_the_ceiling_teaches_nothing():
    reward = torch.tensor([0.2, 0.9], requires_grad=True)
    part = Ends(conditioning=unconditioned(2), unconditional=unconditioned(2), prompts=finished().prompts[:2],
                state=torch.zeros(2, 1, 2, 2), times=torch.tensor([[0.5, 0.0]] * 2))  # fmt: skip
    roles = SimpleNamespace(policy=lambda x, *_: x, reward=lambda latents, *_: reward)
    loss = lookup("flow algorithm", "draft")(ceiling=0.5).loss(part, roles)
    loss.total.backward()
    assert float(loss.total.detach()) == pytest.approx(0.3)
    assert reward.grad.tolist() == [-1.0, 0.0]
