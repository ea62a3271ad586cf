"""What vLLM's workers learn to do: take weights over, and score tokens as Burnish does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.distributed import TCPStore

from .channel import Channel
from .inputs import key_of
from .shared import SUM, Places, checksum, mapped, mismatch, place_of, tensors

kept = lru_cache(maxsize=1)(mapped)  # mapping a page costs as much as copying it; a worker has one owner
Weights = Iterator[tuple[str, Tensor]]


def shared_weights(path: str, size: int, places: Places) -> Weights:
    """Weights that lie in the CPU's memory."""
    return tensors(kept(path, size), places)


def sent_weights(channel: Channel, parts: Sequence[tuple[Places, int]]) -> Weights:
    """Weights that rank 0 sends; vLLM may use some of them only when it has all, so each bucket keeps its memory.

    Raises:
        RuntimeError: other bytes came than were sent.
    """
    for places, size in parts:
        content = torch.empty(size + SUM, dtype=torch.uint8, device=channel.device)
        channel.broadcast(content)
        channel.finish()
        own, sent = checksum(content[:size]), content[size:].view(torch.int64)
        if not torch.equal(own[None], sent):
            raise RuntimeError(mismatch(places, int(sent), int(own)))
        yield from tensors(content, places)


class Extension:
    """Methods that are mixed into vLLM's worker class; ``collective_rpc`` calls them by name."""

    device: torch.device
    rank: int
    reload_weights: Any
    model_runner: Any

    def burnish_prepare(self, banned: list[int]) -> str:
        """Have the model leave out tokens that are never written, and score at the temperature of the job.

        The log-probs that vLLM calls raw are then those of the full distribution at that temperature, whatever
        filters are on.

        Returns:
            Which GPU this worker is on, as ``place_of`` has it.
        """
        model = self.model_runner.get_model()
        self.burnish_temperature, self.burnish_positions = 1.0, {}  # type: ignore[var-annotated]
        compute, forbidden = model.compute_logits, torch.tensor(banned, dtype=torch.long)

        def compute_logits(*arguments: Any, **more: Any) -> Tensor | None:
            nonlocal forbidden
            logits: Tensor | None = compute(*arguments, **more)
            if logits is None:  # another rank has them
                return None
            logits = logits.float()
            if len(banned):
                forbidden = forbidden.to(logits.device)  # once: a copy would wait for all that the GPU has to do
                logits.index_fill_(-1, forbidden, -torch.inf)
            return logits if self.burnish_temperature == 1 else logits.div_(self.burnish_temperature)

        model.compute_logits = compute_logits
        if hasattr(model, "get_mrope_input_positions"):
            self._burnish_place(model)
        return place_of(self.device)

    def _burnish_place(self, model: Any) -> None:
        own: Callable[..., tuple[Tensor, int]] = model.get_mrope_input_positions

        def get_mrope_input_positions(input_tokens: list[int], mm_features: Sequence[Any]) -> tuple[Tensor, int]:
            key = key_of(input_tokens, [feature.identifier for feature in mm_features])
            given: Tensor | None = self.burnish_positions.get(key)
            if given is None:
                return own(input_tokens, mm_features)
            return given, int(given.max()) + 1 - len(input_tokens)

        model.get_mrope_input_positions = get_mrope_input_positions

    def burnish_begin(self, temperature: float, positions: dict[str, np.ndarray]) -> None:
        """Settle what a job is sampled or scored with: the temperature, and the positions of prompts with media."""
        self.burnish_temperature = temperature
        self.burnish_positions = {key: torch.from_numpy(array) for key, array in positions.items()}

    def burnish_join(self, port: int, size: int, seconds: float) -> None:
        """Join the channel of which the trainer is rank 0."""
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        self.burnish_channel = Channel(store, 1 + self.rank, size, device=self.device.type, seconds=seconds)

    def burnish_receive(self, parts: Sequence[tuple[Places, int]]) -> list[str]:
        """As ``burnish_load``, of weights that come through the channel."""
        return self.burnish_load(partial(sent_weights, self.burnish_channel, parts))

    def burnish_load(self, weights: Callable[[], Weights]) -> list[str]:
        """Put weights in place; the names of vLLM's own that were not among them."""
        model = self.model_runner.get_model()
        known = {name for name, _ in model.named_parameters()}
        load = model.load_weights
        loaded: set[str] = set()

        def load_weights(*arguments: Any, **more: Any) -> Any:
            names = load(*arguments, **more)
            loaded.update(known if names is None else names)
            return names

        with patch.object(model, "load_weights", load_weights):
            self.reload_weights(weights_iterator=weights())
        tied = _tie(model)
        return sorted(known - loaded - tied)


def _tie(model: Any) -> set[str]:
    """Renew a head that shares the embeddings' weights: reloading leaves it with what it had packed of the old ones."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    modules = {name: module for name, module in model.named_modules() if isinstance(module, VocabParallelEmbedding)}
    heads = {name: module for name, module in modules.items() if isinstance(module, ParallelLMHead)}
    words = [module for name, module in modules.items() if name not in heads]
    config = model.config.get_text_config()
    tied = getattr(model.config, "tie_word_embeddings", False) or getattr(config, "tie_word_embeddings", False)
    if not tied or len(words) != 1:
        return set()
    for head in heads.values():
        if head.weight is not words[0].weight:
            head.tie_weights(words[0])
        head.quant_method.process_weights_after_loading(head)
    return {f"{name}.weight" for name in heads}
