"""Samples responses with the trainer's weights, in batches with a KV cache; each depends on its own key alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.language.model.forwards import conversations
from burnish.language.model.universal import LanguageModel
from burnish.types.batch import Gathered, to_device
from burnish.types.completion import Completion, Encoded, Features, PartialResponse
from burnish.utils.errors import UserError

BLOCK = 512  # tokens of a large vocabulary that are summed together

Words = np.ndarray  # uint64 that hold 32 bits, so that products don't overflow

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How responses are sampled.

    Whatever the filters, log-probs are those of the full distribution at ``temperature`` (1 where it is 0) without
    banned tokens: the one that training computes.
    """

    max_new_tokens: int
    min_new_tokens: int = 0  # before these neither stop ids nor stop strings end a response
    temperature: float = 1.0  # 0 takes the most likely token
    first_temperature: float | None = None  # samples the first token (FIRE, arXiv:2410.21236); not its log-prob
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # divides logits of earlier tokens (CTRL, arXiv:1909.05858)
    stop: tuple[str, ...] = ()  # strings that end a response; they stay part of it

    @property
    def scored_at(self) -> float:
        """Temperature of the distribution that log-probs refer to."""
        return self.temperature or 1.0


def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits [B, V], where those of seen tokens [B, V] bool are divided by the penalty, or multiplied if negative."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_likely(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [B, V] with -inf for tokens that top-k, min-p or top-p (in this order) exclude; the best is kept."""
    if sampling.top_k and sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.min_p:
        least = logits.amax(-1, keepdim=True) + torch.tensor(sampling.min_p, dtype=logits.dtype).log().item()
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1:
        ranked, order = logits.sort(-1, descending=True)
        probabilities = ranked.softmax(-1)
        # a token is kept while the more likely ones sum to less than top_p
        out = probabilities.cumsum(-1) - probabilities >= sampling.top_p
        out[:, 0] = False  # also where top_p is below the precision of the probabilities
        logits = logits.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -torch.inf)
    return logits


