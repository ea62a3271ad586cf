"""Samples responses with the trainer's weights, in batches with a KV cache; each depends on its own key alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor, nn

from burnish.language.model.universal import LanguageModel
from burnish.language.sampling import Sampling, choose, keep_likely, penalise, uniforms
from burnish.types.batch import Gathered, to_device
from burnish.types.completion import Completion, Encoded, Features
from burnish.utils.errors import UserError

Ended = Callable[[list[int], list[list[int]], list[bool]], None]  # rows, their ids, whether each was finished

IDLE = 0.25  # fraction of the batch that finishes before finished rows are dropped, or replaced by waiting ones


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
    check_cancelled: Callable[[], None] = lambda: None,
    on_ended: Ended | None = None,
    turn: Turn | None = None,
) -> Completion:
    """Sample one response per row.

    A response depends on its prompt, its key and the weights, not on the rest of the batch: each token is chosen by a
    uniform number that is a function of the key and the token's index.

    Args:
        model: that reads and writes them.
        network: whose weights sample.
        prompts: [P] prompts; each is prefilled once for all of its responses.
        index: [B] prompt of each row; rows of one prompt should be adjacent.
        keys: [B] 63-bit numbers (:func:`burnish.utils.random.key` of seed, purpose, update, prompt and sample).
        sampling: temperature, filters and limits.
        batch_size: rows that are decoded at once; changes speed and memory only.
        limits: [B] largest length of each response, if not ``sampling.max_new_tokens``.
        check_cancelled: called before every token; it raises to stop.
        on_ended: called with rows as soon as they end, each once, while the others go on.
        turn: which conversations the rows are, so that one computes what was said since its last turn alone.

    Returns:
        Responses in the order of the rows; the id that ended one is its last token.
    """
    with torch.inference_mode():
        rows = DecodingRows(model, prompts, index, keys, sampling, limits, next(network.parameters()).device)
        rows.on_ended, rows.turn = on_ended, turn
        if rows.waiting:
            model.decode_rows(network, rows, batch_size=batch_size, check_cancelled=check_cancelled)
    return rows.completion()


@dataclass
class Active:
    """Rows that are being decoded, as tensors [A] in the order of the cache."""

    row: Tensor  # index in the batch
    count: Tensor  # tokens chosen so far
    position: Tensor  # of the next token
    limit: Tensor
    ended: Tensor  # bool: by a stop id or a stop string
    done: Tensor  # bool: ended, or at its limit
    _: KW_ONLY
    # Bounds that are known without reading a tensor: most tokens need not be looked at
    over: int = 0  # rows that are done
    fewest: int = 0  # tokens chosen for a row that is not done, at least
    most: int = 0  # tokens chosen for any row, at most
    nearest: int  # limit of any row, at least

    def keep(self, index: Tensor) -> Active:
        """The rows of an index, all of those that are not done."""
        tensors = (mine[index] for mine in self._all())
        return Active(*tensors, fewest=self.fewest, most=self.most, nearest=self.nearest)

    def followed_by(self, other: Active) -> Active:
        return Active(
            *(torch.cat(pair) for pair in zip(self._all(), other._all(), strict=True)),
            over=self.over + other.over,
            fewest=min(self.fewest, other.fewest),
            most=max(self.most, other.most),
            nearest=min(self.nearest, other.nearest),
        )

    def _all(self) -> tuple[Tensor, ...]:
        return self.row, self.count, self.position, self.limit, self.ended, self.done


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
    ) -> None:
        """See ``decode``."""
        self.model, self.prompts, self.index, self.sampling = model, prompts, list(index), sampling
        self.device = device
        self.banned, self.stops = model.banned.to(device), torch.tensor(model.stop, device=device)
        count, longest = len(self.index), sampling.max_new_tokens
        self.limits = torch.tensor(limits if limits is not None else [longest] * count, device=device)
        self.longest = longest = int(self.limits.max()) if count else 0
        self._limits: list[int] = self.limits.tolist()
        self.waiting = [row for row, limit in enumerate(self._limits) if limit > 0]
        self.noise = torch.from_numpy(uniforms(keys, longest + 1)).to(device)
        # the last column takes what rows write after they have ended
        self.ids = torch.zeros(count, longest + 1, dtype=torch.long, device=device)
        self.logprob = torch.zeros(count, longest + 1, device=device)
        self.length = torch.zeros(count, dtype=torch.long, device=device)
        self.finished = torch.zeros(count, dtype=torch.bool, device=device)
        self.seen: Tensor | None = None  # [B, V] bool, where repetition is penalised
        self.on_ended: Ended | None = None
        self.turn: Turn | None = None
        self._told: set[int] = set()
        self._told_live = 0  # of these, how many are still in the cache

    def cut(self, most: int) -> None:
        """Let no response that has not been begun have more tokens than these."""
        self.limits.clamp_(max=most)
        self._limits = [min(limit, most) for limit in self._limits]

    def enter(self, batch: Sequence[int]) -> Active:
        """Begin to decode some rows."""
        rows = torch.tensor(batch, dtype=torch.long, device=self.device)
        first = [self.prompts.next_position[self.index[row]] for row in batch]
        return Active(
            row=rows,
            count=torch.zeros_like(rows),
            position=torch.tensor(first, dtype=torch.long, device=self.device),
            limit=self.limits[rows],
            ended=torch.zeros_like(rows, dtype=torch.bool),
            done=torch.zeros_like(rows, dtype=torch.bool),
            nearest=min((self._limits[row] for row in batch), default=self.longest),
        )

    def next_tokens(self, logits: Tensor, live: Active) -> Tensor:
        """Choose the next token of every row by logits [A, V] float32, store it, and mark the rows that end with it.

        The logits are changed.
        """
        sampling = self.sampling
        if len(self.banned):
            logits.index_fill_(-1, self.banned, -torch.inf)
        scaled = logits / sampling.scored_at if sampling.scored_at != 1 else logits
        weights, top = _weights(scaled)
        normaliser = weights.sum(-1).log_().add_(top)
        filtered = self._filtered(logits, scaled, live)
        column = torch.where(live.done, self.longest, live.count) if live.over else live.count
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
        return tokens

    def _filtered(self, logits: Tensor, scaled: Tensor, live: Active) -> Tensor:
        """Logits [A, V] of the distribution that tokens are drawn from, penalty and filters applied."""
        sampling, filtered = self.sampling, scaled
        if sampling.repetition_penalty != 1:
            self.seen = self._seen(logits.shape[-1]) if self.seen is None else self.seen
            filtered = penalise(logits, self.seen[live.row], sampling.repetition_penalty) / sampling.scored_at
        if sampling.first_temperature is not None:
            hot = filtered * (sampling.scored_at / sampling.first_temperature)
            filtered = torch.where((live.count == 0)[:, None], hot, filtered)
        if live.most < sampling.min_new_tokens:
            filtered = filtered.index_fill(-1, self.stops, -torch.inf)
        elif live.fewest < sampling.min_new_tokens:
            early = (live.count < sampling.min_new_tokens)[:, None]
            filtered = filtered.index_copy(-1, self.stops, filtered[:, self.stops].masked_fill(early, -torch.inf))
        return keep_likely(filtered, sampling) if sampling.filters else filtered

    def _seen(self, vocabulary: int) -> Tensor:
        seen = torch.zeros(len(self.index), vocabulary, dtype=torch.bool, device=self.device)
        for row, prompt in enumerate(self.index):
            seen[row, self.prompts.ids[prompt].to(self.device)] = True
        return seen

    def _update(self, tokens: Tensor, live: Active) -> None:
        """Count the chosen tokens, and mark the rows that have ended."""
        least = self.sampling.min_new_tokens
        if self.seen is not None:
            self.seen[live.row, tokens] = torch.ones_like(live.done)
        unfinished = ~live.done if live.over else 1
        live.count += unfinished
        live.position += unfinished
        live.fewest, live.most = live.fewest + 1, live.most + 1
        if live.most < min(least, live.nearest):
            return  # none can have ended
        ended = tokens == self.stops[0] if len(self.stops) == 1 else torch.isin(tokens, self.stops)
        if self.sampling.stop:
            ended |= self._ends_with_stop(live)
        if live.over:
            ended &= unfinished
        if live.fewest < least:
            ended &= live.count >= least
        live.ended |= ended
        live.done = live.ended if live.most < live.nearest else live.ended | (live.count >= live.limit)
        live.over = int(live.done.sum())

    def tell_ended(self, live: Active, done: int) -> None:
        """Hand over rows that have ended since the last call; ``done`` of the live ones have by now."""
        if self.on_ended is None or done == self._told_live:
            return
        self._told_live = done
        table = torch.stack([live.row, live.count, live.ended.long(), live.done.long()], 1).tolist()
        new = [(row, count, ended) for row, count, ended, over in table if over and row not in self._told]
        rows = [row for row, _, _ in new]
        self._told.update(rows)
        written = self.ids[to_device(torch.tensor(rows), self.device)].tolist()
        ids = [own[:count] for own, (_, count, _) in zip(written, new, strict=True)]
        self.on_ended(rows, ids, [bool(ended) for _, _, ended in new])

    def store_lengths(self, live: Active) -> None:
        """Remember how far these rows have come; those that are done leave the cache."""
        self._told_live = 0
        self.finished[live.row], self.length[live.row] = live.ended, live.count

    def _ends_with_stop(self, live: Active) -> Tensor:
        """Which rows [A] end with a stop string."""
        # a character is at most four tokens, which bounds how far back the string begins
        reach = 4 * max(len(text) for text in self.sampling.stop) + 4
        columns = live.count[:, None] - reach + torch.arange(reach, device=self.device)
        last = self.ids[live.row[:, None], columns.clamp_min(0)]
        found = []
        for ids, count in zip(last.tolist(), live.count.tolist(), strict=True):
            text = self.model.decode(ids[max(reach - count, 0) :])
            found.append(any(stop in text for stop in self.sampling.stop))
        return to_device(torch.tensor(found), self.device)

    def completion(self) -> Completion:
        """The responses, on the CPU.

        Raises:
            UserError: log-probs are NaN or infinite, which makes every sample meaningless.
        """
        length = self.length.clone().cpu()  # training can use a clone, but no inference tensor
        longest = int(length.max()) if len(length) else 0
        mask = torch.arange(longest) < length[:, None]
        logprob = self.logprob[:, :longest].clone().cpu()
        broken = int((~logprob.isfinite() & mask).any(1).sum())
        if broken:
            raise UserError(
                f"{broken} of {len(mask)} responses have NaN or infinite log-probs: the policy has diverged. Lower "
                "optimizer.lr or optimizer.weight_decay, and resume from the last checkpoint"
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
    """Unnormalized probabilities [B, V], and the logits [B] of the most likely tokens, which have 1."""
    top = logits.amax(-1, keepdim=True)
    return (logits - top).exp_(), top.squeeze(-1)


@dataclass
class Past:
    """What has been computed of a conversation that may go on."""

    ids: Tensor | None = None  # [L]
    cached: Tensor | None = None  # keys and values of those
    added: Features = field(default_factory=Features.none)  # media of what was said since

    def take(self, ids: Tensor) -> Tensor | None:
        """What is kept, if ids [N] go on with it, else None; it is kept no longer."""
        known, cached, self.ids, self.cached = self.ids, self.cached, None, None
        goes_on = known is not None and len(known) < len(ids) and torch.equal(ids[: len(known)], known)
        return cached if goes_on else None


@dataclass(frozen=True)
class Turn:
    """One turn of conversations, one a row."""

    rows: list[Past]
    most: int  # bytes that may be kept of all of them; what has no room is computed again
    last: bool  # nothing is said after it

    def has_room(self, size: int) -> bool:
        """Whether as many bytes more may be kept."""
        return size + sum(past.cached.nbytes for past in self.rows if past.cached is not None) <= self.most
