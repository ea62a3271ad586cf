"""Networks that lie on several ranks: each holds a part of every weight, and all come together where they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from burnish.options import ShardingOptions
from burnish.training.ranks import SINGLE_RANK, Ranks, distribute
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")
P = TypeVar("P")


class Unit(nn.Module):
    """The outermost unit of sharding: weights outside of blocks are whole while a call of it runs.

    FSDP acts where a module is called. Models are used by their parts here (the embedding, the decoder, the weight of
    the head), so what is called is this, with a function that does all of it.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, run: Callable[[], Any]) -> Any:
        found = run()
        return tuple(map(_own, found)) if isinstance(found, tuple) else _own(found)


def _own(tensor: Tensor) -> Tensor:
    """A tensor that is no view: the backward pass of a unit begins where a gradient enters by what it returned."""
    return tensor.clone() if tensor._base is not None else tensor


class Sharded:
    """A network, with what is called together with it, on all ranks."""

    def __init__(self, unit: Unit, options: ShardingOptions) -> None:
        """Take over a unit that FSDP has sharded."""
        self.unit: Any = unit
        self.reshard = options.reshard_after_forward
        self._gathered = 0
        self._learned: set[str] = set()
        self.unit(tuple)  # whatever is called first is the outermost unit to FSDP, and it may be a block in sampling
        with self.gathered():  # the weights that gradients belong to exist from now on
            for name, weight in unit.named_parameters():
                if weight.requires_grad:
                    weight.register_post_accumulate_grad_hook(partial(self._note, name))
        self.parameters = dict(unit.named_parameters())

    def _note(self, name: str, weight: Tensor) -> None:
        self._learned.add(name)

    def __call__(self, run: Callable[[], T]) -> T:
        """Run something that uses the network. It returns tensors, alone or in tuples: gradients enter by them."""
        found: T = self.unit(run)
        if not (torch.is_grad_enabled() or self._gathered or self.reshard):
            self._give_up()  # no backward pass comes that would, and the weights may change meanwhile
        return found

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Whole weights on every rank for a while, which each may use as it likes. Ranks enter together."""
        self._gathered += 1
        try:
            if self._gathered == 1:
                self.unit.set_reshard_after_forward(False)
                for module in self._modules():
                    module.unshard()
            yield
        finally:
            self._gathered -= 1
            if not self._gathered:
                self._give_up()
                self.unit.set_reshard_after_forward(self.reshard)

    def learned(self) -> set[str]:
        """Weights that a gradient has reached on this rank since this was asked last."""
        learned, self._learned = self._learned, set()
        return learned

    def _give_up(self) -> None:
        for module in self._modules():
            module.reshard()

    def _modules(self) -> list[Any]:
        from torch.distributed.fsdp import FSDPModule

        return [module for module in self.unit.modules() if isinstance(module, FSDPModule)]


class Shards:
    """The networks of a rank by name. Where it is alone there is none in here, and everything runs as it is."""

    def __init__(self, ranks: Ranks = SINGLE_RANK) -> None:
        self.ranks = ranks
        self.networks: dict[str, Sharded] = {}

    def inside(self, name: str, run: Callable[[], T]) -> T:
        """Run something that uses a network; see ``Sharded``."""
        return self.networks[name](run) if name in self.networks else run()

    @contextmanager
    def gathered(self, names: Sequence[str] | None = None) -> Iterator[None]:
        """Whole weights of some networks, or of all, on every rank for a while; see ``Sharded``."""
        if not self.networks:
            yield
            return
        first, *others = self.networks if names is None else names
        with self.networks[first].gathered(), self.gathered(others) if others else nullcontext():
            yield

    def distribute(self, function: Callable[[P], T], parts: Iterable[P]) -> list[T]:
        """What ``function`` makes of every part, in order, shared out among the ranks."""
        return distribute(self.ranks, function, parts)

    def learned(self) -> dict[str, float]:
        """A 1 for every weight that a gradient has reached on this rank since this was asked last."""
        return {
            f"{network} {weight}": 1.0 for network, sharded in self.networks.items() for weight in sharded.learned()
        }

    def drop_unlearned(self, learned: Mapping[str, float]) -> None:
        """Take away the zeros that stand for a gradient where none has reached a weight on any rank.

        An optimizer moves a weight with a gradient of 0, and leaves one alone that has none.
        """
        for network, sharded in self.networks.items():
            for name, weight in sharded.parameters.items():
                if f"{network} {name}" not in learned:
                    weight.grad = None


def shard(
    networks: Sequence[nn.Module],
    blocks: Sequence[nn.Module],
    mesh: DeviceMesh,
    options: ShardingOptions,
    *,
    compute: torch.dtype,
    device: torch.device,
) -> Sharded:
    """Share networks out among ranks: block by block, and what lies outside of the blocks as one more unit.

    Gradients are summed over ranks, in float32: losses are divided by the size of the whole batch already.

    Args:
        networks: that are called together; none of them may be copied from now on.
        blocks: modules of theirs that are called one after the other, by every rank.
        mesh: of the ranks, at least two.
        options: how.
        compute: precision of a forward.
        device: where it runs.

    Raises:
        UserError: the options don't fit the device, or the installed PyTorch can't do it.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        raise UserError(f"training on several ranks needs a newer PyTorch than {torch.__version__}: install 2.13")
    if options.offload and device.type == "cpu":
        raise UserError("sharding.offload is true, but the networks run on the CPU already; leave it out")
    lower = compute if options.gather == "compute" and compute != torch.float32 else None
    how: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": options.reshard_after_forward,
        "mp_policy": MixedPrecisionPolicy(param_dtype=lower, reduce_dtype=torch.float32, cast_forward_inputs=False),
        "offload_policy": CPUOffloadPolicy() if options.offload else OffloadPolicy(),
    }
    for block in blocks:
        fully_shard(block, **how)
    unit: Any = fully_shard(Unit(networks), **how)
    for module in unit.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    # a rank whose rows have no pictures, or no token to learn, still takes part in the sum of every gradient
    unit.set_reduce_scatter_unused_params(True)
    _in_one_order(unit, blocks)
    return Sharded(unit, options)


