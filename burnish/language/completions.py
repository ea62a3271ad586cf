"""Responses that nobody sampled, as tokens: those of a data set, and those that a reward model reads."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from burnish.language.model.universal import LanguageModel
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded
from burnish.types.judgements import read_at
from burnish.types.response_stats import ResponseStats, outline, reflections


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
    return read_at(trace, places)


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
    model: LanguageModel, prompts: Gathered[Encoded], responses: Sequence[Sequence[int]]
) -> Completion:
    """Responses as if the policy had chosen each of their tokens; they were not sampled, so their log-probs are 0.

    Args:
        model: that reads and writes them.
        prompts: [B].
        responses: [B] ids of each.
    """
    ids = pad_sequence([torch.tensor(tokens, dtype=torch.long) for tokens in responses], batch_first=True)
    length = torch.tensor([len(tokens) for tokens in responses])
    return Completion.of_text(prompts, ids, length, axes=model.axes)


RUN = 4  # tokens of a run
FIRST = 8  # tokens whose entropy is watched


def response_stats(trace: Completion, texts: Sequence[str]) -> list[ResponseStats]:
    """Statistics of each response of a batch, whose texts are ``texts``.

    Arrays of one move off the device: a batch has hundreds of responses, and PyTorch's call costs more than a row.
    """
    ids, masks, logprob = (value.cpu().numpy() for value in (trace.ids, trace.mask, trace.logprob))
    found = []
    for text, own, mask, probs, finished in zip(texts, ids, masks, logprob, trace.finished.tolist(), strict=True):
        first = probs[mask][:FIRST].tolist()
        found.append(
            ResponseStats(
                length=int(mask.sum()),
                truncated=not finished,
                repeated=repeated(own[mask].tolist()),
                surprisal=-math.fsum(first) / len(first) if first else math.nan,
                outline=outline(text),
                reflections=reflections(text),
            )
        )
    return found


def repeated(ids: Sequence[int]) -> float:
    """Share of the runs of ``RUN`` tokens that occurred before; 0 without any run."""
    runs = list(zip(*(ids[start:] for start in range(RUN)), strict=False))
    return 1 - len(set(runs)) / len(runs) if runs else 0.0
