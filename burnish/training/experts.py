"""Expert parallelism: a rank of a group holds some experts of every layer, and rows of tokens travel to their experts.

Weights of experts are what transformers stacks, [E, ...] each, in modules with one way of calling them; such a module
is used as it is, with the experts of this rank alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed._functional_collectives import all_to_all_single

from burnish.options.cluster import ShardingOptions
from burnish.training.ranks import Ranks, device_mesh
from burnish.types.batch import is_sharded
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def stacks_in(block: nn.Module) -> list[Any]:
    """The modules of a block that hold the experts of a layer, as transformers' decorator of them marks them."""
    return [module for module in block.modules() if hasattr(module, "is_transposed")]


def check_experts(blocks: Sequence[nn.Module], size: int, option: str) -> None:
    """Refuse a network whose experts can't be split over ``size`` ranks; its weights need no values for this.

    Args:
        blocks: of the network.
        size: ranks.
        option: that says so, with its value.

    Raises:
        UserError: it has no experts, not a multiple of ``size``, or weights that its experts share.
    """
    stacks = [stack for block in blocks for stack in stacks_in(block)]
    if not stacks:
        raise UserError(
            f"{option}, but the network has no experts whose weights transformers stacks in one tensor; remove it"
        )
    for stack in stacks:
        if stack.num_experts % size:
            raise UserError(f"{option}, which does not divide the {stack.num_experts} experts of a layer")
        for name, weight in stack.named_parameters():
            if len(weight) != stack.num_experts:
                raise UserError(f"{option}, but all experts of a {type(stack).__name__} share {name}; remove it")


