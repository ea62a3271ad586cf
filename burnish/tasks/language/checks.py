"""What is wrong with a language model's prompts and options, found before any weight is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from burnish.algorithms.language.base import LanguageNeeds
from burnish.config.language import LanguageConfig
from burnish.data.language.offline import TEMPLATE
from burnish.data.language.prompts import check_positions
from burnish.language.model import LanguageModel, Positions
from burnish.models.language.loading import check_experts, check_own_family, check_readable, check_words
from burnish.models.language.teachers import check_tokens
from burnish.tasks.language.engine import length_unread
from burnish.tasks.language.teachers import check_taught
from burnish.types.prompt import Prompt

PICTURE, PATCH = 600, 196  # tokens of a picture at most: some, and one more for every PATCH of its pixels


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
    check_words(config.model)
    for number, teacher in enumerate(needs.teachers):
        if teacher.path is not None:
            check_tokens(config.model, teacher, f"algorithm.teachers[{number}]")
    if needs.teachers:
        check_taught(needs.teachers, trained)
    if config.rollout.vllm is not None:
        check_own_family(config.model)
    check_readable(config.model, (*trained, *others))


def check_room(
    config: LanguageConfig,
    needs: LanguageNeeds,
    positions: Positions,
    reader: Callable[[], LanguageModel],
    tools: Sequence[dict[str, Any]],
    *,
    trained: Sequence[Prompt],
    validated: Sequence[Prompt],
) -> None:
    """Refuse questions that leave the model too few positions for the responses that are sampled to them.

    Args:
        config: of the run.
        needs: of its algorithm.
        positions: of the model.
        reader: the model or its outline, asked only where a question may be too long.
        tools: JSON schemas of functions that the questions tell of.
        trained: questions to learn from; where their responses are given, those are measured elsewhere.
        validated: held-out ones.

    Raises:
        UserError: with the first such questions.
    """
    written = TEMPLATE + (len(json.dumps(tools, default=str)) if tools else 0)

    def length(prompt: Prompt) -> int:
        model = reader()
        found = length_unread(model, prompt, tools)
        return model.count_tokens(prompt.chat(), tools) if found is None else found

    def more(prompt: Prompt) -> int:
        found = written
        for picture in prompt.images:
            with suppress(OSError, ValueError):  # which is told of elsewhere, with the record
                width, height = picture.size()
                found += PICTURE + width * height // PATCH
        return found

    most, vllm = config.rollout.max_new_tokens, config.rollout.vllm
    longest, limit_of = positions
    if vllm is not None and vllm.max_model_len is not None and vllm.max_model_len < longest:
        longest, limit_of = vllm.max_model_len, "rollout.vllm.max_model_len"
    limit = f"set data.max_prompt_length={max(longest - most, 1)} and data.overlong=filter"
    judged = needs.heads or config.validation.every == 0
    for prompts, room, instead in (
        (trained, most if config.online else 1, limit),
        (validated, 1 if judged else most, "give others in data.val_files"),
    ):
        check_positions(prompts, longest, length, limit=limit_of, room=room, more=more, instead=instead)
