"""Tensor parallelism: the ranks of a group hold a slice of each matrix of a block, and add up what these make.

Which matrices are split is what the library's own plan of a class says (Shoeybi et al. 2019, arXiv:1909.08053): of a
column-wise one a rank computes some of the outputs, and of the row-wise one that follows it reads these as inputs. Of
the experts of a mixture it has some.

All ranks of a group compute the same loss, and each begins its backward pass with an equal share of the gradient. What
is added up going forward, is so going back: the gradient of a slice is complete, and that of a weight that ranks have
in full is the sum over the group, wherever it stands. Plans don't name every norm between two matrices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed._functional_collectives import all_reduce

from burnish.training.experts import check_experts, on_experts, stacks_in
from burnish.types.batch import is_sharded
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")
COLUMNS, ROWS = "colwise", "rowwise"
FULL = ("replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj", "moe_tp_experts")  # nothing of its own is split


@dataclass(frozen=True)
class Fused:
    """Several matrices in one, each of which is split."""

    kind: str
    sizes: tuple[int, ...]  # columns or rows of each


def _kind(style: Any) -> Any:
    return style.kind if isinstance(style, Fused) else style


def _sizes(style: Any, layer: Any) -> tuple[int, ...]:
    """Outputs of a column-wise layer, or inputs of a row-wise one; those of each part of a fused one."""
    if isinstance(style, Fused):
        return style.sizes
    return (layer.out_features if style == COLUMNS else layer.in_features,)


def styles_of(network: nn.Module, plan: Mapping[str, Any] | None) -> dict[nn.Module, Any]:
    """How a plan splits the modules of a network; * in its names is a number."""
    named, styles = dict(network.named_modules()), dict[nn.Module, Any]()
    for pattern, style in (plan or {}).items():
        name = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
        styles |= {module: style for one, module in named.items() if name.fullmatch(one)}
    return styles


def check_plan(blocks: Sequence[nn.Module], styles: Mapping[nn.Module, Any], size: int) -> None:
    """Refuse a network that can't be split over ``size`` ranks; its weights need no values for this.

    Raises:
        UserError: it has no plan, one with other styles, or layers whose sizes ``size`` does not divide.
    """
    option, split = f"sharding.tensor_parallel is {size}", 0
    for block in blocks:
        if stacks := stacks_in(block):
            check_experts([block], size, option)
        held = {module for stack in stacks for module in stack.modules()}
        for name, module in block.named_modules():
            style = styles.get(module)
            if style is None or style in FULL or module in held:
                continue
            base: Any = getattr(module, "base_layer", module)
            if _kind(style) not in (COLUMNS, ROWS) or not isinstance(base, nn.Linear):
                raise UserError(
                    f"{option}, but the library's plan splits {name} of {type(block).__name__} as {style}, which is "
                    "not supported; set it to 1"
                )
            first, *more = _sizes(style, base)
            parent: Any = block.get_submodule(name.rpartition(".")[0])
            # transformers and diffusers; a head stays on one rank
            whole = getattr(parent, "head_dim", first // getattr(parent, "heads", first))
            if any(count % size for count in (first // whole, *more)):
                raise UserError(f"{option}, which does not divide the {first // whole} heads or features of {name}")
            split += 1
    if not split:
        raise UserError(f"{option}, but the library has no plan of how to split this network; set it to 1")


class TensorSplit:
    """How the ranks of a tensor group hold the blocks of a network."""

    def __init__(self, mesh: DeviceMesh, styles: Mapping[nn.Module, Any]) -> None:
        """Args: ``mesh`` is (replicate, shard, tensor); ``styles`` those of its modules."""
        self.mesh, self.styles = mesh, styles
        self.group, self.size = mesh.get_group("tensor"), mesh["tensor"].size()
        self._within = False  # whether a module runs with slices
        self._split: dict[nn.Module, tuple[int, tuple[int, ...]]] = {}  # of the modules of blocks: see ``_slices``

    def _slices(self, block: nn.Module) -> dict[nn.Module, tuple[int, tuple[int, ...]]]:
        """The axis that weights of modules are split along, and sizes of their parts; of adapters, what meets it."""
        found: dict[nn.Module, Any] = {module: (0, ()) for stack in stacks_in(block) for module in stack.modules()}
        for layer in block.modules():
            if (kind := _kind(style := self.styles.get(layer))) in (COLUMNS, ROWS) and layer not in found:
                base: Any = getattr(layer, "base_layer", layer)
                adapters: Any = getattr(layer, "lora_B" if kind == COLUMNS else "lora_A", {})
                found |= dict.fromkeys([base, *adapters.values()], (int(kind == ROWS), _sizes(style, base)))
        return found

    def placed(self, block: nn.Module) -> Callable[[nn.Module, Tensor], Tensor]:
        """Has a weight of a module lie on the ranks of the group as slices, or in full; no communication."""
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        slices = self._slices(block)

        def place(module: nn.Module, weight: Tensor) -> Tensor:
            axis, sizes = slices.get(module, (0, ()))
            axis = 0 if len(sizes) > 1 else axis  # of parts no rank has one slice: it is cut where the layer runs
            split = module in slices and weight.ndim > 1 and weight.shape[axis] % self.size == 0
            where = Shard(axis) if split else Replicate()
            return distribute_tensor(weight, self.mesh["tensor"], [where], src_data_rank=None)

        return place

    def run(self, block: nn.Module) -> None:
        """Have a block run with slices where its weights are slices. Every rank of the group calls it equally often.

        Modules that own weights do so, not the block: activations may be computed again within that.
        """
        self._split |= self._slices(block)
        for layer in block.modules():
            if _kind(self.styles.get(layer)) == ROWS:
                layer.forward = partial(self._rows, layer.forward)
        for stack in stacks_in(block):
            stack.forward = partial(self._experts, stack, stack.forward)
        for owner in _owners(block):
            owner.forward = partial(self._run, [*owner.modules()], owner.forward)

    def _run(self, modules: Sequence[nn.Module], own: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """A module with this rank's slices in place of its weights, unless this rank has gathered all of them."""
        held = [(module, name, weight) for module in modules for name, weight in module._parameters.items()]
        sliced: list[Any] = [one for one in held if is_sharded(one[2])]
        if not sliced:
            return own(*args, **kwargs)
        self._within = True
        try:
            for module, name, weight in sliced:
                module._parameters[name] = self._slice(module, name, weight)
            return own(*args, **kwargs)
        finally:
            self._within = False
            for module, name, weight in sliced:
                module._parameters[name] = weight

    def _slice(self, module: nn.Module, name: str, weight: Any) -> Tensor:
        """What this rank computes with of a weight: a slice, all of it, or of a bias of rows an equal share."""
        from torch.distributed.tensor import Partial, Replicate

        axis, sizes = self._split.get(module, (0, ()))
        if weight.placements[0].is_shard() and len(sizes) < 2:
            return weight.to_local()  # type: ignore[no-any-return]
        full: Tensor = weight.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        if full.ndim == 1 and axis:
            return full / self.size
        rank, own = dist.get_rank(self.group), full.split(list(sizes), axis) if sizes else ()
        return torch.cat([part.chunk(self.size, axis)[rank] for part in own], axis) if own else full

    def _rows(self, own: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        made = own(*args, **kwargs)
        return self.summed(made) if self._within else made

    def _experts(
        self, stack: Any, own: Callable[..., Tensor], states: Tensor, index: Tensor, weights: Tensor
    ) -> Tensor:
        """What the chosen experts make of tokens, of which this rank has some: see ``on_experts``."""
        if not self._within:
            return own(states, index, weights)
        count = stack.num_experts // self.size
        first = dist.get_rank(self.group) * count
        return self.summed(on_experts(stack, own, states, index, weights, range(first, first + count)))

    def summed(self, made: Tensor) -> Tensor:
        """The sum over the group; that of its gradients goes back."""
        return all_reduce(made, "sum", self.group)  # type: ignore[no-any-return]


def _owners(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that use weights: their own, or those of the adapters of a layer."""
    if module._parameters or hasattr(module, "base_layer"):
        yield module
    else:
        for child in module.children():
            yield from _owners(child)


def shared(tensor: Tensor, size: int) -> Tensor:
    """The same tensor, whose gradient goes back as one of ``size`` equal shares."""
    found = tensor.view_as(tensor)
    if found.requires_grad:
        found.register_hook(lambda gradient: gradient / size)
    return found