def split_mesh(ranks: Ranks, options: ShardingOptions, device: str, name: str) -> DeviceMesh | None:
    """Device mesh (replicate, shard, ``name``) for weights of which ranks hold a part each; None where they hold all.

    Ranks that share the experts of a layer (``experts``), or its matrices (``tensor``), are neighbours. As many of such
    groups as there are in a shard group share each of these parts.
    """
    size = {"experts": options.expert_parallel, "tensor": options.tensor_parallel}[name]
    shards = options.shard_size
    if size == 1:
        return None
    copy = max(size, shards if isinstance(shards, int) else ranks.size)
    return device_mesh(ranks, device, shard=copy // size, **{name: size})


def split_by_expert(mesh: DeviceMesh, module: nn.Module, weight: Tensor) -> Tensor:
    """A weight [E, ...] of a module of which a rank has the experts of its place in a group; no communication."""
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(weight, mesh["experts"], [Shard(0)], src_data_rank=None)


def beside(mesh: DeviceMesh) -> dict[str, Any]:
    """How FSDP shards weights that ranks of a group have parts of: along another axis, so that a share is one block.

    Raises:
        UserError: when FSDP asks for the axis of a weight of experts of which the number of shards divides no axis.
    """
    from torch.distributed.tensor import Shard

    shards, name = mesh["shard"].size(), mesh.mesh_dim_names[-1]  # type: ignore[index]

    def placement(weight: Any) -> Shard:
        taken = {where.dim for where in weight.placements if where.is_shard()}
        axis = next((i for i, n in enumerate(weight.shape) if i not in taken and n % shards == 0), None)
        if axis is None and name == "experts":
            size = mesh[name].size()
            raise UserError(
                f"sharding.expert_parallel is {size}, but weights {list(weight.shape)} of experts can't be split over "
                f"{shards} ranks besides; set sharding.shard_size={size}"
            )
        return Shard(axis or 0)

    return {"mesh": mesh["replicate", "shard"], "shard_placement_fn": placement}


def gather_parts(module: nn.Module) -> None:
    """Put full weights into the place of this rank's parts, until FSDP reshards the module; a collective operation."""
    with torch.no_grad():
        for name, weight in module._parameters.items():
            if is_sharded(weight):
                full: Any = weight
                module._parameters[name] = nn.Parameter(full.full_tensor(), requires_grad=full.requires_grad)


def travel(stack: Any, mesh: DeviceMesh) -> None:
    """Have tokens travel to the ranks of the experts that a module lacks, where its weights are sharded.

    Every rank of the group calls it equally often.
    """
    stack.forward = partial(_dispatched, stack, stack.forward, mesh.get_group("experts"))


def _dispatched(
    stack: Any, own: Callable[..., Tensor], group: Any, states: Tensor, index: Tensor, weights: Tensor
) -> Tensor:
    """What the chosen experts make of tokens, weighted: [N, D] of states [N, D], expert numbers and weights [N, K].

    The CPU waits for the device once, for the number of rows that come.
    """
    here = {name: weight.to_local() for name, weight in stack._parameters.items() if is_sharded(weight)}
    if not here:  # ranks have gathered all experts, and each runs on its own
        return own(states, index, weights)
    ranks, experts = dist.get_world_size(group), stack.num_experts
    chosen = index.flatten().to(torch.int32 if index.is_cuda else torch.float32)  # what histc takes there
    order = chosen.argsort(stable=True)
    # rows for each expert of each rank; bincount would wait for a GPU
    sent = torch.histc(chosen, experts, 0, experts - 1).long().view(ranks, -1)
    come = sent.clone()  # of this rank's experts from each rank; ranks of a forecast send nothing, and all do the same
    dist.all_to_all_single(come, sent, group=group)
    there, back = torch.stack([sent.sum(1), come.sum(1)]).tolist()
    rows = all_to_all_single(states[order // index.shape[1]], back, there, group)
    expert = torch.arange(experts // ranks, device=rows.device).repeat(ranks)
    expert = expert.repeat_interleave(come.flatten(), output_size=len(rows))
    made = all_to_all_single(_made(stack, own, here, experts // ranks, rows, expert), there, back, group)
    return _weighted(made[order.argsort()], weights, states)


def on_experts(
    stack: Any, own: Callable[..., Tensor], states: Tensor, index: Tensor, weights: Tensor, here: range
) -> Tensor:
    """What some of the chosen experts make of tokens, weighted: the arguments and the result of ``_dispatched``.

    The CPU waits for the device once, for the number of rows.

    Args:
        here: numbers of the experts, whose weights are in the module.
    """
    token, place = ((index >= here.start) & (index < here.stop)).nonzero(as_tuple=True)
    made = _made(stack, own, {}, len(here), states[token], index[token, place] - here.start)
    every = made.new_zeros(index.numel(), made.shape[-1]).index_copy(0, token * index.shape[1] + place, made)
    return _weighted(every, weights, states)


def _made(
    stack: Any, own: Callable[..., Tensor], parameters: Mapping[str, Tensor], count: int, rows: Tensor, expert: Tensor
) -> Tensor:
    """What ``count`` experts, by other parameters, make of rows [M, D], each for the expert [M] of its number."""
    given = rows
    if not len(rows):  # a row of zeros: some kernels would refuse none, and others wait for it in the backward pass
        given, expert = nn.functional.pad(rows, (0, 0, 0, 1)), expert.new_zeros(1)
    with _in_place(stack, parameters, count):
        return own(given, expert[:, None], given.new_ones(len(given), 1))[: len(rows)]


def _weighted(made: Tensor, weights: Tensor, states: Tensor) -> Tensor:
    """Sums [N, D], in the precision of states, of what K experts made of each token, [N * K, D]."""
    return (made.view(*weights.shape, -1) * weights[..., None]).sum(1).to(states.dtype)


@contextmanager
def _in_place(stack: Any, weights: Mapping[str, Tensor], count: int) -> Iterator[None]:
    """A module with other weights in this context, of ``count`` experts."""
    before, experts = dict(stack._parameters), stack.num_experts
    stack._parameters.update(weights)
    stack.num_experts = count
    try:
        yield
    finally:
        stack._parameters.update(before)
        stack.num_experts = experts
