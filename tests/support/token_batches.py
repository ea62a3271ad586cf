"""A worker that asks a tiny model that sees, with rewards that are a fixed function of the response."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.algorithms.base import Algorithm
from burnish.language.sampling import Sampling
from burnish.models.language.loading import load_language_model
from burnish.options import OptimizerOptions
from burnish.options.cluster import ShardingOptions
from burnish.options.flow import ModelOptions
from burnish.options.language import CriticOptions, LanguageLoraOptions, LanguageTrainerOptions
from burnish.tasks.language.engine import LanguageEngine, ResponseJob
from burnish.tasks.language.roles import LanguageRoles
from burnish.training.ema import Ema
from burnish.training.parameter_groups import ParameterGroup
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.training.trainer import Trainer
from burnish.types.media import Media
from burnish.types.prompt import Message, Part, Prompt
from burnish.types.rollout import ScoredResponses, Scores
from burnish.utils.timer import Stopwatch
from tests.support.language_samples import folder_of

N, LIMIT = 4, 6


def asked(text: str, *pictures: int) -> Prompt:
    """A question about pictures of noise."""
    drawn = [np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8) for seed in pictures]
    parts = (*(Part("image") for _ in pictures), Part("text", text))
    return Prompt(text=text, messages=(Message("user", parts),), images=tuple(Media.array(one) for one in drawn))


PROMPTS = [asked("Hello?"), asked("One?", 1), asked("Two?", 2, 3)]  # one without a picture beside others with some


class Bench:
    """Networks, engine and workers around one algorithm."""

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        lora: bool | LanguageLoraOptions = False,
        mini: int | None = None,
        epochs: int = 1,
        budget: int = 10_000,
        layout: Any = "auto",
        critic: CriticOptions | None = None,
        freeze: tuple[str, ...] = (),
        prompts: list[Prompt] | None = None,
        lr: float = 1e-2,
        optimizer: OptimizerOptions | None = None,
        family: str = "qwen2_5_vl",
        folder: Path | None = None,
        router_aux_loss_coef: float = 0.0,
        checkpointing: bool = False,
        ranks: Ranks = SINGLE_RANK,
        dtype: Any = "float32",
        device: Any = "cpu",
        **options_of_model: Any,
    ) -> None:
        options = (lora if isinstance(lora, LanguageLoraOptions) else LanguageLoraOptions(rank=4)) if lora else None
        model = ModelOptions(
            path=str(folder or folder_of(family)),
            device=device,
            dtype=dtype,
            lora=options,
            gradient_checkpointing=checkpointing,
            **options_of_model,
        )
        self.algorithm, self.needs, self.prompts = algorithm, algorithm.needs(), prompts or PROMPTS
        critic = critic or CriticOptions(optimizer=OptimizerOptions(lr=1e-2))
        shared = ranks.size > 1 and model.quantization is None
        self.roles = LanguageRoles(
            load_language_model(model, shared=shared), self.needs, options, critic=critic, freeze=freeze,
            temperature=1.0, layout=layout, micro_batch_size=budget,
            on_policy=mini is None and epochs == 1, memory=algorithm.make_memory(), seed=0,
            router_aux_loss_coef=router_aux_loss_coef, mini_batch_size=mini, shared=shared,
        )  # fmt: skip
        if shared:
            self.roles.shard(ranks, ShardingOptions())
        elif ranks.size > 1:
            self.roles.copied_on(ranks)
        self.engine = LanguageEngine(self.roles, batch_size=64, seed=0)
        groups = [
            ParameterGroup(
                "actor", self.roles.parameters(), optimizer or OptimizerOptions(lr=lr), total_steps=10,
                first_update=critic.warmup_updates + 1,
            )
        ]  # fmt: skip
        if self.needs.critic:
            groups.append(ParameterGroup("critic", self.roles.parameters("critic"), critic.optimizer, total_steps=10))
        self.workers = Trainer(
            self.roles, algorithm, groups, options=LanguageTrainerOptions(mini_batch_size=mini, epochs=epochs),
            ema=Ema(self.roles.parameters(), 0.9), seed=0, watch=Stopwatch(), ranks=ranks,
        )  # fmt: skip

    def collect(self, update: int = 1) -> ScoredResponses:
        job = ResponseJob.groups(
            self.prompts, N, purpose="rollout", update=update, sampling=Sampling(max_new_tokens=LIMIT)
        )
        trace, _ = self.engine.sample(job)
        reward = (trace.ids * trace.mask).sum(1).float() % 7 / 7
        none = torch.zeros(len(reward), dtype=torch.bool)
        scores = Scores(reward=reward, missing=none, components=reward[:, None], names=("r",), notes=[""] * len(reward))
        return ScoredResponses(
            prompts=job.prompts, group=job.group, sample=job.sample, trace=trace, scores=scores,
            greedy=torch.full((len(reward),), 0.5), turn_rewards=torch.zeros(len(reward), 0), limit=LIMIT,
            update=update, version=self.workers.version, seed=0,
        )  # fmt: skip

    def learned(self, answered: ScoredResponses | None = None) -> tuple[Any, dict[str, float]]:
        return self.algorithm.credit(self.workers.annotate(answered or self.collect()))

    def train(self, updates: int = 1) -> dict[str, float]:
        """Metrics of the last one."""
        metrics: dict[str, float] = {}
        for update in range(self.workers.version + 1, self.workers.version + updates + 1):
            batch, credited = self.learned(self.collect(update))
            metrics = credited | self.workers.update(batch, update)
            self.workers.publish(update)
        return metrics

    def gradient(self, batch: Any) -> Tensor:
        """Of the policy and of the critic, as one vector."""
        for group in self.workers.groups:
            group.zero_grad()
        self.workers._backward(batch, max(self.algorithm.size(batch), 1))
        return torch.cat([_gradient(value) for group in self.workers.groups for value in group.parameters.values()])

    def weights(self, role: str = "policy") -> Tensor:
        return torch.cat([value.detach().flatten().clone() for value in self.roles.parameters(role).values()])


def _gradient(value: Tensor) -> Tensor:
    return (torch.zeros_like(value) if value.grad is None else value.grad).flatten().clone()
