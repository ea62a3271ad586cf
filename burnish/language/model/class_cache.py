"""Decoding by a class's own forward: with its cache, or without one where that gives other numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from burnish.language.decoding import IDLE, DecodingRows, Live
from burnish.language.model.forwards import Conversation, Inputs, caching

if TYPE_CHECKING:
    from burnish.language.model.universal import LanguageModel

Cache = Literal["padded", "alone", "none"]  # prompts share it, padded on the left; one has it; each token is read anew


class Cached:
    """Rows that share a cache: prompts first, then tokens of responses. Each ends at the last column."""

    def __init__(self, model: LanguageModel, network: Any, prompts: Sequence[Conversation]) -> None:
        """Run prompts."""
        self.forwards, self.network = model.forwards, network
        inputs = self.forwards.inputs(network, prompts, side="left")
        self.ids: Tensor = inputs.pop("input_ids")  # [B, T] that were run
        self.logits = torch.empty(len(self.ids), 0)  # [B, V] of the last token of each row
        self.arguments = inputs | {"use_cache": True} | self._new()  # of the next forward, beside them
        self._run(is_first_iteration=True)
        kept = {"attention_mask", "position_ids", "use_cache", *caches()}
        joins = self.forwards.collation
        aligned = {name for name in joins.rows | joins.per_token if name in inputs}
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

    def __init__(self, model: LanguageModel, network: Any, prompts: Sequence[Conversation]) -> None:
        self._model, self._network, self._rows = model, network, list(prompts)
        self.logits = self._last()

    def select(self, rows: Tensor) -> None:
        self._rows = [self._rows[row] for row in rows.tolist()]
        self.logits = self.logits.index_select(0, rows)

    def step(self, tokens: Tensor) -> None:
        added = tokens.cpu()
        self._rows = [
            row.followed_by(own, self._model.capabilities.fill) for row, own in zip(self._rows, added, strict=True)
        ]
        self.logits = self._last()

    def _last(self) -> Tensor:
        found, forwards = dict[int, Tensor](), self._model.forwards
        for group in forwards.collation.groups(self._rows, together=self._model.capabilities.padded):
            rows = [self._rows[row] for row in group]
            inputs = forwards.inputs(self._network, rows) | {"use_cache": False}
            out, _ = forwards.call(self._network, inputs, logits="all")
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


def decode_by_class(
    model: LanguageModel, network: Any, rows: DecodingRows, batch_size: int, check_cancelled: Callable[[], None]
) -> None:
    """Decode rows by the forward of their class, batch by batch; those that have ended are dropped from it."""
    prompts, index, known = Conversation.prompts(rows.prompts), rows.index, model.capabilities
    with caching(network):
        for start in range(0, len(rows.waiting), batch_size):
            some = rows.waiting[start : start + batch_size]
            needed = list(dict.fromkeys(index[row] for row in some))
            alike = [prompts[prompt] for prompt in needed]
            for group in model.forwards.collation.groups(alike, together=known.cache != "alone"):
                place = {needed[number]: n for n, number in enumerate(group)}
                batch = [row for row in some if index[row] in place]
                with outside_inference():
                    chosen = [alike[number] for number in group]
                    kind = Uncached if known.cache == "none" else Cached
                    cached = kind(model, network, chosen)
                    cached.select(torch.tensor([place[index[row]] for row in batch], device=rows.device))
                _decode(cached, rows, batch, check_cancelled)


def _decode(
    cached: Cached | Uncached, rows: DecodingRows, batch: list[int], check_cancelled: Callable[[], None]
) -> None:
    live = Live(len(batch), rows.device)
    rows.enter(batch, live)
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
