"""A worker that draws with a tiny model, with rewards that are a fixed function of the image."""

import numpy as np
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
from burnish.registry import options
from burnish.rewards.base import Reward, Score
from burnish.training.optimizer import Ema, ParameterGroup
from burnish.training.ranks import SINGLE_RANK
from burnish.training.trainer import Trainer
from burnish.types.rollout import Denoising, Prompt, Scored, Scores

WINDOW = Window(kind="random", size=2, scattered=True)
MOVING = Window(kind="progressive", size=2, stride=1, every=1)
PROMPTS = [Prompt(text=text) for text in ("one", "two", "three")]

POLICY_GRADIENTS = {
    "flow_grpo": lambda **o: FlowGRPO(window=WINDOW, **o),
    "flow_grpo_fast": lambda **o: variants.FlowGRPOFast(**o),
    "mix_grpo": lambda **o: variants.MixGRPO(window=MOVING, steps_after=0.5, **o),
    "dance_grpo": lambda **o: variants.DanceGRPO(best_of=2, **o),
    "grpo_guard": lambda **o: variants.GRPOGuard(window=WINDOW, **o),
    "flow_dppo": lambda **o: variants.FlowDPPO(window=WINDOW, **o),
    "tempflow_grpo": lambda **o: variants.TempFlowGRPO(**o),
    "branch_grpo": lambda **o: variants.BranchGRPO(splits=[0, 2], **o),
}


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
        job = FlowJob.groups(PROMPTS, 4, purpose="rollout", update=update, **how)
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
