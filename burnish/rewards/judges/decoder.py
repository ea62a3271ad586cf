"""A judge in Burnish's own decoder: any language model, whose probabilities are read without a word written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from burnish.rewards.judges.replies import Chance, Question, Reply
from burnish.rewards.text.reading_model import Reader

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.types.batch import Gathered
    from burnish.types.completion import Encoded

Spelt = list[list[list[int]]]  # ids of each spelling of each answer


@dataclass(frozen=True)
class DecoderOracle:
    """Answers by a loaded model."""

    reader: Reader
    batch_size: int
    max_length: int
    max_new_tokens: int
    media: bool  # show what questions show

    def replies(self, questions: Sequence[Question]) -> list[Reply]:
        if not questions:
            return []
        encoded = self.reader.encode([question.prompt for question in questions], media=self.media)
        lengths = [encoded.table.lengths[row] for row in encoded.index.tolist()]
        longest = min(self.max_length, self.reader.model.max_positions)
        found = [Reply(problem=f"{n} tokens exceed max_length={longest}") for n in lengths]
        short = [i for i, n in enumerate(lengths) if n <= longest]
        for rows in self._batches(short, lengths, questions):
            some = encoded.select(rows)
            with self.reader.awake():
                replies = self._some(some, [questions[i] for i in rows])
            for i, reply in zip(rows, replies, strict=True):
                found[i] = reply
        return found

    def _batches(
        self, rows: Sequence[int], lengths: Sequence[int], questions: Sequence[Question]
    ) -> Iterator[list[int]]:
        """Rows of similar length that are answered alike."""

        def kind(i: int) -> tuple[bool, bool]:
            return bool(questions[i].answers), questions[i].first

        for _, alike in groupby(sorted(rows, key=lambda i: (kind(i), lengths[i])), key=kind):
            listed = list(alike)
            for start in range(0, len(listed), self.batch_size):
                yield listed[start : start + self.batch_size]

    def _some(self, encoded: Gathered[Encoded], questions: Sequence[Question]) -> list[Reply]:
        if not questions[0].answers:
            return self._written(encoded)
        spelt = [self._spelt(question) for question in questions]
        if all(len(ids) == 1 for row in spelt for answer in row for ids in answer):
            likely = self._first_tokens(encoded, spelt)
        else:
            likely = self._whole_answers(encoded, spelt)
        return [Reply(chances=tuple(map(Chance.known, row))) for row in likely]

    def _spelt(self, question: Question) -> Spelt:
        """Spellings as tokens; different spellings of the same tokens count once, unless only the first ones count."""
        model = self.reader.model
        ids = [[model.response_ids(text)[: -len(model.end)] for text in spellings] for spellings in question.answers]
        if question.first:
            return [[tokens[:1] for tokens in answer] for answer in ids]
        return [[list(tokens) for tokens in dict.fromkeys(map(tuple, answer))] for answer in ids]

    def _first_tokens(self, encoded: Gathered[Encoded], spelt: Sequence[Spelt]) -> list[list[float]]:
        """Probabilities of single tokens, of one forward pass per question."""
        import torch

        from burnish.language.logprobs import response_states, scaled_logits
        from burnish.language.offline import offline_completion

        model = self.reader.model
        trace = offline_completion(model, encoded, [[model.end[0]]] * len(spelt))  # which nothing reads
        states = response_states(model, model.network, trace)
        if states.logits is not None:
            logits = states.logits.float()
            logits[:, model.banned.to(logits.device)] = -torch.inf
        else:
            head = model.head(model.network)
            banned = model.banned.to(states.hidden.device)
            logits = scaled_logits(states.hidden, head.weight, 1 / head.scale, banned, head.cap)
        shares: Tensor = logits.softmax(-1).cpu()
        return [
            [math.fsum(float(row[ids[0]]) for ids in answer) for answer in answers]
            for row, answers in zip(shares, spelt, strict=True)
        ]

    def _whole_answers(self, encoded: Gathered[Encoded], spelt: Sequence[Spelt]) -> list[list[float]]:
        """Probabilities of answers of several tokens, every one of which is read."""
        import torch

        from burnish.language.logprobs import response_logprobs
        from burnish.language.offline import offline_completion

        model = self.reader.model
        flat = [(row, ids) for row, answers in enumerate(spelt) for answer in answers for ids in answer]
        place = torch.tensor([row for row, _ in flat])
        trace = offline_completion(model, encoded.select(place), [ids for _, ids in flat])
        scores = response_logprobs(model, model.network, trace, temperature=1.0)
        likely = iter(scores.logprob.sum(1).exp().cpu().tolist())
        return [[math.fsum(next(likely) for _ in answer) for answer in answers] for answers in spelt]

    def _written(self, encoded: Gathered[Encoded]) -> list[Reply]:
        """What the model writes, greedily."""
        from burnish.language.decoding import decode
        from burnish.language.sampling import Sampling

        model = self.reader.model
        completion = decode(
            model, model.network, encoded.table, encoded.index.tolist(), [0] * len(encoded.index),
            Sampling(max_new_tokens=self.max_new_tokens, temperature=0.0), batch_size=self.batch_size,
        )  # fmt: skip
        texts = [model.decode(ids[mask].tolist()) for ids, mask in zip(completion.ids, completion.mask, strict=True)]
        ended = completion.finished.tolist()
        return [Reply(text=text, cut=not end) for text, end in zip(texts, ended, strict=True)]
