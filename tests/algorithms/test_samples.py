"""Samples of a tiny generator: which steps count, what older weights sampled, rewards that are followed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from burnish.diffusion.algorithms import variants
from burnish.diffusion.algorithms.policy_gradient import FlowGRPO, Window
from burnish.diffusion.engine import FlowEngine, FlowJob
from burnish.diffusion.options import ModelOptions, RolloutOptions, TrainerOptions
from burnish.diffusion.pipeline.loading import load_model
from burnish.diffusion.roles import FlowRoles
from burnish.metrics import Stopwatch
from burnish.options import OptimizerOptions
from burnish.options.model import LoraOptions
from burnish.registry import lookup, options
from burnish.rewards.base import Reward, Score
from burnish.training.optimizer import Ema, ParameterGroup
from burnish.training.ranks import SINGLE_RANK
from burnish.training.trainer import Trainer
from burnish.types.rollout import Denoising, Prompt, Scored, Scores
from tests.conformance import case
from tests.support.factory import tiny_pipeline

WINDOW = Window(kind="random", size=2, scattered=True)
MOVING = Window(kind="progressive", size=2, stride=1, every=1)
PROMPTS = [Prompt(text=text) for text in ("one", "two", "three")]

POLICY_GRADIENTS = {
    "flow_grpo": lambda **o: FlowGRPO(window=WINDOW, **o), "flow_grpo_fast": lambda **o: variants.FlowGRPOFast(**o),
    "mix_grpo": lambda **o: variants.MixGRPO(window=MOVING, steps_after=0.5, **o),
    "dance_grpo": lambda **o: variants.DanceGRPO(best_of=2, **o),
    "grpo_guard": lambda **o: variants.GRPOGuard(window=WINDOW, **o),
    "flow_dppo": lambda **o: variants.FlowDPPO(window=WINDOW, **o),
    "tempflow_grpo": lambda **o: variants.TempFlowGRPO(**o),
    "branch_grpo": lambda **o: variants.BranchGRPO(splits=[0, 2], **o),
}  # fmt: skip


@options
class Red(Reward):
    """Mean of the first channel, squared."""

    def score(self, images, prompts):
        pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 255
        return [Score(float(value)) for value in self.differentiable(pixels, prompts)]

    def differentiable(self, pixels, prompts):
        return pixels[:, 0].square().mean((1, 2))


class Bench:
    """A worker with an engine, and rewards that are a fixed function of the image."""

    def __init__(self, pipeline, algorithm, *, lora=True, micro=100, rewards=None, **rollout):
        options = LoraOptions(rank=4) if lora else None
        sizes = {"n": 4, "num_inference_steps": 5, "max_sequence_length": 4}
        self.rollout = RolloutOptions(**{"batch_size": 96} | sizes | rollout)
        model = load_model(ModelOptions(path=str(pipeline), lora=options), self.rollout)
        self.algorithm, self.needs = algorithm, algorithm.needs()
        self.roles = FlowRoles(
            model, self.needs, options, guidance=1.0, micro_batch_size=micro, on_policy=True, seed=0, rewards=rewards
        )
        self.engine = FlowEngine(self.roles, self.rollout, seed=0)
        actor = ParameterGroup("actor", self.roles.parameters(), OptimizerOptions(lr=1e-2), total_steps=10)
        self.workers = Trainer(
            self.roles, algorithm, [actor], options=TrainerOptions(), ema=Ema(self.roles.parameters(), 0.9),
            seed=0, watch=Stopwatch(), ranks=SINGLE_RANK,
        )  # fmt: skip

    def sampled(self, update=1, streams=()):
        how = {"recording": self.needs.recording, "role": self.needs.sampler, "streams": frozenset(streams)}
        job = FlowJob.groups(PROMPTS, 4, purpose="rollout", update=update, fp8=self.rollout.fp8, **how)
        trace = Denoising.cat([trace for _, trace, _ in self.engine.sample(job)])
        reward = trace.latents.flatten(1).mean(1)
        none = torch.zeros(12, dtype=torch.bool)
        scores = Scores(reward=reward, missing=none, components=reward[:, None], names=("mean",), notes=[""] * 12)
        return Scored(
            prompts=job.prompts, group=job.group, sample=job.sample, trace=trace, scores=scores,
            update=update, version=update - 1, seed=0,
        )  # fmt: skip

    def train(self, updates=1, scored=None):
        for update in range(1, updates + 1):
            annotated = self.workers.compute_logprobs(scored or self.sampled(update))
            metrics = self.workers.update(self.algorithm.compute_advantages(annotated)[0], update)
            self.workers.sync_weights(update)
        return metrics

    def weights(self):
        return torch.cat([value.detach().flatten() for value in self.roles.parameters().values()])


SHIFT = torch.tensor([0.1, -0.1, 1.5, -1.5, 0.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])  # nats by step
FIXED = {"kind": "fixed", "size": 2}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    return tiny_pipeline(tmp_path_factory.mktemp("sd3"), vae=False)


def bench_of(pipeline, name="flow_grpo", *, bench=None, **chosen):
    return Bench(pipeline, lookup("flow algorithm", name)(**chosen), **(bench or {}))


def credited(bench, scored=None, **scores):
    scored = scored or bench.sampled()
    scored = replace(scored, scores=replace(scored.scores, **scores))
    return bench.algorithm.compute_advantages(bench.algorithm.compute_logprobs(scored, bench.roles))


@pytest.mark.parametrize(("name", "fp8"), [*((name, False) for name in POLICY_GRADIENTS), ("flow_grpo", True)])
def test_on_policy_the_ratio_is_exactly_one(pipeline, name, fp8):
    bench = Bench(pipeline, POLICY_GRADIENTS[name](kl_coef=0.1), lora=False, batch_size=5, fp8=fp8)
    metrics = bench.train(2)
    assert metrics["actor/ratio_mean"] == 1.0
    assert {value for name, value in metrics.items() if name.startswith("actor/ppo_kl")} == {0.0}
    assert metrics["rollout_corr/logprob_abs_diff"] < (1e-6 if fp8 else 1e-4)


def test_products_in_fp8_move_a_sample_little_and_whatever_its_neighbours_learn_from(pipeline):
    ways = {"exact": {"fp8": False}, "together": {"fp8": True}, "alone": {"fp8": True, "batch_size": 1}}
    found = {way: bench_of(pipeline, window=WINDOW, bench=how).sampled().trace.latents for way, how in ways.items()}
    torch.testing.assert_close(found["together"], found["alone"])
    assert 1e-4 < float((found["together"] - found["exact"]).norm() / found["exact"].norm()) < 1e-2


def disagreeing(bench, shift=SHIFT):
    """Samples whose sampler had other log-probs: the learner's minus ``shift`` nats at every step."""
    scored = bench.sampled()
    moved = scored.trace.logprob - shift[:, None] / elements(scored)
    return replace(scored, trace=replace(scored.trace, logprob=moved))


