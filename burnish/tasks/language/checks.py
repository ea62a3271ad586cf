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
from burnish.data.records import data_error
from burnish.language.model import LanguageModel, Positions
from burnish.models.language.loading import check_experts, check_readable, check_words
from burnish.models.language.teachers import check_tokens
from burnish.tasks.language.engine import length_unread
from burnish.tasks.language.teachers import check_taught
from burnish.types.prompt import Message, Prompt, Prompts

PICTURE, PATCH = 600, 196  # tokens of a picture at most: some, and one more for every PATCH of its pixels


def check_inputs(config: LanguageConfig, needs: LanguageNeeds, trained: Prompts, others: Sequence[Prompt]) -> None:
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
    check_readable(config.model, (*trained.kinds, *others))


def check_messages(
    reader: Callable[[], LanguageModel], prompts: Sequence[Prompt], tools: Sequence[dict[str, Any]]
) -> None:
    """Refuse conversations that the chat template refuses, or of which it leaves something out.

    Args:
        reader: the model or its outline, asked only where messages are other than a question and a system message.
        prompts: all of them.
        tools: JSON schemas of functions that they tell of.

    Raises:
        UserError: with the first such prompts.
    """
    unusual = [prompt for prompt in prompts if prompt.tools or not _is_usual(prompt.messages)]
    unusual = list({(prompt.where, prompt.uid): prompt for prompt in unusual}.values())
    if not unusual:
        return
    model = reader()
    found = [
        (prompt.name, model.refusal(prompt.chat(), prompt.told(tools) if prompt.tools else ())) for prompt in unusual
    ]
    if problems := [(name, why) for name, why in found if why]:
        count = len({(prompt.where, prompt.uid) for prompt in prompts})
        head = f"{len(problems)} of {count} conversations can't be asked: {problems[0][1]}"
        raise data_error([name for name, _ in problems], head)


def _is_usual(messages: Sequence[Message]) -> bool:
    """Whether a template's answer to the first conversation like it is told soon enough, for all of them."""
    roles = [message.role for message in messages]
    return roles in ([], ["user"], ["system", "user"]) and not any(
        message.more or sum(part.kind == "text" for part in message.parts) > 1 for message in messages
    )


def check_room(
    config: LanguageConfig,
    needs: LanguageNeeds,
    positions: Positions,
    reader: Callable[[], LanguageModel],
    tools: Sequence[dict[str, Any]],
    *,
    trained: Prompts,
    validated: Prompts,
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
        return model.count_tokens(prompt.chat(), prompt.told(tools)) if found is None else found

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
    judged = needs.heads or not config.validates
    for prompts, room, instead in (
        (trained, most if config.online else 1, limit),
        (validated, 1 if judged else most, "give others in data.val_files"),
    ):
        check_positions(prompts, longest, length, limit=limit_of, room=room, more=more, instead=instead)
