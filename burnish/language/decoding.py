"""Samples responses with the trainer's own weights: batched, cached, each a function of its own key alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from burnish.language.attention import Plan, Segment
from burnish.language.cache import Cache
from burnish.language.embedding import at_rows
from burnish.language.layers import Layers
from burnish.language.model import LanguageModel
from burnish.language.noise import uniforms
from burnish.language.sampling import Sampling, choose, keep_likely, penalise
from burnish.types.batch import Gathered, to_device
from burnish.types.completion import Completion, Encoded, Features
from burnish.utils.errors import UserError

IDLE = 0.25  # part of the batch that may have finished before the rest moves together and waiting rows come in
PREFILL = 8192  # prompt tokens that are read in one forward


def decode(
    model: LanguageModel,
    network: nn.Module,
    prompts: Encoded,
    index: Sequence[int],
    keys: Sequence[int],
    sampling: Sampling,
    *,
    batch_size: int = 256,
    limits: Sequence[int] | None = None,
    between: Callable[[], None] = lambda: None,
) -> Completion:
    """Sample one response per row.

    A response depends on its prompt, its key and the weights, not on its neighbours: each of its tokens is chosen by
    a number that is a function of key and place.

    Args:
        model: the family.
        network: whose weights sample.
        prompts: [P] prompts; each is read once for all of its responses.
        index: [B] prompt of each row; rows of one prompt should follow one another.
        keys: [B] 63-bit numbers (:func:`burnish.utils.random.key` of seed, purpose, update, prompt and sample).
        sampling: how.
        batch_size: rows that are decoded at once; changes only speed and memory.
        limits: [B] largest length of each response, where it differs from ``sampling.max_new_tokens``.
        between: called before every token; what it raises ends all of it.

    Returns:
        Responses in the order of the rows; the id that ended one is its last token.
    """
    with torch.inference_mode():
        job = _Job(model, network, prompts, list(index), sampling, limits)
        job.run(keys, batch_size, between)
    return job.completion()


@dataclass
class _Live:
    """Rows that are being decoded, as tensors [A] in the order of the cache."""

    row: Tensor  # which of the job's
    place: Tensor  # tokens chosen so far
    position: Tensor  # of the next token
    limit: Tensor
    ended: Tensor  # bool: by a token or a text that ends a response
    done: Tensor  # bool: ended, or at its limit

    def keep(self, index: Tensor) -> _Live:
        return _Live(*(mine[index] for mine in self._all()))

    def followed_by(self, other: _Live) -> _Live:
        return _Live(*(torch.cat(pair) for pair in zip(self._all(), other._all(), strict=True)))

    def _all(self) -> tuple[Tensor, ...]:
        return self.row, self.place, self.position, self.limit, self.ended, self.done


class _Job:
    def __init__(
        self,
        model: LanguageModel,
        network: nn.Module,
        prompts: Encoded,
        index: list[int],
        sampling: Sampling,
        limits: Sequence[int] | None,
    ) -> None:
        self.model, self.network, self.prompts, self.index, self.sampling = model, network, prompts, index, sampling
        self.device = next(network.parameters()).device
        self.layers = Layers(model.text(network), model.head(network), compute=model.compute)
        self.embedding = model.text(network).embed_tokens
        self.banned, self.stops = model.banned.to(self.device), torch.tensor(model.stop, device=self.device)
        count, longest = len(index), sampling.max_new_tokens
        self.limits = torch.tensor(limits if limits is not None else [longest] * count, device=self.device)
        longest = int(self.limits.max()) if count else 0
        # one column more than there are tokens: what rows write that have ended already
        self.ids = torch.zeros(count, longest + 1, dtype=torch.long, device=self.device)
        self.logprob = torch.zeros(count, longest + 1, device=self.device)
        self.longest = longest
        self.length = torch.zeros(count, dtype=torch.long, device=self.device)
        self.finished = torch.zeros(count, dtype=torch.bool, device=self.device)
        self.read: dict[int, tuple[Tensor, Tensor]] = {}  # last state, keys and values
        last = max((p for p in prompts.next_position), default=0) + longest
        places = torch.arange(last + 1, device=self.device)[None]
        self.turns = self.layers.rotation(places.expand(model.axes, 1, -1) if model.axes > 1 else places)
        self.seen: Tensor | None = None
        if sampling.repetition_penalty != 1:
            self.seen = torch.zeros(count, len(model.head(network)), dtype=torch.bool, device=self.device)
            for row, prompt in enumerate(index):
                self.seen[row, prompts.ids[prompt].to(self.device)] = True

    def run(self, keys: Sequence[int], batch_size: int, between: Callable[[], None]) -> None:
        waiting = [row for row, limit in enumerate(self.limits.tolist()) if limit > 0]
        if not waiting:
            return
        noise = torch.from_numpy(uniforms(keys, 0, self.longest + 1)).to(self.device)
        longest = max(self.prompts.lengths[self.index[row]] for row in waiting) + self.longest
        cache = Cache(
            layers=len(self.layers.layers),
            rows=min(batch_size, len(waiting)),
            pairs=self.layers.pairs,
            columns=longest + max(longest // 2, 16),
            width=self.layers.width,
            dtype=self.layers.compute,
            device=self.device,
        )
        live, x = self._admit(waiting[: len(cache.hidden)], cache)
        waiting = waiting[len(cache.hidden) :]
        while len(live.row):
            between()
            tokens = self._choose(x, live, noise)
            done = int(live.done.sum())
            dropped = done >= IDLE * len(live.row) or (done > 0 and cache.full)
            if dropped:
                self._write_down(live)
                staying = (~live.done).nonzero().flatten()
                cache.keep(staying.tolist())
                live, tokens = live.keep(staying), tokens[staying]
            if len(live.row):
                turn = self.turns[live.position - 1]
                x = self.layers.step(self.embedding(tokens), turn, cache)
            if dropped and waiting:
                room = len(cache.hidden) - len(live.row)
                new, further = self._admit(waiting[:room], cache)
                live, x = live.followed_by(new), torch.cat([x[: len(live.row)], further.to(x.dtype)])
                waiting = waiting[room:]

    def _admit(self, coming: list[int], cache: Cache) -> tuple[_Live, Tensor]:
        """Bring in rows, and the state [N, D] after each one's prompt: its first token is chosen from it."""
        needed = list(dict.fromkeys(self.index[row] for row in coming))
        self.read = {prompt: self.read[prompt] for prompt in needed if prompt in self.read}
        self._read([prompt for prompt in needed if prompt not in self.read])
        groups = [(prompt, len(list(rows))) for prompt, rows in groupby(self.index[row] for row in coming)]
        cache.enter([(self.read[prompt][1], count) for prompt, count in groups])
        rows = torch.tensor(coming, dtype=torch.long, device=self.device)
        first = [self.prompts.next_position[self.index[row]] for row in coming]
        live = _Live(
            row=rows,
            place=torch.zeros_like(rows),
            position=torch.tensor(first, dtype=torch.long, device=self.device),
            limit=self.limits[rows],
            ended=torch.zeros_like(rows, dtype=torch.bool),
            done=torch.zeros_like(rows, dtype=torch.bool),
        )
        return live, torch.stack([self.read[self.index[row]][0] for row in coming])

    def _read(self, prompts: list[int]) -> None:
        """Read prompts, several in one line: each one's last state, and its keys and values."""
        part: list[int] = []
        for prompt in prompts:
            if part and sum(self.prompts.lengths[p] for p in part) + self.prompts.lengths[prompt] > PREFILL:
                self._read_line(part)
                part = []
            part.append(prompt)
        if part:
            self._read_line(part)

    def _read_line(self, part: list[int]) -> None:
        chosen = self.prompts.select(part)
        ids = torch.cat(chosen.ids)
        slots = torch.isin(ids, self.model.placeholders).to(self.device)
        features: list[Features] = [own for own in chosen.features if own.patches]
        embedded = self.model.embed(self.network, ids.to(self.device), slots, features)
        _, deep = at_rows(embedded, torch.arange(len(ids), device=self.device))
        positions = torch.cat(chosen.positions, 1).to(self.device)
        segments, start = [], 0
        for length in chosen.lengths:
            segments.append(Segment(start, length))
            start += length
        plan = Plan.of(segments, device=self.device)
        places = positions[:, None] if self.model.axes > 1 else positions
        last = torch.tensor([segment.start + segment.length - 1 for segment in segments], device=self.device)
        x, cached = self.layers.read(embedded.tokens, places, plan, slots, deep, last)
        for number, (prompt, segment) in enumerate(zip(part, segments, strict=True)):
            own = slice(segment.start, segment.start + segment.length)
            self.read[prompt] = x[number], cached[..., own, :]

    def _choose(self, x: Tensor, live: _Live, noise: Tensor) -> Tensor:
        """Choose the next token of every row, write it down, and mark the rows that end with it."""
        sampling = self.sampling
        logits = self.layers.logits(x)
        if len(self.banned):
            logits.index_fill_(-1, self.banned, -torch.inf)
        scaled = logits / sampling.scored_at if sampling.scored_at != 1 else logits
        weights, normaliser = _weights(scaled)
        aimed = self._aimed(logits, scaled, live)
        place = torch.where(live.done, self.longest, live.place)
        if sampling.temperature == 0 and sampling.first_temperature is None:
            tokens = aimed.argmax(-1)
        else:
            tokens = choose(weights if aimed is scaled else _weights(aimed)[0], noise[live.row, place])
            if sampling.temperature == 0:
                tokens = torch.where(live.place == 0, tokens, aimed.argmax(-1))
        self.ids[live.row, place] = tokens
        self.logprob[live.row, place] = scaled.gather(-1, tokens[:, None])[:, 0] - normaliser
        self._note(tokens, live)
        return tokens

    def _aimed(self, logits: Tensor, scaled: Tensor, live: _Live) -> Tensor:
        """Logits [A, V] of the distribution that tokens are drawn from."""
        sampling, aimed = self.sampling, scaled
        if self.seen is not None:
            aimed = penalise(logits, self.seen[live.row], sampling.repetition_penalty) / sampling.scored_at
        if sampling.first_temperature is not None:
            hot = aimed * (sampling.scored_at / sampling.first_temperature)
            aimed = torch.where((live.place == 0)[:, None], hot, aimed)
        if sampling.min_new_tokens:
            early = (live.place < sampling.min_new_tokens)[:, None]
            aimed = aimed.index_copy(-1, self.stops, aimed[:, self.stops].masked_fill(early, -torch.inf))
        return keep_likely(aimed, sampling) if sampling.filters else aimed

    def _note(self, tokens: Tensor, live: _Live) -> None:
        """Count the tokens that were chosen, and see which rows have ended."""
        going = ~live.done
        if self.seen is not None:
            self.seen[live.row, tokens] = torch.ones_like(live.done)
        live.place += going
        live.position += going
        ended = tokens == self.stops[0] if len(self.stops) == 1 else torch.isin(tokens, self.stops)
        if self.sampling.stop:
            ended |= self._stopped(live)
        ended &= going & (live.place >= self.sampling.min_new_tokens)
        live.ended |= ended
        live.done = live.ended | (live.place >= live.limit)

    def _write_down(self, live: _Live) -> None:
        """How long the responses are, and which of them came to an end."""
        self.finished[live.row], self.length[live.row] = live.ended, live.place

    def _stopped(self, live: _Live) -> Tensor:
        """Which rows end with a stop string."""
        # a character is at most four tokens, so the string lies in the last so many
        reach = 4 * max(len(text) for text in self.sampling.stop) + 4
        columns = live.place[:, None] - reach + torch.arange(reach, device=self.device)
        last = self.ids[live.row[:, None], columns.clamp_min(0)]
        found = []
        for ids, place in zip(last.tolist(), live.place.tolist(), strict=True):
            written = self.model.decode(ids[max(reach - place, 0) :])
            found.append(any(text in written for text in self.sampling.stop))
        return to_device(torch.tensor(found), self.device)

    def completion(self) -> Completion:
        """What was sampled, on the CPU.

        Raises:
            UserError: the network computes no numbers, so that nothing that was sampled means anything.
        """
        length = self.length.clone().cpu()  # a clone may be trained with, unlike what inference mode made
        longest = int(length.max()) if len(length) else 0
        mask = torch.arange(longest) < length[:, None]
        logprob = self.logprob[:, :longest].clone().cpu()
        broken = int((~logprob.isfinite() & mask).any(1).sum())
        if broken:
            raise UserError(
                f"{broken} of {len(mask)} responses have log-probs that are not finite: the policy's weights or logits "
                "are not. Lower optimizer.lr or optimizer.weight_decay, and go on from the last checkpoint"
            )
        prompts = Gathered(table=self.prompts, index=torch.tensor(self.index, dtype=torch.long))
        return Completion.of_text(
            prompts,
            self.ids[:, :longest].clone().cpu(),
            length,
            axes=self.model.axes,
            logprob=logprob,
            finished=self.finished.clone().cpu(),
        )


def _weights(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities [B, V] times a factor, and the logarithm [B] that makes logits log-probs."""
    top = logits.amax(-1, keepdim=True)
    weights = (logits - top).exp_()
    return weights, weights.sum(-1).log_() + top[:, 0]
