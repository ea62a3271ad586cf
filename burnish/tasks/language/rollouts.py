"""Responses that are asked for, made and judged in this process."""

from __future__ import annotations

from collections.abc import Callable

import torch

from burnish.algorithms.language.base import LanguageNeeds
from burnish.environments.base import Environment
from burnish.language.sampling import Sampling
from burnish.rewards.scoring import AnyScorer, awaited
from burnish.rewards.text.environment import turn_rewards
from burnish.rollout.requests import RolloutRequest
from burnish.tasks.language.dialogues import dialogue_metrics
from burnish.tasks.language.engine import ResponseEngine, ResponseJob
from burnish.types.rollout import ScoredResponses, failures_of
from burnish.utils.timer import Stopwatch


class ResponseRollouts:
    """Samples with an engine and has the responses judged."""

    def __init__(
        self,
        engine: ResponseEngine,
        scorer: AnyScorer,
        needs: LanguageNeeds,
        *,
        sampling: Sampling,
        environment: Environment | None,
        watch: Stopwatch,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """Args: ``between`` is called again and again; what it raises, Cancelled most likely, ends the work."""
        self.engine, self.scorer, self.needs = engine, scorer, needs
        self.sampling, self.environment, self.watch = sampling, environment, watch
        self.between = between

    @property
    def limit(self) -> int:
        """Tokens that the policy can write for a sample."""
        longest = self.sampling.max_new_tokens
        return longest if self.environment is None else self.environment.longest(longest)

    @property
    def turns(self) -> int:
        """Responses that a dialogue can have; 0 without an environment."""
        return 0 if self.environment is None else self.environment.max_turns

    def generate(self, request: RolloutRequest) -> ScoredResponses:
        self.between()  # an engine elsewhere is asked for everything at once
        job = ResponseJob(
            prompts=request.prompts, group=request.group, sample=request.sample, purpose="rollout",
            update=request.update, sampling=self.sampling, between=self.between,
        )  # fmt: skip
        with self.watch("gen"):
            trace, responses = self.engine.sample(job)
        pending = self.scorer.submit(responses, job.prompts)
        with self.watch("reward"):
            scores = awaited(pending, self.between)
        spoken = {f"train/{name}": value for name, value in dialogue_metrics(responses).items()}
        dialogues = float(sum(response.dialogue is not None for response in responses))
        return ScoredResponses(
            prompts=job.prompts,
            group=job.group,
            sample=job.sample,
            trace=trace,
            scores=scores,
            greedy=self._greedy(job),
            turn_rewards=turn_rewards(self.scorer.rewards, responses, job.prompts, self.turns),
            limit=self.limit,
            update=request.update,
            version=request.version,
            seed=self.engine.seed,
            metrics=self.engine.metrics | spoken,
            counts={name: dialogues for name in spoken if not name.endswith("/max")},
            failures=failures_of(job.prompts, job.sample, scores),
        )

    def _greedy(self, job: ResponseJob) -> torch.Tensor:
        """Reward of the likeliest response to each row's prompt, [B]; NaN where it is missing or nobody asks for it."""
        if not self.needs.greedy:
            return torch.full((len(job.prompts),), torch.nan)
        likeliest = job.greedy()
        with self.watch("gen"):
            _, responses = self.engine.sample(likeliest)
        scores = awaited(self.scorer.submit(responses, likeliest.prompts), self.between)
        place = torch.unique_consecutive(job.group, return_inverse=True)[1]
        return scores.reward.masked_fill(scores.missing, torch.nan)[place]
