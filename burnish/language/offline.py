"""Responses that nobody sampled, as tokens: those of a data set that are short enough, and those that a reward model
reads."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from burnish.data.records import data_error
from burnish.data.scored import ScoredGroup
from burnish.data.values import shown
from burnish.language.batches import response_stats
from burnish.language.config import LanguageConfig
from burnish.language.encode import TEMPLATE, Encoder, prompt_lengths
from burnish.language.model.base import Positions
from burnish.language.model.loading import positions_of
from burnish.language.model.universal import LanguageModel
from burnish.language.records import ResponseRecord
from burnish.training.ranks import Ranks
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, ResponseRows
from burnish.types.prompt import LabelledTools, Prompt
from burnish.types.rollout import OfflineJudgements, OfflineResponses, ScoredResponses, Scores

Encode = Callable[[Sequence[Prompt]], Gathered[Encoded]]  # as an engine has it, or for all ranks


def scored_batch(
    groups: Sequence[ScoredGroup], model: LanguageModel, encode: Encode, config: LanguageConfig, *, update: int
) -> ScoredResponses:
    """Responses with scores, as if they had been sampled and scored; log-probs that nobody knows are NaN.

    Args:
        groups: records, those of a prompt together.
        model: that reads and writes them.
        encode: their prompts.
        config: of the run, which has data.scores.
        update: policy update that trains on them.
    """
    rows: list[ResponseRecord] = [member for group in groups for member in group.members]
    ids = [model.response_ids(row.responses[0]) if row.tokens is None else list(row.tokens) for row in rows]
    trace = offline_completion(
        model, encode([row.prompt for row in rows]), ids, finished=[row.finished for row in rows],
        logprobs=[row.logprobs or (math.nan,) * len(own) for row, own in zip(rows, ids, strict=True)],
    )  # fmt: skip
    return ScoredResponses(
        prompts=[row.prompt for row in rows],
        group=torch.tensor([number for number, group in enumerate(groups) for _ in group.members]),
        sample=torch.tensor([group.first + i for group in groups for i in range(len(group.members))]),
        trace=trace,
        scores=Scores.given([row.scores for row in rows], config.data.scores or {}),
        greedy=torch.full((len(rows),), torch.nan),
        turn_rewards=torch.zeros(len(rows), 0),
        limit=config.rollout.max_new_tokens,
        stats=response_stats(trace, [row.responses[0] for row in rows]),
        update=update,
        version=update - 1,
        seed=config.seed,
    )


def offline_batch(
    records: Sequence[ResponseRecord], model: LanguageModel, encode: Encode, *, update: int, seed: int
) -> OfflineResponses | OfflineJudgements:
    """Records as tensors, in order.

    Args:
        records: with one response each, or with two each.
        model: that reads and writes them.
        encode: their prompts.
        update: policy update that trains on them.
        seed: of the run.
    """
    rows, members = [row for record in records for row in record.rows], len(records[0].responses)
    prompts, texts = encode([prompt for prompt, _ in rows]), [text for _, text in rows]
    run: Any = {"update": update, "version": update - 1, "seed": seed}
    if not records[0].target:
        trace = offline_completion(model, prompts, [model.response_ids(text) for text in texts])
        good = torch.tensor([record.good for record in records])
        return OfflineResponses(answers=ResponseRows(trace=trace, members=members), good=good, **run)
    trace = judged_completion(model, prompts, texts, [record.ends or None for record in records for _ in record.rows])
    target = pad_sequence([torch.tensor(record.target) for record in records], batch_first=True, padding_value=math.nan)
    nothing = (0.0,) * target.shape[-1]
    margin = torch.tensor([record.margin or nothing for record in records])[:, None].expand_as(target)
    return OfflineJudgements(answers=ResponseRows(trace=trace, members=members), target=target, margin=margin, **run)


def judged_completion(
    model: LanguageModel,
    prompts: Gathered[Encoded],
    responses: Sequence[str],
    ends: Sequence[Sequence[int] | None],
) -> Completion:
    """Responses for a reward model to read, as ``OfflineJudgements`` has them.

    Args:
        model: that reads and writes them.
        prompts: [B].
        responses: [B] texts.
        ends: [B] characters at which the steps of each end; None judges it as a whole, behind its last token.
    """
    ids = [model.response_ids(text) for text in responses]
    places = [
        [len(own)] if some is None else token_ends(model.decode, own, text, some)
        for own, text, some in zip(ids, responses, ends, strict=True)
    ]
    # the token that nothing reads: the state before it is the one behind the whole response
    trace = offline_completion(model, prompts, [[*own, own[-1]] for own in ids])
    mask = torch.zeros_like(trace.mask)
    for row, some in enumerate(places):
        mask[row, some] = True
    return replace(trace, mask=mask)


def token_ends(decode: Callable[[Sequence[int]], str], ids: Sequence[int], text: str, ends: Sequence[int]) -> list[int]:
    """Tokens, counted from 1, with which characters of a response are complete.

    Args:
        decode: of the tokenizer.
        ids: of the response.
        text: of the response.
        ends: numbers of characters, increasing.
    """
    before = max(decode(ids).find(text), 0)  # white space of the chat template
    return [bisect.bisect_left(range(len(ids)), before + end, key=lambda n: len(decode(ids[:n]))) for end in ends]


def offline_completion(
    model: LanguageModel,
    prompts: Gathered[Encoded],
    responses: Sequence[Sequence[int]],
    *,
    logprobs: Sequence[Sequence[float]] | None = None,
    finished: Sequence[bool] | None = None,
) -> Completion:
    """Responses as if the policy had chosen each of their tokens.

    Args:
        model: that reads and writes them.
        prompts: [B].
        responses: [B] ids of each.
        logprobs: [B] of these tokens under the policy that sampled them; None for responses that were not sampled.
        finished: [B] whether each ended by itself; None if all did.
    """
    return Completion.of_text(
        prompts,
        pad_sequence([torch.tensor(tokens, dtype=torch.long) for tokens in responses], batch_first=True),
        torch.tensor([len(tokens) for tokens in responses]),
        axes=model.axes,
        logprob=None if logprobs is None else pad_sequence([torch.tensor(own) for own in logprobs], batch_first=True),
        finished=None if finished is None else torch.tensor(finished),
    )


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
        raise data_error(
            problems,
            f"token_ids of {len(problems)} of {len(records)} responses say something else to this model's tokenizer; "
            "give those of this model, or leave token_ids and logprobs out",
        )


SLACK = 16  # tokens of a response that are not of its text, such as its end


def prompts_of(records: Sequence[ResponseRecord]) -> list[Prompt]:
    """The prompts of all responses of records."""
    return [prompt for record in records for prompt, _ in record.rows]


def short_records(
    records: Sequence[ResponseRecord],
    reader: Callable[[], LanguageModel],
    config: LanguageConfig,
    tools: LabelledTools,
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
    limit, lengths = config.data.max_prompt_length, dict[str, int]()
    if limit is not None:
        prompts = list({prompt.uid: prompt for prompt in prompts_of(records)}.values())
        each = prompt_lengths(Encoder(reader(), tools, cached=0), prompts, ranks)
        lengths = {prompt.uid: length for prompt, length in zip(prompts, each, strict=True)}
    known = positions_of(config.model)
    problems = [_complaint(record, lengths, known, reader, config, tools) for record in records]
    kept = [record for record, problem in zip(records, problems, strict=True) if not problem]
    if len(kept) < len(records) and (config.data.overlong == "error" or not kept):
        raise data_error(
            [problem for problem in problems if problem],
            f"{len(records) - len(kept)} of {len(records)} records are too long; raise the limit, or shorten them"
            + (", or remove them with data.overlong=filter" if kept else ""),
        )
    return kept


def _complaint(
    record: ResponseRecord,
    lengths: Mapping[str, int],
    known: Positions | None,
    reader: Callable[[], LanguageModel],
    config: LanguageConfig,
    tools: LabelledTools,
) -> str:
    """In what a record is too long; "" where it is not.

    Args:
        record: with its responses.
        lengths: tokens of prompts by their uids, where these have a limit.
        known: positions of the model, if its configuration tells.
        reader, config, tools: as ``short_records`` has them.
    """
    limit, longest = config.data.max_prompt_length, config.rollout.max_new_tokens
    for prompt, text in record.rows:
        # at most: a token has at least one byte
        before = prompt.size + TEMPLATE
        count = len(text.encode()) + SLACK if record.tokens is None else len(record.tokens)
        fits = known is not None and before + count <= known.most
        if fits and count <= longest and limit is None:
            continue
        model = reader()
        count = len(model.response_ids(text)) if record.tokens is None else count
        if count > longest:
            return f"a response of {count} tokens, but rollout.max_new_tokens is {longest}: {shown(text)}"
        if limit is not None and lengths[prompt.uid] > limit:
            return (
                f"a prompt of {lengths[prompt.uid]} tokens, but data.max_prompt_length is {limit}: {shown(prompt.text)}"
            )
        if before + count >= model.max_positions:
            before = lengths.get(prompt.uid) or model.count_tokens(prompt.chat(), prompt.told(tools))
            if before + count > model.max_positions:
                return (
                    f"a prompt and a response of {before + count} tokens, but the model has {model.max_positions} "
                    f"positions ({model.position_limit}): {shown(prompt.text)}"
                )
    return ""