def elements(scored):
    return scored.trace.latents[0].numel()


def test_a_whole_update_may_be_rejected(pipeline):
    rule = {"weights": "none", "reject": "token_k2", "reject_above": 0.5}
    bench = bench_of(pipeline, bench={"merge_lora": False}, window=FIXED, rollout_correction=rule)
    before = bench.weights()
    assert bench.train(scored=disagreeing(bench, torch.full((12,), 3.0)))["actor/skipped_updates"] == 1
    assert torch.equal(bench.weights(), before)


def test_log_probs_of_older_weights_are_not_taken_for_the_policys_own(pipeline):
    bench = bench_of(pipeline, bench={"merge_lora": False}, window=WINDOW, clip=1e-3)
    stale = replace(bench.sampled(2), version=0)
    bench.train()
    fresh = bench.sampled(2)
    annotated = bench.workers.compute_logprobs(fresh)
    assert annotated.metrics["old_policy/recomputed"] == 0
    assert torch.equal(annotated.old, fresh.trace.logprob)
    annotated = bench.workers.compute_logprobs(stale)
    assert annotated.metrics["old_policy/recomputed"] == 1
    assert (annotated.old - stale.trace.logprob).abs().max() > 1e-4
    metrics = bench.workers.update(bench.algorithm.compute_advantages(annotated)[0], 2)
    assert metrics["actor/ratio_mean"] == pytest.approx(1.0, abs=1e-6)


