"""Where two tokenizers say the same: spans of tokens that end at the same character, and tokens that both have.

As GOLD compares teachers and students (Patiño et al. 2025, "Unlocking On-Policy Distillation for Any Model Family").
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.language.model.universal import LanguageModel
from burnish.types.batch import to_device

CONTEXT = 4  # tokens before one that are decoded with it: some tokenizers write a word otherwise at the beginning
INCOMPLETE = "\ufffd"  # what stands for the bytes of a character that are not all there
LONGEST = 4  # bytes of a character


def spelled(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> tuple[str, list[int]]:
    """The text of tokens, and how many of its characters are there with each: [T], rising."""
    text, ends, start = "", [], 0
    for number in range(len(ids)):
        before = ids[max(start - CONTEXT, 0) : start]
        piece = decode([*before, *ids[start : number + 1]])[len(decode(before)) :]
        if not piece.endswith(INCOMPLETE) or number + 1 - start >= LONGEST:
            text, start = text + piece, number + 1
        ends.append(len(text))
    return text, ends


def spans(own: Sequence[int], theirs: Sequence[int]) -> Iterator[tuple[range, range]]:
    """The shortest spans of tokens that begin and end at the same characters of a text.

    Args:
        own, theirs: characters that are there with each token, rising.
    """
    start = place = (0, 0)
    while place[0] < len(own) and place[1] < len(theirs):
        here, there = own[place[0]], theirs[place[1]]
        place = (place[0] + (here <= there), place[1] + (there <= here))
        if here == there:
            yield range(start[0], place[0]), range(start[1], place[1])
            start = place


def align(
    decode: Callable[[Sequence[int]], str],
    ids: Sequence[int],
    decode_theirs: Callable[[Sequence[int]], str],
    response_ids: Callable[[str], Sequence[int]],
) -> tuple[list[int], list[tuple[range, range]]]:
    """A response in the tokens of another tokenizer, and the spans of both; what ends the response is in none.

    Args:
        decode, ids: of the response.
        decode_theirs, response_ids: of the other one.
    """
    text, own = spelled(decode, ids)
    other = list(response_ids(text))
    written, theirs = spelled(decode_theirs, other)
    before = max(written.find(text), 0)  # characters that a chat template puts before a response
    first = bisect_right(theirs, before) if before else 0
    theirs = [end - before for end in theirs[first:]]
    if not text:
        return other, []
    both = spans(*(ends[: bisect_left(ends, len(text)) + 1] for ends in (own, theirs)))
    return other, [(here, range(first + there.start, first + there.stop)) for here, there in both]


@dataclass(frozen=True)
class Vocabularies:
    """Ids of the tokens that student and teacher have, by their strings."""

    shared: Tensor  # [2, K] long: of the student, of the teacher
    own: Tensor  # [U] long, what only the student has
    theirs: Tensor  # [W] long
    weight: float  # of what both have in the loss

    @classmethod
    def of(cls, own: LanguageModel, theirs: LanguageModel, weight: float | None, device: torch.device) -> Vocabularies:
        """Of the tokens that both have logits of; without a weight it is their share of the teacher's."""
        ids, sizes = theirs.tokenizer.get_vocab(), (own.vocabulary, theirs.vocabulary)
        both = [(number, ids[token]) for token, number in own.tokenizer.get_vocab().items() if token in ids]
        both = sorted(pair for pair in both if pair[0] < sizes[0] and pair[1] < sizes[1])
        rest = [sorted({*range(size)} - {pair[side] for pair in both}) for side, size in enumerate(sizes)]
        shared = torch.tensor(both, dtype=torch.long, device=device).view(-1, 2).T.contiguous()
        only, others = (torch.tensor(ids, dtype=torch.long, device=device) for ids in rest)
        return cls(shared, only, others, len(both) / sizes[1] if weight is None else weight)


@dataclass(frozen=True)
class Aligned:
    """Spans of a micro-batch. The first token of each stands for it; R tokens of the student, in order of rows."""

    place: Tensor  # [R] long: the teacher's token that a student's is compared at; -1 where a span goes on
    scale: Tensor  # [R]: tokens of the response by its spans, so that its mean over tokens is one over spans
    rest: Tensor  # [2, M] long: a student's token that goes on, and the first of its span
    their_rest: Tensor  # [2, N] long: a teacher's token that goes on, and the student's first of its span

    @classmethod
    def of(
        cls, rows: Sequence[Sequence[tuple[range, range]]], own: Sequence[slice], theirs: Sequence[int], count: int
    ) -> Aligned:
        """Of responses that a teacher reads.

        Args:
            rows: their spans.
            own: of each the student's tokens among all of the micro-batch.
            theirs: of each the first of the teacher's tokens among all that it reads.
            count: R.
        """
        place, scale = torch.full((count,), -1), torch.zeros(count)
        rest: list[tuple[int, int]] = []
        their_rest: list[tuple[int, int]] = []
        for both, part, start in zip(rows, own, theirs, strict=True):
            for here, there in both:
                first = part.start + here.start
                place[first], scale[first] = start + there.start, (part.stop - part.start) / len(both)
                rest += [(part.start + number, first) for number in here[1:]]
                their_rest += [(start + number, first) for number in there[1:]]
        return cls(place, scale, *(torch.tensor(pairs, dtype=torch.long).view(-1, 2).T for pairs in (rest, their_rest)))


def summed(logprob: Tensor, rest: Tensor, count: int) -> Tensor:
    """Log-prob of what a span goes on with, [count], from those of tokens [R] and ``rest`` as ``Aligned`` has it."""
    source, target = to_device(rest, logprob.device)
    return logprob.new_zeros(count).index_add(0, target, logprob.index_select(0, source))
