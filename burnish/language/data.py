"""What is wrong with a language model's prompts and options, found before any weight is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from burnish.data.questions import check_positions
from burnish.data.records import data_error
from burnish.data.values import shown
from burnish.language.algorithms.base import LanguageNeeds
from burnish.language.config import LanguageConfig
from burnish.language.encode import Encoder, length_unread, prompt_lengths
from burnish.language.model.base import Positions
from burnish.language.model.loading import check_experts, check_readable, check_split, positions_of
from burnish.language.model.tokenizer import check_vocabulary
from burnish.language.model.universal import LanguageModel
from burnish.language.records import ResponseRecord
from burnish.language.teachers import check_taught, check_tokens
from burnish.training.ranks import Ranks
from burnish.types.prompt import Message, Prompt, Prompts

TEMPLATE = 256  # tokens of a chat template around a question, at most
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
    if config.sharding.context_parallel > 1:
        check_split(config.model, config.sharding.context_parallel)
    check_vocabulary(config.model)
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
    chat = reader().chat
    found = [
        (prompt.name, chat.refusal(prompt.chat(), prompt.told(tools) if prompt.tools else ())) for prompt in unusual
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


def check_tokens_of(records: Sequence[ResponseRecord], reader: Callable[[], LanguageModel]) -> None:
    """Refuse tokens of responses that another tokenizer wrote.

    Args:
        records: all of them.
        reader: the model or its outline, asked only where records have tokens.

    Raises:
        UserError: with the first such records.
    """
    told = [(record, reader().decode(record.tokens)) for record in records if record.tokens is not None]
    problems = [
        f"{record.where}: {shown(said)} in place of {shown(record.responses[0])}"
        for record, said in told
        if said.strip() != record.responses[0].strip()
    ]
    if problems:
        head = (
            f"token_ids of {len(problems)} of {len(records)} responses say something else to this model's tokenizer; "
            "give those of this model, or leave token_ids and logprobs out"
        )
        raise data_error(problems, head)


SLACK = 16  # tokens of a response that are not of its text, such as its end


def prompts_of(records: Sequence[ResponseRecord]) -> list[Prompt]:
    """The prompts of all responses of records."""
    return [prompt for record in records for prompt, _ in record.rows]


def short_records(
    records: Sequence[ResponseRecord],
    reader: Callable[[], LanguageModel],
    config: LanguageConfig,
    tools: Sequence[dict[str, Any]],
    ranks: Ranks,
) -> list[ResponseRecord]:
    """The records that are short enough; none is truncated.

    Args:
        records: all of them.
        reader: the model or its outline, asked only where tokens have to be counted.
        config: of the run, which has the limits.
        tools: JSON schemas of functions that the prompts tell of.
        ranks: which share the prompts, where these are measured.

    Raises:
        UserError: some are too long and ``data.overlong`` is error, or all of them are.
    """
    limit, longest = config.data.max_prompt_length, config.rollout.max_new_tokens
    known = positions_of(config.model)
    positions = known.most if known else 0
    untold = all(record.tokens is None for record in records)  # how many tokens responses have
    if limit is None and untold and all(_is_short(*r, longest, positions) for one in records for r in one.rows):
        return list(records)
    model, lengths = reader(), dict[str, int]()
    if limit is not None:
        prompts = list({prompt.uid: prompt for prompt in prompts_of(records)}.values())
        each = prompt_lengths(Encoder(model, tools, bounded=False, cached=0), prompts, ranks)
        lengths = {prompt.uid: length for prompt, length in zip(prompts, each, strict=True)}
    problems = [next(_complaints(record, lengths, model, config, tools), "") for record in records]
    kept = [record for record, problem in zip(records, problems, strict=True) if not problem]
    if len(kept) < len(records) and (config.data.overlong == "error" or not kept):
        head = (
            f"{len(records) - len(kept)} of {len(records)} records are too long; raise the limit, shorten them, or "
            "leave them out with data.overlong=filter"
        )
        raise data_error([problem for problem in problems if problem], head)
    return kept


def _is_short(prompt: Prompt, text: str, longest: int, positions: int) -> bool:
    """Whether a response is short enough by its bytes, and with its prompt's; a token has at least one."""
    before, own = prompt.size + TEMPLATE, len(text.encode()) + SLACK
    return own <= longest and before + own <= positions


def _complaints(
    record: ResponseRecord,
    lengths: Mapping[str, int],
    model: LanguageModel,
    config: LanguageConfig,
    tools: Sequence[dict[str, Any]],
) -> Iterator[str]:
    """In what a record is too long; ``lengths`` are tokens of prompts by their uids, where these have a limit."""
    limit, longest, positions = config.data.max_prompt_length, config.rollout.max_new_tokens, model.max_positions
    told = None if record.tokens is None else len(record.tokens)
    for _, text in record.rows:
        if (count := len(model.response_ids(text)) if told is None else told) > longest:
            yield f"a response of {count} tokens, but rollout.max_new_tokens is {longest}: {shown(text)}"
    for prompt, _ in record.rows:
        if limit is not None and (count := lengths[prompt.uid]) > limit:
            yield f"a prompt of {count} tokens, but data.max_prompt_length is {limit}: {shown(prompt.text)}"
    for prompt, text in record.rows:
        if prompt.size + (len(text.encode()) if told is None else told) + TEMPLATE < positions:
            continue  # as a token has at least one byte
        before = lengths.get(prompt.uid) or model.count_tokens(prompt.chat(), prompt.told(tools))
        if (count := before + (len(model.response_ids(text)) if told is None else told)) > positions:
            yield (
                f"a prompt and a response of {count} tokens, but the model has {positions} positions "
                f"({model.position_limit}): {shown(prompt.text)}"
            )
