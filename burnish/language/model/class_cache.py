"""Decoding by a class's own forward: with its cache, or without one where that gives other numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from burnish.language.decoding import IDLE, DecodingRows, Live
from burnish.language.model.collation import Conversation, Inputs
from burnish.language.model.forwards import Forwards, caching

Cache = Literal["padded", "alone", "none"]  # prompts share it, padded on the left; one has it; each token is read anew


class Cached:
    """Rows that share a cache: prompts first, then tokens of responses. Each ends at the last column."""

    def __init__(self, forwards: Forwards, network: Any, prompts: Sequence[Conversation]) -> None:
        """Run prompts."""
        self.forwards, self.network = forwards, network
        inputs = forwards.inputs(network, prompts, side="left")
        self.ids: Tensor = inputs.pop("input_ids")  # [B, T] that were run
        self.logits = torch.empty(len(self.ids), 0)  # [B, V] of the last token of each row
        self.arguments = inputs | {"use_cache": True} | self._new()  # of the next forward, beside them
        self._run(is_first_iteration=True)
        kept = {"attention_mask", "position_ids", "use_cache", *caches()}
        aligned = {name for name in forwards.collation.rows | forwards.collation.per_token if name in inputs}
        kinds = {name for prompt in prompts for name in prompt.features.kinds}
        self.arguments = {name: value for name, value in self.arguments.items() if name in kept | aligned | kinds}

    def select(self, rows: Tensor) -> None:
        """Go on with these rows in this order; a row may be taken several times."""
        self.ids, self.logits = self.ids.index_select(0, rows), self.logits.index_select(0, rows)
        for name, value in self.arguments.items():
            if name in caches():
                value.reorder_cache(rows)
            elif isinstance(value, Tensor):
                axis = 1 if name == "position_ids" and value.ndim == 3 else 0
                self.arguments[name] = value.index_select(axis, rows)

    def step(self, tokens: Tensor) -> None:
        """Run a further token [B, 1] of each row."""
        self.ids = torch.cat([self.ids, tokens], 1)
        self._run(next_sequence_length=1)

    def _new(self) -> Inputs:
        """An empty cache, as ``generate`` makes it."""
        from transformers import DynamicCache

        if not self.network._supports_default_dynamic_cache():  # the class makes one of its own
            return {}
        name = "cache_params" if "cache_params" in self.forwards.accepted else "past_key_values"
        return {name: DynamicCache(config=self.network.config.get_text_config(decoder=True))}

    def _run(self, **more: Any) -> None:
        inputs = self.network.prepare_inputs_for_generation(self.ids, **more, **self.arguments)
        out, _ = self.forwards.call(self.network, inputs, logits="last")
        self.logits = out.logits[:, -1].float()
        self.arguments = further(self.network, out, self.arguments)


class Uncached:
    """Rows of which every token is computed with all that stand before it; in the place of ``Cached``."""

    def __init__(
        self, forwards: Forwards, network: Any, prompts: Sequence[Conversation], kinds: dict[str, int], *, padded: bool
    ) -> None:
        """Args: ``kinds`` are those of the policy's tokens; ``padded``: rows share a forward."""
        self._forwards, self._network, self._rows = forwards, network, list(prompts)
        self._kinds, self._padded = kinds, padded
        self.logits = self._last()

    def select(self, rows: Tensor) -> None:
        self._rows = [self._rows[row] for row in rows.tolist()]
        self.logits = self.logits.index_select(0, rows)

    def step(self, tokens: Tensor) -> None:
        added = tokens.cpu()
        self._rows = [row.followed_by(own, self._kinds) for row, own in zip(self._rows, added, strict=True)]
        self.logits = self._last()

    def _last(self) -> Tensor:
        found: dict[int, Tensor] = {}
        for group in self._forwards.collation.groups(self._rows, together=self._padded):
            rows = [self._rows[row] for row in group]
            inputs = self._forwards.inputs(self._network, rows) | {"use_cache": False}
            out, _ = self._forwards.call(self._network, inputs, logits="all")
            for place, (number, row) in enumerate(zip(group, rows, strict=True)):
                found[number] = out.logits[place, len(row.ids) - 1].float()
        return torch.stack([found[row] for row in range(len(self._rows))])


def further(network: Any, out: Any, arguments: Inputs) -> Inputs:
    """Arguments of the next forward after a token was added, by the class's own rule."""
    found: Inputs = network._update_model_kwargs_for_generation(out, dict(arguments), is_encoder_decoder=False)
    return found


def caches() -> tuple[str, ...]:
    """Names of arguments and outputs that are caches."""
    from transformers.generation.utils import ALL_CACHE_NAMES

    return tuple(ALL_CACHE_NAMES)


class ClassDecoder:
    """Decodes rows by a class's own forward, batch by batch; rows that have ended are dropped from it."""

    def __init__(
        self,
        forwards: Forwards,
        rows: DecodingRows,
        begin: Callable[[Sequence[Conversation]], Cached | Uncached],
        *,
        together: bool,
    ) -> None:
        """Args: ``begin`` runs prompts; ``together``: prompts of different lengths share it."""
        self.forwards, self.rows, self.begin, self.together = forwards, rows, begin, together
        self.prompts = Conversation.prompts(rows.prompts)

    def run(self, network: Any, batch_size: int, check_cancelled: Callable[[], None]) -> None:
        """Decode all rows."""
        with caching(network):
            for batch in self._batches(batch_size):
                self._decode(batch, check_cancelled)

    def _batches(self, size: int) -> Iterator[list[int]]:
        """Rows whose prompts can share a forward."""
        index = self.rows.index
        for start in range(0, len(self.rows.waiting), size):
            rows = self.rows.waiting[start : start + size]
            needed = list(dict.fromkeys(index[row] for row in rows))
            prompts = [self.prompts[prompt] for prompt in needed]
            for group in self.forwards.collation.groups(prompts, together=self.together):
                chosen = {needed[number] for number in group}
                yield [row for row in rows if index[row] in chosen]

    def _decode(self, batch: list[int], check_cancelled: Callable[[], None]) -> None:
        rows, device = self.rows, self.rows.device
        needed = list(dict.fromkeys(rows.index[row] for row in batch))
        place = {prompt: number for number, prompt in enumerate(needed)}
        live = Live(len(batch), device)
        rows.enter(batch, live)
        with outside_inference():
            cached = self.begin([self.prompts[prompt] for prompt in needed])
            cached.select(torch.tensor([place[rows.index[row]] for row in batch], device=device))
        while True:
            check_cancelled()
            rows.next_tokens(cached.logits.clone(), live)
            if rows.look(live) >= IDLE * live.size:
                unfinished = rows.drop_done(live)
                if not live.size:
                    return
                with outside_inference():
                    cached.select(unfinished.clone())
            with outside_inference():
                cached.step(live.token[:, None].clone())


@contextmanager
def outside_inference() -> Iterator[None]:
    """No gradients, but ordinary tensors: a class may keep some, and training couldn't use them."""
    with torch.inference_mode(False), torch.no_grad():
        yield
