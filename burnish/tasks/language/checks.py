"""What is wrong with a language model's prompts and options, found before any weight is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.algorithms.language.base import LanguageNeeds
from burnish.config.language import LanguageConfig
from burnish.models.language.loading import check_experts, check_own_family, check_readable
from burnish.models.language.teachers import check_tokens
from burnish.tasks.language.teachers import check_taught
from burnish.types.prompt import Prompt


def check_inputs(
    config: LanguageConfig, needs: LanguageNeeds, trained: Sequence[Prompt], others: Sequence[Prompt]
) -> None:
    """Refuse a model, its teachers or an environment that don't fit the prompts, by configuration files alone.

    Args:
        config: of the run.
        needs: of its algorithm.
        trained: prompts to learn from.
        others: those of validations, and of records with responses.

    Raises:
        UserError: naming what does not fit.
    """
    if config.environment is not None:
        config.environment.check()
    check_experts(config.model)
    for number, teacher in enumerate(needs.teachers):
        if teacher.path is not None:
            check_tokens(config.model, teacher, f"algorithm.teachers[{number}]")
    if needs.teachers:
        check_taught(needs.teachers, trained)
    if config.rollout.vllm is not None:
        check_own_family(config.model)
    check_readable(config.model, (*trained, *others))
