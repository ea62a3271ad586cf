"""How a run samples responses, by its options."""

from __future__ import annotations

from typing import Any

from burnish.config.language import LanguageConfig, ResponseRolloutOptions
from burnish.language.sampling import Sampling
from burnish.options.language import LanguageValidationOptions


def rollout_sampling(config: LanguageConfig) -> Sampling:
    """How responses to learn from are sampled."""
    rollout = config.rollout
    return _sampling(
        config, rollout,
        min_new_tokens=rollout.min_new_tokens, first_temperature=rollout.fire_temperature,
        repetition_penalty=rollout.repetition_penalty,
    )  # fmt: skip


def validation_sampling(config: LanguageConfig) -> Sampling:
    """How responses to held-out questions are sampled."""
    return _sampling(config, config.validation)


def _sampling(
    config: LanguageConfig, section: ResponseRolloutOptions | LanguageValidationOptions, **more: Any
) -> Sampling:
    rollout = config.rollout
    return Sampling(
        max_new_tokens=rollout.max_new_tokens, stop=tuple(rollout.stop), temperature=section.temperature,
        top_k=section.top_k, top_p=section.top_p, min_p=section.min_p, **more,
    )  # fmt: skip