def choose(weights: Tensor, uniform: Tensor) -> Tensor:
    """Tokens [B] by inversion of the cumulative distribution of weights [B, V] at uniform numbers [B] in [0, 1)."""
    if weights.shape[-1] <= 2 * BLOCK:
        return _locate(weights, uniform)[0]
    # a large vocabulary: first a block, then a token of it, which keeps cumulative sums short
    blocks = F.pad(weights, (0, -weights.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    sums = blocks.sum(-1)
    block, target, cumulative = _locate(sums, uniform)
    here = block[:, None]
    rest = (cumulative.gather(-1, here)[:, 0] - target) / sums.gather(-1, here)[:, 0]
    chosen = blocks[torch.arange(len(block), device=block.device), block]
    return block * BLOCK + _locate(chosen, (1 - rest).clamp(0, 1))[0]


def _locate(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Indices [B] where cumulative weights [B, N] exceed a fraction [B] of their total, that weight, and all [B, N]."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative.select(-1, -1)
    # rounding must not take the product up to the total, beyond which there is no token
    target = torch.minimum(uniform * total, total.nextafter(torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, target.unsqueeze(-1), right=True).squeeze(-1)
    return index.clamp_max(cumulative.shape[-1] - 1), target, cumulative  # the clamp is for NaN weights


def uniforms(keys: Sequence[int], count: int) -> np.ndarray:
    """Uniform numbers in [0, 1): [len(keys), count] float64 with 53 random bits.

    Element [i, j] depends on ``keys[i]`` (63 bits) and on ``j`` alone, not on any other draw.
    """
    shape = (len(keys), count)
    seeds = np.asarray(keys, dtype=np.uint64)[:, None]
    counter = np.broadcast_to(np.arange(count, dtype=np.uint64), shape)
    zero = np.zeros(shape, dtype=np.uint64)
    high, low, _, _ = philox((seeds & _LOW, seeds >> _HALF), (counter, zero, zero, zero))
    bits = (high << np.uint64(21)) ^ (low >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53


def philox(key: tuple[Words, Words], counter: tuple[Words, Words, Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") over arrays of one shape.

    Args:
        key: two words.
        counter: four words.

    Returns:
        Four random words.
    """
    a, b, c, d = counter
    left, right = key
    for _ in range(10):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (second >> _HALF) ^ b ^ left, second & _LOW, (first >> _HALF) ^ d ^ right, first & _LOW
        left, right = (left + _WEYL[0]) & _LOW, (right + _WEYL[1]) & _LOW
    return a, b, c, d


Ended = Callable[[list[int], list[list[int]], list[bool]], None]  # rows, their ids, whether each was finished

LOOK = 8  # tokens between looks at which rows have ended, on a GPU
IDLE = 0.25  # fraction of the batch that finishes before finished rows are dropped, or replaced by waiting ones


def with_partial(
    model: LanguageModel, prompts: Encoded, index: Sequence[int], partial: Sequence[PartialResponse]
) -> tuple[Encoded, list[int]]:
    """Prompts and the index of each row's: responses that go on stand behind theirs, as prompts of their own."""
    places = list(index)
    begun = [row for row, own in enumerate(partial) if len(own.ids)]
    if not begun:
        return prompts, places
    owners = torch.tensor([index[row] for row in begun])
    ids = nn.utils.rnn.pad_sequence([partial[row].ids for row in begun], batch_first=True)
    length = torch.tensor([len(partial[row].ids) for row in begun])
    written = Completion.of_text(Gathered(table=prompts, index=owners), ids, length, axes=model.axes)
    for place, row in enumerate(begun, len(prompts)):
        places[row] = place
    return Encoded.cat([prompts, conversations(written, model.capabilities.fill)]), places


class Live:
    """Rows that are being decoded, in the order of the cache: in buffers whose addresses stay."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.numbers = torch.zeros(5, capacity, dtype=torch.long, device=device)
        self.flags = torch.zeros(2, capacity, dtype=torch.bool, device=device)
        self.resize(0)

    def resize(self, size: int) -> None:
        """Have as many rows, the first ones."""
        self.size = size
        # index in the batch; tokens chosen so far; position of the next one; largest count; the last token
        self.row, self.count, self.position, self.limit, self.token = self.numbers[:, :size].unbind()
        self.ended, self.done = self.flags[:, :size].unbind()  # by a stop id or string; or at the limit

    def keep(self, index: Tensor) -> None:
        """Go on with the rows of an index."""
        for buffer in (self.numbers, self.flags):
            buffer[:, : len(index)] = buffer[:, index]
        self.resize(len(index))


class DecodingRows:
    """Responses under way: what was chosen for every row, how the next token is chosen, and when a row ends."""

    def __init__(
        self,
        model: LanguageModel,
        prompts: Encoded,
        index: Sequence[int],
        keys: Sequence[int],
        sampling: Sampling,
        limits: Sequence[int] | None,
        device: torch.device,
        *,
        on_ended: Ended | None,
        partial: Sequence[PartialResponse],
    ) -> None:
        """See ``decode``."""
        self.model, self.asked, self.sampling = model, (prompts, list(index)), sampling
        self.prompts, self.index = with_partial(model, prompts, index, partial)  # what is prefilled
        self.device, self.on_ended = device, on_ended
        self.banned, self.stops = model.banned.to(device), torch.tensor(model.stop, device=device)
        count, longest = len(self.index), sampling.max_new_tokens
        self.limits = [longest] * count if limits is None else list(limits)
        self.longest = longest = max(self.limits, default=0)
        self.written = [len(own.ids) for own in partial] or [0] * count
        self.waiting = [row for row, limit in enumerate(self.limits) if limit > self.written[row]]
        self.noise = torch.from_numpy(uniforms(keys, longest + 1)).to(device)
        # the last column takes what rows write after they have ended
        ids, logprob = torch.zeros(count, longest + 1, dtype=torch.long), torch.zeros(count, longest + 1)
        finished = torch.zeros(count, dtype=torch.bool)
        for row, own in enumerate(partial):
            ids[row, : len(own.ids)], logprob[row, : len(own.ids)] = own.ids, own.logprob
            finished[row] = own.finished
        self.ids, self.logprob, self.finished = (to_device(one, device) for one in (ids, logprob, finished))
        self.length = to_device(torch.tensor(self.written, dtype=torch.long), device)
        self.asked_experts: dict[int, Tensor] = {}  # [P, layers, k] of tokens of prompts, where they are recorded
        self.experts: Tensor | None = None  # [B, T, layers, k] of those of responses
        self.seen: Tensor | None = None  # [B, V] bool, where repetition is penalised
        self._told: set[int] = set()
        self._told_live = 0  # of these, how many are still in the cache
        self._unseen = self._since = 0  # tokens since somebody looked at rows, and since some entered

    def longest_after(self, ends: Sequence[int]) -> int:
        """Where the longest response ends, by where each prompt does."""
        return max(ends[self.index[row]] - self.written[row] for row in self.waiting) + self.longest

    def enter(self, batch: Sequence[int], live: Live) -> None:
        """Begin to decode some rows."""
        first = [self.prompts.next_position[self.index[row]] for row in batch]
        written, limits = [self.written[row] for row in batch], [self.limits[row] for row in batch]
        numbers = torch.tensor([batch, written, first, limits, [0] * len(batch)])
        new = slice(live.size, live.size + len(batch))
        live.numbers[:, new], live.flags[:, new] = to_device(numbers, self.device), False
        live.resize(new.stop)
        self._since = 0

    def next_tokens(self, logits: Tensor, live: Live) -> None:
        """Choose the next token of every row by logits [A, V] float32, store it, and mark the rows that end with it.

        The logits are changed. All that outlives this is written in place, and nothing is read from the device.
        """
        sampling = self.sampling
        if len(self.banned):
            logits.index_fill_(-1, self.banned, -torch.inf)
        scaled = logits / sampling.scored_at if sampling.scored_at != 1 else logits
        weights, top = _weights(scaled)
        normaliser = weights.sum(-1).log_().add_(top)
        filtered = self._filtered(logits, scaled, live)
        column = torch.where(live.done, self.longest, live.count)
        cell = torch.add(column, live.row, alpha=self.longest + 1)  # of tables with a column more than tokens
        if sampling.temperature == 0 and sampling.first_temperature is None:
            tokens = filtered.argmax(-1)
        else:
            weights = weights if filtered is scaled else _weights(filtered)[0]
            tokens = choose(weights, self.noise.view(-1).index_select(0, cell))
            if sampling.temperature == 0:
                tokens = torch.where(live.count == 0, tokens, filtered.argmax(-1))
        self.ids.view(-1).index_copy_(0, cell, tokens)
        chosen = scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        self.logprob.view(-1).index_copy_(0, cell, chosen - normaliser)
        self._update(tokens, live)

    def _filtered(self, logits: Tensor, scaled: Tensor, live: Live) -> Tensor:
        """Logits [A, V] of the distribution that tokens are drawn from, penalty and filters applied."""
        sampling, filtered = self.sampling, scaled
        if sampling.repetition_penalty != 1:
            if self.seen is None:
                self.seen = torch.zeros(len(self.index), logits.shape[-1], dtype=torch.bool, device=self.device)
                for row, prompt in enumerate(self.index):
                    self.seen[row, self.prompts.ids[prompt].to(self.device)] = True
            filtered = penalise(logits, self.seen[live.row], sampling.repetition_penalty) / sampling.scored_at
        if sampling.first_temperature is not None:
            hot = filtered * (sampling.scored_at / sampling.first_temperature)
            filtered = torch.where((live.count == 0)[:, None], hot, filtered)
        if sampling.min_new_tokens:
            early = (live.count < sampling.min_new_tokens)[:, None]
            filtered = filtered.index_copy(-1, self.stops, filtered[:, self.stops].masked_fill(early, -torch.inf))
        return keep_likely(filtered, sampling)

    def _update(self, tokens: Tensor, live: Live) -> None:
        """Count the chosen tokens, and mark the rows that have ended."""
        if self.seen is not None:
            self.seen[live.row, tokens] = torch.ones_like(live.done)
        live.token.copy_(tokens)
        unfinished = ~live.done
        live.count += unfinished
        live.position += unfinished
        ended = (tokens[:, None] == self.stops).any(-1) & unfinished
        if self.sampling.min_new_tokens:
            ended &= live.count >= self.sampling.min_new_tokens
        live.ended |= ended
        if self.model.length is not None:
            live.ended |= live.count >= self.model.length
        live.done |= live.ended | (live.count >= live.limit)

    def routed(self, live: Live, experts: Tensor) -> None:
        """Note the experts [A, layers, k] that the token chosen last was sent to, of every row."""
        if self.experts is None:
            self.experts = experts.new_full((len(self.index), self.longest + 1, *experts.shape[1:]), -1)
        self.experts[live.row, live.count - 1] = experts

    def look(self, live: Live, *, now: bool = False) -> int:
        """How many rows are done; 0 where nobody looks: on a GPU, which is waited for, that is every few tokens.

        Rows that have ended since the last time are handed over. Those that nobody saw end go on, and change nothing.
        """
        self._unseen += 1
        self._since += 1
        if not now and self._unseen < (1 if self.device.type == "cpu" else LOOK) and self._since < self.longest:
            return 0
        if self.sampling.stop:
            self._end_at_strings(live)
        self._unseen, done = 0, int(live.done.sum())
        if self.on_ended is not None and done != self._told_live:
            self._told_live = done
            table = torch.stack([live.row, live.count, live.ended.long(), live.done.long()], 1).tolist()
            new = [(row, count, ended) for row, count, ended, over in table if over and row not in self._told]
            rows = [row for row, _, _ in new]
            self._told.update(rows)
            written = self.ids[to_device(torch.tensor(rows), self.device)].tolist()
            ids = [own[:count] for own, (_, count, _) in zip(written, new, strict=True)]
            self.on_ended(rows, ids, [bool(ended) for _, _, ended in new])
        return done

    def drop_done(self, live: Live) -> Tensor:
        """Remember how far rows have come, and go on with those that are not done: their index among all."""
        self._told_live = 0
        self.finished[live.row], self.length[live.row] = live.ended, live.count
        unfinished = (~live.done).nonzero().flatten()
        live.keep(unfinished)
        return unfinished

    def _end_at_strings(self, live: Live) -> None:
        """End rows at the first token with which a stop string is complete."""
        # a character is at most four tokens, which bounds how far back the string begins
        reach = 4 * max(len(text) for text in self.sampling.stop) + 4
        width, least = reach + self._unseen, max(self.sampling.min_new_tokens, 1)
        columns = live.count[:, None] - width + torch.arange(width, device=self.device)
        last = self.ids[live.row[:, None], columns.clamp_min(0)].tolist()
        ends = []
        for ids, count in zip(last, live.count.tolist(), strict=True):
            first = width - count  # where the response begins in its last tokens
            lengths = range(max(count - self._unseen + 1, least), count + 1)
            texts = {n: self.model.decode(ids[max(first, first + n - reach) : first + n]) for n in lengths}
            ends.append(next((n for n, text in texts.items() if any(stop in text for stop in self.sampling.stop)), 0))
        end = to_device(torch.tensor(ends), self.device)
        live.count.copy_(torch.where(end > 0, end, live.count))
        live.ended |= end > 0
        live.done |= live.ended

    def completion(self) -> Completion:
        """The responses, on the CPU.

        Raises:
            UserError: log-probs are NaN or infinite, which makes every sample meaningless.
        """
        length = self.length.clone().cpu()  # training can use a clone, but no inference tensor
        longest = int(length.max()) if len(length) else 0
        mask = torch.arange(longest) < length[:, None]
        logprob = self.logprob[:, :longest].clone().cpu().where(mask, 0)  # what was written beyond a stop string goes
        broken = int((~logprob.isfinite() & mask).any(1).sum())
        if broken:
            raise UserError(
                f"{broken} of {len(mask)} responses have NaN or infinite log-probs: the policy has diverged. Lower "
                "optimizer.lr or optimizer.weight_decay, and resume from the last checkpoint"
            )
        prompts, index = self.asked
        return Completion.of_text(
            Gathered(table=prompts, index=torch.tensor(index, dtype=torch.long)),
            self.ids[:, :longest].clone().cpu() * mask,
            length,
            axes=self.model.axes,
            logprob=logprob,
            finished=self.finished.clone().cpu(),
            routed_experts=self._experts(length.tolist()) if self.asked_experts else None,
        )

    def _experts(self, lengths: Sequence[int]) -> list[Tensor]:
        """Of the tokens that were read, of every row: nobody reads the last one."""
        asked = {prompt: experts.cpu() for prompt, experts in self.asked_experts.items()}
        said = next(iter(asked.values())).new_zeros(len(lengths), 0) if self.experts is None else self.experts.cpu()
        empty = asked[self.index[0]][:0]
        return [
            torch.cat([asked[prompt], own[: length - 1] if length > 1 else empty])
            for prompt, own, length in zip(self.index, said, lengths, strict=True)
        ]


def _weights(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Unnormalized probabilities [B, V], and the logits [B] of the most likely tokens, which have 1."""
    top = logits.amax(-1, keepdim=True)
    return (logits - top).exp_(), top.squeeze(-1)


@dataclass
class Past:
    """What has been computed of a conversation that may go on."""

    ids: Tensor | None = None  # [L]
    cached: Tensor | None = None  # keys and values of those
    added: Features = field(default_factory=Features)  # media of what was said since

    def take(self, ids: Tensor) -> Tensor | None:
        """What is kept, if ids [N] go on with it, else None; it is kept no longer."""
        known, cached, self.ids, self.cached = self.ids, self.cached, None, None
        goes_on = known is not None and len(known) < len(ids) and torch.equal(ids[: len(known)], known)
        return cached if goes_on else None


@dataclass(frozen=True)
class Turn:
    """One turn of conversations, one a row."""

    rows: list[Past]
    most: int  # bytes that may be kept of all of them, 0 of the last one; what has no room is computed again
