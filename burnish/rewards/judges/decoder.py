"""A judge in Burnish's own decoder: any language model, whose probabilities are read without a word written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.rewards.judges.forms import Question, Reply
from burnish.rewards.networks.language import encode

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.model.universal import LanguageModel
    from burnish.rewards.networks.language import LoadedOptions
    from burnish.types.batch import Gathered
    from burnish.types.completion import Encoded
    from burnish.types.prompt import Prompt

Spelt = list[list[list[int]]]  # ids of each spelling of each answer


@dataclass(frozen=True)
class DecoderOracle:
    """Answers by a loaded model."""

    options: LoadedOptions
    model: LanguageModel
    max_new_tokens: int

    def replies(self, shown: Sequence[Prompt], questions: Sequence[Question]) -> list[Reply]:
        if not questions:
            return []
        encoded = encode(self.model, shown)
        lengths = [encoded.table.lengths[row] for row in encoded.index.tolist()]
        longest = min(self.options.max_length, self.model.max_positions)
        replies = [Reply(problem=f"{n} tokens exceed max_length={longest}") for n in lengths]
        rows = sorted((i for i, n in enumerate(lengths) if n <= longest), key=lengths.__getitem__)

        def answered(batch: Sequence[int]) -> list[Reply]:
            return self._some(encoded.select(batch), [questions[i] for i in batch])

        for i, reply in zip(rows, self.options.in_batches(self.model.network, rows, answered), strict=True):
            replies[i] = reply
        return replies

    def _some(self, encoded: Gathered[Encoded], questions: Sequence[Question]) -> list[Reply]:
        """Replies to questions of one form, which are all answered alike."""
        if not questions[0].answers:
            return self._written(encoded)
        spelt = [self._spelt(question) for question in questions]
        if all(len(ids) == 1 for row in spelt for answer in row for ids in answer):
            likely = self._first_tokens(encoded, spelt)
        else:
            likely = self._whole_answers(encoded, spelt)
        return [Reply(shares=tuple(row)) for row in likely]

    def _spelt(self, question: Question) -> Spelt:
        """Spellings as tokens; different spellings of the same tokens count once, unless only the first ones count."""
        model = self.model
        ids = [[model.response_ids(text)[: -len(model.end)] for text in spellings] for spellings in question.answers]
        if question.first:
            return [[tokens[:1] for tokens in answer] for answer in ids]
        return [[list(tokens) for tokens in dict.fromkeys(map(tuple, answer))] for answer in ids]

    def _first_tokens(self, encoded: Gathered[Encoded], spelt: Sequence[Spelt]) -> list[list[float]]:
        """Probabilities of single tokens, of one forward pass per question."""
        import torch

        from burnish.language.logprobs import response_states, scaled_logits
        from burnish.language.offline import offline_completion

        model = self.model
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

        model = self.model
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

        model = self.model
        completion = decode(
            model, model.network, encoded.table, encoded.index.tolist(), [0] * len(encoded.index),
            Sampling(max_new_tokens=self.max_new_tokens, temperature=0.0), batch_size=self.options.batch_size,
        )  # fmt: skip
        texts = [model.decode(ids[mask].tolist()) for ids, mask in zip(completion.ids, completion.mask, strict=True)]
        ended = completion.finished.tolist()
        return [Reply(text=text, cut=not end) for text, end in zip(texts, ended, strict=True)]
