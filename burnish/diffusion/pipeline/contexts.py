"""Sequence parallelism of generators: what diffusers' plan of a class names is split and gathered.

Diffusers' own hooks ask for lengths that divide, and attend with a backward pass that recomputes the forward pass.
Those of ``burnish.training.sequences`` take any length and any attention backend.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from burnish.diffusion.pipeline.loading import parts_of
from burnish.diffusion.pipeline.networks import Networks, blocks_of
from burnish.training.ranks import Ranks
from burnish.training.sequences import Split, chunks, ranges
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object

OPTION = "sharding.context_parallel"
# networks whose gradients tests compare with those of one rank. A sum of gradients is wrong where weights come after
# what is gathered (Helios), or a second stream is not split (LTX-2)
TESTED = (
    "FluxTransformer2DModel", "Flux2Transformer2DModel", "LTXVideoTransformer3DModel", "QwenImageTransformer2DModel",
    "WanTransformer3DModel",
)  # fmt: skip


def check_contexts(path: Path, index: Mapping[str, Any], size: int) -> None:
    """Refuse a pipeline whose sequences ranks can't share, by its configuration files alone.

    Args:
        path: of the pipeline.
        index: its model_index.json.
        size: ranks of a group.

    Raises:
        UserError: naming what doesn't fit.
    """
    kind, parts = index.get("_class_name"), parts_of(index)
    networks = [name for name in parts if index[name][1] in TESTED]
    if not networks or any("controlnet" in name for name in parts):  # what these add to states is of all tokens
        raise UserError(
            f"{OPTION} is {size}, but it is only tested for pipelines of {', '.join(TESTED)} without a ControlNet, "
            f"and this is a {kind}; set {OPTION}=1"
        )
    for name in networks:
        heads = int(read_object(path / name / "config.json").get("num_attention_heads", size))
        if heads < size:
            raise UserError(
                f"{OPTION} is {size}, but {name} has {heads} attention heads, of which every rank needs one; give "
                f"{heads} or less"
            )


class Streams:
    """The sequences of a network's forward pass, such as those of pixels and of texts, which ranks split."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.counts: Mapping[str, Sequence[int]] = {}  # of the tokens of each rank, of the forward pass that runs
        self._known: Any = WeakTensorKeyDictionary()  # the same, by the first input of a block

    def enter(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a block runs: a backward pass that computes it again has the lengths of its own forward pass."""
        first = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        self.counts = self._known.setdefault(first, self.counts)

    def split(self, value: Any, plan: Any, name: str = "") -> Any:
        """This rank's chunk of an input or output, as diffusers' plan has it."""
        if not isinstance(value, Tensor) or plan.expected_dims not in (None, value.ndim):
            return value
        counts = chunks(value.shape[plan.split_dim], self.ranks.size)
        if not counts[-1]:
            raise UserError(
                f"{OPTION} is {self.ranks.size}, but a sequence has {value.shape[plan.split_dim]} tokens, and "
                f"every rank needs one ({name}); give fewer ranks, or longer texts"
            )
        if name.endswith("hidden_states"):
            self.counts = {**self.counts, name: counts}
        return value.split(counts, plan.split_dim)[self.ranks.rank]

    def inputs(self, plan: Mapping[str, Any], module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Split inputs of a module."""
        given = inspect.signature(module.forward).bind_partial(*args, **kwargs)
        for name in plan.keys() & given.arguments.keys():
            given.arguments[name] = self.split(given.arguments[name], plan[name], name)
        return given.args, given.kwargs

    def outputs(self, plan: Mapping[int, Any], module: nn.Module, args: Any, output: Sequence[Tensor]) -> Any:
        """Split outputs of a module."""
        return tuple(self.split(one, plan[i]) if i in plan else one for i, one in enumerate(output))

    def gather(self, plan: Any, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """What the network returns, on all ranks."""
        return Split(self.ranks, self.counts["hidden_states"]).gathered(output, plan.gather_dim)

    def sequence_of(self, count: int) -> Split:
        """The sequence, a stream or all of them joined, of which attention is given ``count`` tokens of this rank."""
        joined = [sum(each) for each in zip(*self.counts.values(), strict=True)]
        fitting = {tuple(one) for one in (*self.counts.values(), joined) if one[self.ranks.rank] == count}
        if len(fitting) != 1:
            raise UserError(f"{OPTION}: lengths of sequences can't be told apart ({self.counts}); give other sizes")
        return Split(self.ranks, fitting.pop())

    def attend(
        self,
        own: Callable[..., Tensor],
        *,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        **more: Any,
    ) -> Tensor:
        """Attention [B, n, H, D] of this rank's queries [B, n, H, D] by a backend, with a mask [.., m] of its keys."""
        queries, keys = self.sequence_of(query.shape[1]), self.sequence_of(key.shape[1])
        if attn_mask is not None:
            mask = keys.gathered(attn_mask, attn_mask.ndim - 1)
            if mask.ndim == 4 and mask.shape[1] > 1:
                heads = ranges(chunks(query.shape[2], self.ranks.size))[self.ranks.rank]
                mask = mask[:, heads.start : heads.stop]
            more["attn_mask"] = mask
        return queries.attend(lambda q, k, v: own(query=q, key=k, value=v, **more), query, key, value, keys)


def split_sequences(network: nn.Module, ranks: Ranks) -> None:
    """Have the ranks of a group run a network together: to be called once, after it is sharded.

    Args:
        network: or several, in one module.
        ranks: of the group.
    """
    from diffusers.hooks.context_parallel import _get_submodule_by_name
    from diffusers.models._modeling_parallel import ContextParallelOutput

    _take_streams()
    for one in network.values() if isinstance(network, Networks) else [network]:
        own: Any = one
        streams = Streams(ranks)
        for module in own.modules():
            processor: Any = getattr(module, "processor", None)
            if hasattr(processor, "_parallel_config"):
                processor._parallel_config = streams
        for name, plan in own._cp_plan.items():
            found: Any = _get_submodule_by_name(own, name)
            for module in found if isinstance(found, list) else [found]:
                if isinstance(plan, ContextParallelOutput):
                    module.register_forward_hook(partial(streams.gather, plan))
                elif all(isinstance(key, int) for key in plan):
                    module.register_forward_hook(partial(streams.outputs, plan))
                else:
                    module.register_forward_pre_hook(partial(streams.inputs, plan), prepend=True, with_kwargs=True)
        for block in blocks_of(own):  # first, as FSDP hands on other tensors
            block.register_forward_pre_hook(streams.enter, prepend=True, with_kwargs=True)


def _take_streams() -> None:
    """Have all attention backends of diffusers take ``Streams`` in the place of its own configuration."""
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

    for name, own in Registry._backends.items():
        if not isinstance(own, partial):
            Registry._backends[name] = partial(_attend, own)


def _attend(own: Callable[..., Tensor], *, _parallel_config: Any = None, **given: Any) -> Tensor:
    """Attention by a backend of diffusers."""
    if isinstance(_parallel_config, Streams):
        return _parallel_config.attend(own, **given)
    return own(_parallel_config=_parallel_config, **given)
