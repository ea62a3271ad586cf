"""Records with responses: read as an algorithm learns from them, and those of them that are short enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from burnish.config.language import LanguageConfig
from burnish.data.language.judgements import Labels, read_judgements
from burnish.data.language.offline import TEMPLATE, within_limits
from burnish.data.language.responses import ResponseRecord, read_responses
from burnish.language.model import LanguageModel
from burnish.models.language.loading import positions_of
from burnish.options.language import LanguageDataOptions
from burnish.tasks.language.engine import Encoder, prompt_lengths
from burnish.training.ranks import Ranks
from burnish.types.prompt import Prompt

SLACK = 16  # tokens of a response that are not of its text, such as its end


def read_records(files: Any, data: LanguageDataOptions, needs: Any) -> list[Any]:
    """Responses of files with their prompts, and with labels where the algorithm, which has these needs, has heads.

    Raises:
        UserError: a file can't be read, or has wrong records.
    """
    if not needs.heads:
        return list(read_responses(files, data, needs.data))
    labels = Labels(
        needs.data, needs.heads, ties=needs.ties, shares=needs.shares, separator=needs.separator,
        question=needs.question,
    )  # fmt: skip
    return list(read_judgements(files, data, labels))


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
    if limit is None and all(_is_short(*row, longest, positions) for record in records for row in record.rows):
        return list(records)
    model, lengths = reader(), dict[str, int]()
    if limit is not None:
        prompts = list({prompt.uid: prompt for prompt in prompts_of(records)}.values())
        each = prompt_lengths(Encoder(model, tools, bounded=False, cached=0), prompts, ranks)
        lengths = {prompt.uid: length for prompt, length in zip(prompts, each, strict=True)}
    return within_limits(records, lengths, model, config.data, longest, tools)


def _is_short(prompt: Prompt, text: str, longest: int, positions: int) -> bool:
    """Whether a response is short enough by its bytes, and with its prompt's; a token has at least one."""
    before, own = prompt.size + TEMPLATE, len(text.encode()) + SLACK
    return own <= longest and before + own <= positions