def _in_one_order(unit: Any, blocks: Sequence[Any]) -> None:
    """Have a backward pass gather and sum in the same order on every rank, whatever its rows are.

    Left to itself, FSDP gathers ahead what came before in the forward passes that this rank has run; and it sums the
    gradients of a block when they leave it by an input, or at the end of the pass if no input needs one. Both may
    differ: a rank may have sampled more than another, and weights outside of blocks may be in what its blocks are
    given, as those of a vision tower are where a row has a picture. Ranks that do not agree wait for ever.
    """
    for module, ahead in zip([*blocks, unit], [unit, *blocks], strict=True):
        module.set_modules_to_backward_prefetch([ahead])
    inside = {weight for block in blocks for weight in block.parameters()}
    if any(weight.requires_grad for weight in unit.parameters() if weight not in inside):
        for block in blocks:
            block.register_forward_pre_hook(_let_a_gradient_leave, prepend=True, with_kwargs=True)


def _let_a_gradient_leave(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An input of a block that needs a gradient, where none does."""
    given = [*args, *kwargs.values()]
    tensors = [place for place, value in enumerate(given) if isinstance(value, Tensor) and value.is_floating_point()]
    if not torch.is_grad_enabled() or any(given[place].requires_grad for place in tensors):
        return None
    given[tensors[0]] = given[tensors[0]].detach().requires_grad_()
    return tuple(given[: len(args)]), dict(zip(kwargs, given[len(args) :], strict=True))


def mesh_of(ranks: Ranks, shard_size: int | None, device: str) -> DeviceMesh:
    """The ranks in a row, or one row per copy of the weights.

    Raises:
        UserError: the ranks can't be divided like that.
    """
    from torch.distributed import new_subgroups_by_enumeration
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    if shard_size is None or shard_size == ranks.size:
        return init_device_mesh(device, (ranks.size,), mesh_dim_names=("shard",))
    if ranks.size % shard_size:
        raise UserError(
            f"sharding.shard_size is {shard_size}, which does not divide the {ranks.size} ranks of the trainer; "
            "give a divisor, or null to share one copy among all"
        )
    rows, wait = torch.arange(ranks.size).view(-1, shard_size), timedelta(seconds=ranks.timeout)
    shard, _ = new_subgroups_by_enumeration(rows.tolist(), timeout=wait)
    replicate, _ = new_subgroups_by_enumeration(rows.T.tolist(), timeout=wait)
    return DeviceMesh.from_group([replicate, shard], device, mesh=rows, mesh_dim_names=("replicate", "shard"))


def is_sharded(value: Any) -> bool:
    """Whether a tensor lies on several ranks, without importing what makes such tensors."""
    return isinstance(value, Tensor) and hasattr(value, "to_local")


def local_shard(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, to be read or changed in place; a plain one as it is."""
    if not is_sharded(tensor):
        return tensor
    there: Any = tensor.detach()
    local: Tensor = there.to_local()
    return local


def sharded_like(whole: Tensor, example: Tensor) -> Tensor:
    """A tensor that every rank has whole, as it lies on the ranks where it is like ``example``; no rank is asked."""
    if not is_sharded(example) or whole.shape != example.shape or is_sharded(whole):
        return whole
    from torch.distributed.tensor import distribute_tensor

    there: Any = example
    return distribute_tensor(whole.to(there.to_local().device), there.device_mesh, there.placements, src_data_rank=None)


def copy_full(target: Tensor, whole: Tensor) -> None:
    """Copy a tensor that every rank has whole into one that may lie on several."""
    with torch.no_grad():
        local_shard(target).copy_(local_shard(sharded_like(whole, target)))


class CpuCopy:
    """What this rank holds of a tensor, remembered in the memory of the CPU while the tensor itself moves on."""

    def __init__(self, tensor: Tensor) -> None:
        self._example = tensor
        self._held = local_shard(tensor.detach()).to("cpu", copy=True)

    def restored(self) -> Tensor:
        """The tensor as it was, lying on the ranks as before."""
        if not is_sharded(self._example):
            return self._held
        from torch.distributed.tensor import DTensor

        there: Any = self._example
        restored: Tensor = DTensor.from_local(
            self._held.to(there.to_local().device), there.device_mesh, there.placements, run_check=False,
            shape=there.shape, stride=there.stride(),
        )  # fmt: skip
        return restored


def full_weight(tensor: Tensor) -> Tensor:
    """All of a tensor that may lie on several ranks, which ask for it together."""
    there: Any = tensor
    whole: Tensor = there.full_tensor() if is_sharded(tensor) else tensor
    return whole
