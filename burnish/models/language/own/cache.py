"""A class's own cache: prompts that are computed once for all of their responses, in decoding and in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from burnish.language.decoding import IDLE, Active, DecodingRows
from burnish.language.kept import Turn
from burnish.models.language.own.collation import KINDS, Conversation, Inputs, Lengths
from burnish.models.language.own.forwards import Forwards, caching


class Cached:
    """Rows that share a cache: prompts first, then tokens of responses. Each ends at the last column."""

    def __init__(self, forwards: Forwards, network: Any, ids: Tensor, arguments: Inputs) -> None:
        """Args: ``ids`` [B, T] that were run, padded on the left, and ``arguments`` of the next forward beside them."""
        self.forwards, self.network, self.ids, self.arguments = forwards, network, ids, arguments
        self.logits = torch.empty(len(ids), 0, device=ids.device)  # [B, V] of the last token of each row
        self.states: Tensor  # [B, T, D] of all tokens of the last forward
        self._out: Any = {}  # of the last forward

    @classmethod
    def prefilled(cls, forwards: Forwards, network: Any, prompts: Sequence[Conversation]) -> Self:
        """Run prompts."""
        inputs = forwards.inputs(network, prompts, side="left")
        own = cls(forwards, network, inputs.pop("input_ids"), inputs | {"use_cache": True})
        own.arguments |= own._new()
        own._run(is_first_iteration=True)
        own._count(1)
        kept = {"attention_mask", "position_ids", "use_cache", *caches()}
        aligned = {name for name in forwards.collation.rows | forwards.collation.per_token if name in inputs}
        kinds = {name for one in prompts for name in one.features.kinds}
        own.arguments = {name: value for name, value in own.arguments.items() if name in kept | aligned | kinds}
        return own

    def select(self, rows: Tensor) -> None:
        """Go on with these rows in this order; a row may be taken several times."""
        self.ids, self.logits = self.ids.index_select(0, rows), self.logits.index_select(0, rows)
        for name, value in self.arguments.items():
            if name in caches():
                value.reorder_cache(rows)
            elif isinstance(value, Tensor):
                axis = 1 if name == "position_ids" and value.ndim == 3 else 0
                self.arguments[name] = value.index_select(axis, rows)

    def step(self, tokens: Tensor, mask: Tensor | None = None) -> None:
        """Run further tokens [B, T]; ``mask`` [B, T] is 0 for padding at their end."""
        count = tokens.shape[1]
        if count > 1:
            self._count(count - 1)
        if mask is not None:
            seen = self.arguments["attention_mask"]
            self.arguments["attention_mask"] = torch.cat([seen[:, :-count], mask.to(seen)], 1)
        self.ids = torch.cat([self.ids, tokens], 1)
        self._run(next_sequence_length=count)
        self._count(1)

    def _new(self) -> Inputs:
        """An empty cache, as ``generate`` makes it."""
        from transformers import DynamicCache

        if not self.network._supports_default_dynamic_cache():  # the class makes one of its own
            return {}
        name = "cache_params" if "cache_params" in self.forwards.accepted else "past_key_values"
        return {name: DynamicCache(config=self.network.config.get_text_config(decoder=True))}

    @property
    def length(self) -> int:
        """Tokens that the cache says it holds."""
        return next(int(self.arguments[name].get_seq_length()) for name in caches() if name in self.arguments)

    def _run(self, **more: Any) -> None:
        network = self.network
        inputs = network.prepare_inputs_for_generation(self.ids, **more, **self.arguments)
        self._out, self.states = self.forwards.call(network, inputs, logits="last")
        self.logits = self._out.logits[:, -1].float()

    def _count(self, tokens: int) -> None:
        """Extend mask, positions and kinds by further tokens, as the class does."""
        own = self.forwards.collation.per_token
        kinds = {name: value for name, value in self.arguments.items() if name.endswith(KINDS) or name in own}
        extended = self._updated(dict(kinds), 1)
        rest = {name: value for name, value in self.arguments.items() if name not in kinds}
        self.arguments = self._updated(rest, tokens)
        for name, value in kinds.items():  # its rule is for one token
            last = extended[name][:, -1:]
            self.arguments[name] = torch.cat([value, last.expand(-1, tokens, *last.shape[2:])], 1)

    def _updated(self, arguments: Inputs, tokens: int) -> Inputs:
        found: Inputs = self.network._update_model_kwargs_for_generation(
            self._out, arguments, is_encoder_decoder=False, num_new_tokens=tokens
        )
        return found


def caches() -> tuple[str, ...]:
    """Names of arguments and outputs that are caches."""
    from transformers.generation.utils import ALL_CACHE_NAMES

    return tuple(ALL_CACHE_NAMES)


class OwnDecoder:
    """Decodes rows with a class's own cache, batch by batch; rows that have ended are dropped from it."""

    def __init__(
        self,
        forwards: Forwards,
        network: Any,
        rows: DecodingRows,
        prompts: Sequence[Conversation],
        *,
        lengths: Lengths,
        goes_on: bool,
        begin: Callable[[Sequence[Conversation]], Any] | None = None,
    ) -> None:
        """Make one for some rows.

        Args:
            forwards: of the class.
            network: whose weights sample.
            rows: under way.
            prompts: that they answer.
            lengths: of prompts that share a forward; different ones are padded on the left.
            goes_on: what is computed of a conversation is kept for its next turn.
            begin: makes something else of prompts than a cache, such as ``Anew``.
        """
        self.forwards, self.network, self.rows, self.prompts, self.lengths = forwards, network, rows, prompts, lengths
        self.turn = rows.turn if goes_on else None
        self._prefilled = begin or partial(Cached.prefilled, forwards, network)
        self._over: set[int] = set()  # rows that were looked at when they ended

    def run(self, batch_size: int, check_cancelled: Callable[[], None]) -> None:
        """Decode all rows."""
        with caching(self.network):
            for batch in self._batches(batch_size):
                self._decode(batch, check_cancelled)

    def _batches(self, batch_size: int) -> Iterator[list[int]]:
        for group in [self.rows.waiting] if self.lengths == "any" else self._together(self.rows.waiting):
            for start in range(0, len(group), batch_size):
                yield from self._together(group[start : start + batch_size])

    def _together(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """Rows whose prompts can share a forward."""
        index = self.rows.index
        needed = list(dict.fromkeys(index[row] for row in rows))
        for part in self.forwards.collation.groups([self.prompts[prompt] for prompt in needed], self.lengths):
            chosen = {needed[number] for number in part}
            yield [row for row in rows if index[row] in chosen]

    def _decode(self, batch: list[int], check_cancelled: Callable[[], None]) -> None:
        rows, device = self.rows, self.rows.device
        needed = list(dict.fromkeys(rows.index[row] for row in batch))
        place = {prompt: number for number, prompt in enumerate(needed)}
        live, told = rows.enter(batch), 0
        with outside_inference():
            cached = self._begun(needed)
            cached.select(torch.tensor([place[rows.index[row]] for row in batch], device=device))
        while True:
            check_cancelled()
            tokens = rows.next_tokens(cached.logits.clone(), live)
            done = live.over
            rows.tell_ended(live, done)
            if self.turn is not None and not self.turn.last and done > told:
                self._keep(self.turn, live, cached)
            told = done
            if done >= IDLE * len(live.row):
                told = 0
                rows.store_lengths(live)
                unfinished = (~live.done).nonzero().flatten()
                live, tokens = live.keep(unfinished), tokens[unfinished]
                if not len(live.row):
                    return
                with outside_inference():
                    cached.select(unfinished.clone())
            with outside_inference():
                cached.step(tokens[:, None].clone())

    def _begun(self, prompts: Sequence[int]) -> Cached:
        """These prompts, of which what was kept is not computed again."""
        from burnish.models.language.own.turns import joined

        held = {prompt: found for prompt in prompts if (found := self._held(prompt)) is not None}
        new = [prompt for prompt in prompts if prompt not in held]
        parts = [self._prefilled([self.prompts[one] for one in new])] if new else []
        order = list(new)
        rest = {prompt: self.prompts[prompt].ids[one.ids.shape[1] :] for prompt, one in held.items()}
        for count in sorted({len(ids) for ids in rest.values()}):  # nothing may be padded behind what was kept
            some = [prompt for prompt, ids in rest.items() if len(ids) == count]
            part = joined([held.pop(prompt) for prompt in some])
            part.step(torch.stack([rest[prompt] for prompt in some]).to(self.rows.device))
            parts.append(part)
            order += some
        if len(parts) == 1 and order == list(prompts):
            return parts[0]
        cached = joined(parts)
        cached.select(torch.tensor([order.index(prompt) for prompt in prompts], device=self.rows.device))
        return cached

    def _held(self, prompt: int) -> Cached | None:
        """What was kept of a prompt, if nothing but text was added."""
        if self.turn is None:
            return None
        going = self.turn.rows[self.rows.index.index(prompt)]
        found: Cached | None = self.turn.kept.take(going.name, self.prompts[prompt].ids)
        return None if going.added.size else found

    def _keep(self, turn: Turn, live: Active, cached: Cached) -> None:
        """Keep what rows that have just ended have computed, before anything is added to it."""
        from burnish.models.language.own.turns import size, taken

        for place in live.done.nonzero().flatten().tolist():
            row, count = int(live.row[place]), int(live.count[place])
            if row in self._over:
                continue
            self._over.add(row)
            if not turn.kept.has_room(size(cached) // len(cached.ids)):
                continue
            prompt = self.prompts[self.rows.index[row]].ids
            with outside_inference():
                own = taken(cached, place, len(prompt) + count - 1)  # nothing has read the last token
            ids = torch.cat([prompt, self.rows.ids[row, : count - 1].cpu()])
            turn.kept.put(turn.rows[row].name, ids, own, size(own))


@contextmanager
def outside_inference() -> Iterator[None]:
    """No gradients, but ordinary tensors: a class may keep some, and training couldn't use them."""
    with torch.inference_mode(False), torch.no_grad():
        yield