def test_a_tree_is_trained_edge_by_edge(pipeline):
    """Also when the first leaf of an edge has no reward."""
    bench = Bench(pipeline, POLICY_GRADIENTS["branch_grpo"]())
    scored = bench.sampled()
    for slot, together in enumerate([2, 2, 1, 1]):  # leaves below a node after each of the four steps
        ends = scored.trace.next_state[:, slot].view(3, 4 // together, together, -1)
        assert torch.equal(ends, ends[:, :, :1].expand_as(ends))
        assert len(ends[:, :, 0].flatten(0, 1).unique(dim=0)) == 3 * 4 // together
    assert bench.algorithm.size(credited(bench, scored)[0]) == 3 * (2 + 2 + 4 + 4)
    assert bench.algorithm.size(credited(bench, scored, missing=torch.arange(12) == 0)[0]) == 3 * (2 + 2 + 4 + 4) - 2


def test_which_steps_and_samples_count(pipeline):
    bench = bench_of(pipeline, best_of=2)
    reward = torch.tensor([3.0, 0.0, 9.0, 1.0]).repeat(3)
    learned, _ = credited(bench, reward=reward)
    whole, _ = credited(bench_of(pipeline), reward=reward)  # the best and the worst, compared with the whole group
    assert torch.equal(learned.advantage[:, 0], whole.advantage[:, 0].view(3, 4)[:, [1, 2]].flatten())


def test_policies_that_lag_follow_and_are_restored(pipeline):
    chosen = {"old": {"decay": "ema", "ema": 0.5}, "train_timesteps": 2, "sample_with": "slow",
              "lagged": {"slow": {"decay": "ema", "ema": 0.75, "update_interval": 2}}}  # fmt: skip
    bench = bench_of(pipeline, "diffusion_nft", **chosen)
    start = [value.detach().clone() for value in bench.roles.parameters("slow").values()]
    first = bench.sampled().trace.latents
    bench.train(1)
    assert not bench.roles.is_policy("slow")
    assert torch.equal(bench.sampled().trace.latents, first), "it follows at every second update"
    bench.workers.update(credited(bench, bench.sampled(2))[0], 2)
    slow, policy = (list(bench.roles.parameters(name).values()) for name in ("slow", "policy"))
    torch.testing.assert_close(slow, [0.75 * was + 0.25 * now for was, now in zip(start, policy, strict=True)])
    other = bench_of(pipeline, "diffusion_nft", **chosen)
    other.workers.load_state_dict(bench.workers.state_dict())
    assert not other.roles.is_policy("slow")
    for name in ("policy", "old", "slow"):
        assert all(map(torch.equal, other.roles.parameters(name).values(), bench.roles.parameters(name).values()))
    c = case("credit", "nft/ema_update")
    old, current = (next(iter(bench.roles.parameters(name).values())).flatten() for name in ("old", "policy"))
    with torch.no_grad():
        old[:3], current[:3] = torch.tensor(c.inputs["old"]), torch.tensor(c.inputs["current"])
    bench.roles.blend("old", c.inputs["decay"])
    c.close(old[:3], c.expected["new_old"])


def test_a_reference_that_follows_is_the_policy_of_the_last_update(pipeline):
    every = bench_of(pipeline, kl_coef=0.1, lagged={"reference": {"update_interval": 1}})
    assert every.train(3)["actor/kl_loss"] == pytest.approx(0.0, abs=1e-12)
    for updates, far in ((1, False), (2, True), (3, False)):
        bench = bench_of(pipeline, kl_coef=0.1, lagged={"reference": {"update_interval": 9, "kl_limit": 1e-12}})
        metrics = bench.train(updates)
        assert (metrics["actor/kl_loss"] > 1e-12) == bool(metrics["lagged/reference/copy_update"]) == far


DRAFTS = {
    "draft": {"last_steps": 3, "recompute": True, "kl_coef": 0.1},
    "refl": {"kind": "refl", "window": {"kind": "random", "size": 1, "start": 1, "stop": 4}},
    "draft_lv": {"kind": "draft_lv", "renoised": 3}, "srpo": {"time_range": (0.2, 0.8)},
}  # fmt: skip


def following(pipeline, name, *, micro=100):
    rewards, algorithm = {"red": Red(weight=2.0)}, name if name == "srpo" else "draft"
    return bench_of(pipeline, algorithm, bench={"rewards": rewards, "lora": False, "micro": micro}, **DRAFTS[name])


def loss_of(bench, batch):
    parts = bench.algorithm.micro_batches(batch, bench.roles.micro_batch_size)
    return sum(bench.algorithm.loss(part, bench.roles).total for part in parts) / bench.algorithm.size(batch)


@pytest.mark.parametrize(("name", "vae"), [("draft", True), ("refl", False), ("draft_lv", False), ("srpo", False)])
def test_a_reward_is_followed_through_steps_and_decoding(pipeline, name, vae, tmp_path):
    """Its slope is that of finite differences, however the batch is cut."""
    folder = tiny_pipeline(tmp_path, vae=True) if vae else pipeline
    bench, cut = following(folder, name), following(folder, name, micro=5)
    batch, _ = bench.algorithm.compute_advantages(bench.sampled())
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
