"""Sharded networks (FSDP2): each rank holds a shard of every weight, and gathers full weights where they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_iter

from burnish.models.placing import place_buffers, resting
from burnish.options.cluster import ShardingOptions
from burnish.training.experts import (
    beside,
    check_experts,
    gather_parts,
    split_by_expert,
    stacks_in,
    travel,
)
from burnish.training.ranks import SINGLE_RANK, Ranks, device_mesh
from burnish.training.saved import SavedTensor, own_slice
from burnish.training.tensor_parallel import TensorSplit, check_plan, shared
from burnish.types.batch import is_sharded
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R", bound=Sized)

PLAIN = (nn.Parameter, FakeTensor)  # what a forecast is made with has a class of its own


class Unit(nn.Module):
    """The root module of FSDP: weights outside of blocks are gathered while a call of it runs.

    FSDP acts on calls of modules. Networks are used by their submodules here (embedding, decoder, head), so this
    module is called instead, with a function that uses them.
    """

    def __init__(self, networks: Sequence[nn.Module], equals: int = 1) -> None:
        """Args: ``equals`` are ranks that compute the same, whose gradients add up."""
        super().__init__()
        self.networks, self.equals = nn.ModuleList(networks), equals

    def forward(self, run: Callable[[], Any]) -> Any:
        found = run()
        return tuple(map(self._own, found)) if isinstance(found, tuple) else self._own(found)

    def _own(self, tensor: Tensor) -> Tensor:
        """A tensor that is not a view: FSDP's backward hooks are on the tensors that the root module returns."""
        if self.equals > 1:
            return shared(tensor, self.equals)
        return tensor.clone() if tensor._base is not None else tensor


class Reduction:
    """What FSDP reduces the gradients of a unit with, in place of its own reduce-scatter.

    ``once`` adds up those of all micro-batches, in full, and reduces the sum; else each call's are reduced, and their
    shares added up, in float32 both. A unit that a pass calls several times, as guidance does, has as many backward
    passes. Groups of ranks sum what they have once, after the last of them.
    """

    def __init__(self, unit: Any, *, once: bool, sent: torch.dtype) -> None:
        """Args: ``sent`` is the precision in which gradients of single calls travel."""
        self.unit, self.once, self.sent = unit, once, sent
        self.last = True  # whether this is the last micro-batch of an optimizer step
        self.buffers = 0  # that FSDP will ask for: two in each backward pass to come
        self.total: Tensor | None = None  # of the backward passes so far
        parts = [part for part in unit.modules() if part is not unit and hasattr(part, "unshard")]
        nested = {weight for part in parts for weight in part.parameters()}
        # FSDP reduces nothing of a unit whose own weights are frozen
        if any(weight.requires_grad and weight not in nested for weight in unit.parameters()):
            unit.register_forward_pre_hook(self._called, with_kwargs=True)

    def micro_batch(self, *, last: bool) -> None:
        """Before a micro-batch is learned: whether it is the last one of an optimizer step."""
        self.last = last
        self._expect(0)

    def _called(self, unit: nn.Module, args: Any, kwargs: Any) -> None:
        """Expect a backward pass where FSDP does: of inputs that need gradients, but for what is computed again."""
        learns = any(isinstance(value, Tensor) and value.requires_grad for value in tree_iter((args, kwargs)))
        if learns and torch.is_grad_enabled() and torch._C._current_graph_task_id() < 0:
            self._expect(self.buffers + 2)

    def _expect(self, buffers: int) -> None:
        """Have groups of ranks sum the next gradients if they are the last ones of an optimizer step."""
        self.buffers = max(buffers, 0)
        self.unit.set_requires_all_reduce(self.last and self.buffers <= 2, recurse=False)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for full gradients, and then for this rank's share of their sum."""
        self._expect(self.buffers - 1)
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, **_: Any) -> None:
        total = self.total
        if self.once and (self.buffers or not self.last):
            self.total = input_tensor if total is None else total.add_(input_tensor)
            output_tensor.zero_()
            return
        if total is not None:
            input_tensor.add_(total)
            if total.is_cuda:
                total.record_stream(torch.cuda.current_stream())
            self.total = None
        sent = torch.float32 if self.once else self.sent
        share = output_tensor.to(sent)
        torch.distributed.reduce_scatter_single(share, input_tensor.to(sent), op=op, group=group)
        output_tensor.copy_(share)


class Sharded:
    """A sharded network, with the modules that are called together with it."""

    def __init__(self, unit: Unit, reductions: Sequence[Reduction], *, keeps: bool) -> None:
        """Args:
        unit: is sharded already.
        reductions: of its gradients.
        keeps: whether full weights stay through the micro-batches of an optimizer step.
        """
        self.unit: Any = unit
        self.keeps, self._reductions = keeps, reductions
        self._gathered, self._kept = 0, False
        self.is_full = False  # whether weights that were gathered for a call are there for the next one
        self._learned: set[str] = set()
        self.unit(tuple)  # FSDP takes the module that is called first as the root, in sampling that may be a block
        self._observe()
        self.parameters = dict(unit.named_parameters())

    def _observe(self) -> None:
        """Note which weights receive gradients: by hooks on the full parameters that these accumulate on.

        FSDP creates those when it first gathers them, which is done for one unit after the other, so that no rank ever
        holds more of the network than that.
        """
        self._reshard()
        names = {id(weight): name for name, weight in self.unit.named_parameters()}
        for module in self._modules():
            own = [(kept, key) for kept in module.modules() for key in kept._parameters]
            before = {(kept, key): names.get(id(kept._parameters[key])) for kept, key in own}
            module.unshard()
            for (kept, key), name in before.items():
                weight = kept._parameters[key]
                if weight is not None and name is not None and weight.requires_grad and id(weight) not in names:
                    weight.register_post_accumulate_grad_hook(partial(lambda name, _: self._learned.add(name), name))
            module.reshard()

    def __call__(self, run: Callable[[], T]) -> T:
        """Run a function that uses the network and returns a tensor or a tuple of tensors."""
        found: T = self.unit(run)
        if self.keeps and not (torch.is_grad_enabled() or self._gathered or self._kept):
            self._reshard()  # there is no backward pass that would, and the weights may change
        self.is_full = self.keeps and self._kept
        return found

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Full weights stay in this context once they are gathered, where options say so."""
        self._kept = True
        try:
            yield
        finally:
            self._kept = False
            self._reshard()

    def micro_batch(self, *, last: bool) -> None:
        """Before a micro-batch is learned: whether it is the last one of an optimizer step."""
        for reduction in self._reductions:
            reduction.micro_batch(last=last)

    def check_reduced(self) -> None:
        """After an optimizer step's backward passes: none of them is left to wait for."""
        waiting = [type(reduction.unit).__name__ for reduction in self._reductions if reduction.buffers]
        assert not waiting, f"gradients were not summed: {waiting[0]} was called without a backward pass"

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Full weights on every rank in this context, which ranks enter together and may then use independently."""
        self._gathered += 1
        try:
            if self._gathered == 1:
                self.unit.set_reshard_after_forward(False)
                for module in self._modules():
                    module.unshard()
                for module in self.unit.modules():
                    gather_parts(module)
            yield
        finally:
            self._gathered -= 1
            if not self._gathered:
                self._reshard()
                self.unit.set_reshard_after_forward(not self.keeps)

    @property
    def is_gathered(self) -> bool:
        """Whether this rank has the full weights for a while."""
        return self._gathered > 0

    def learned(self) -> set[str]:
        """Weights that received a gradient on this rank since the last call."""
        learned, self._learned = self._learned, set()
        return learned

    def _reshard(self) -> None:
        self.is_full = False
        for module in self._modules():
            module.reshard()

    def _modules(self) -> list[Any]:
        from torch.distributed.fsdp import FSDPModule

        return [module for module in self.unit.modules() if isinstance(module, FSDPModule)]


@contextmanager
def _all_of(contexts: Iterable[AbstractContextManager[None]]) -> Iterator[None]:
    """Several contexts at once."""
    with ExitStack() as entered:
        for one in contexts:
            entered.enter_context(one)
        yield


class Shards:
    """The sharded networks of a rank by name; none for a single rank."""

    def __init__(self, ranks: Ranks = SINGLE_RANK) -> None:
        self.ranks = ranks
        self.networks: dict[str, Sharded] = {}

    def inside(self, name: str, run: Callable[[], T]) -> T:
        """Run a function that uses a network; see ``Sharded``."""
        return self.networks[name](run) if name in self.networks else run()

    def kept(self) -> AbstractContextManager[None]:
        """What a phase gathers stays to its end, where options say so; see ``Sharded``."""
        return _all_of(sharded.kept() for sharded in self.networks.values())

    def micro_batch(self, *, last: bool) -> None:
        """Before a micro-batch is learned; see ``Sharded``."""
        for sharded in self.networks.values():
            sharded.micro_batch(last=last)

    def gathered(self, names: Sequence[str] | None = None) -> AbstractContextManager[None]:
        """Full weights of some networks, or of all, in this context; see ``Sharded``."""
        chosen = [one for name, one in self.networks.items() if names is None or name in names]
        return _all_of(sharded.gathered() for sharded in chosen)

    def agree(self, name: str, counts: dict[str, int]) -> dict[str, int]:
        """The largest of each count over the ranks that use a network together; the counts as they are otherwise."""
        if name not in self.networks or self.networks[name].is_gathered:
            return counts
        return {key: self.ranks.max(count) for key, count in counts.items()}

    def learned(self) -> dict[str, float]:
        """A 1 for every weight that received a gradient on this rank since the last call."""
        return {
            f"{network} {weight}": 1.0 for network, sharded in self.networks.items() for weight in sharded.learned()
        }

    def settle_gradients(self, learned: Mapping[str, float]) -> None:
        """Make the gradients after a backward pass those of all ranks.

        They are summed already, but zero where no rank has any: AdamW updates a weight with a zero gradient, but skips
        one without a gradient.
        """
        for network, sharded in self.networks.items():
            sharded.check_reduced()
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
    adapters: bool = False,
    experts: DeviceMesh | None = None,
    tensor: TensorSplit | None = None,
) -> Sharded:
    """Shard networks over ranks: each block, and the weights outside of blocks together.

    Gradients are summed over ranks in float32: losses are already divided by the size of the full batch.

    Args:
        networks: that are called together; none of them may be copied afterwards.
        blocks: their modules that every rank calls one after the other.
        mesh: of at least two ranks.
        options: of sharding.
        compute: precision of the forward pass.
        device: of the networks.
        adapters: few of the weights are learned, whose gradients fit in full.
        experts: mesh of the weights of experts, where ranks hold some of them each.
        tensor: how ranks hold slices of the weights of blocks, where they do.

    Raises:
        UserError: the options don't fit the device or the network, or PyTorch is too old.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy

    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        raise UserError(f"training on several ranks needs a newer PyTorch than {torch.__version__}: install 2.13")
    if options.offload and device.type == "cpu":
        raise UserError("sharding.offload is true, but the networks are on the CPU already; remove it")
    lower = compute if options.gather == "compute" and compute != torch.float32 else None
    keeps = options.zero_stage in (1, 2)
    how: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": not keeps,
        "mp_policy": MixedPrecisionPolicy(param_dtype=lower, reduce_dtype=torch.float32, cast_forward_inputs=False),
        "offload_policy": CPUOffloadPolicy() if options.offload else OffloadPolicy(),
    }
    rest = torch.device("cpu") if options.offload else device
    stacks = [[] if experts is None else stacks_in(block) for block in blocks]
    if experts is not None:
        check_experts(blocks, size := experts["experts"].size(), f"sharding.expert_parallel is {size}")
        for stack in chain(*stacks):
            _shard_unit(stack, how | beside(experts), rest, device, partial(split_by_expert, experts))
            travel(stack, experts)
    if tensor is not None:
        check_plan(blocks, tensor.styles, tensor.size)
    for block in blocks:
        if tensor is None:
            _shard_unit(block, how, rest, device)
        else:
            _shard_unit(block, how | beside(tensor.mesh), rest, device, tensor.placed(block))
            tensor.run(block)
    unit = _shard_unit(Unit(networks, 1 if tensor is None else tensor.size), how, rest, device)
    reductions = []
    for module in unit.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            reductions.append(Reduction(module, once=adapters or options.zero_stage == 1, sent=lower or torch.float32))
            module.set_custom_reduce_scatter(reductions[-1])  # type: ignore[arg-type]  # which it is in all but name
    # a rank without images or without response tokens still takes part in the reduction of every gradient
    unit.set_reduce_scatter_unused_params(True)
    unit.set_reshard_after_backward(not keeps)
    _in_one_order(unit, blocks, stacks)
    return Sharded(unit, reductions, keeps=keeps)


def _shard_unit(
    unit: Any,
    how: Mapping[str, Any],
    rest: torch.device,
    device: torch.device,
    split: Callable[[nn.Module, Tensor], Tensor] = lambda _, weight: weight,
) -> Any:
    """Shard the weights of a unit that are in no unit yet, of which this rank reads and converts its own share alone.

    Shares lie on ``rest``, buffers on the ``device`` that computes. Weights of modules are ``split`` otherwise first.

    They may lie anywhere, in any precision: in files that are mapped into memory, or on the device. FSDP is given
    weights without memory in their place.
    """
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    places: dict[int, list[tuple[nn.Module, str]]] = {}  # of each weight; tied ones have several
    sources: dict[int, nn.Parameter] = {}
    for module in unit.modules():
        place_buffers(module, device)
        for name, weight in module._parameters.items():
            # quantised weights have classes of their own, which know how they are split
            if type(weight) in PLAIN and not is_sharded(weight):
                places.setdefault(id(weight), []).append((module, name))
                sources[id(weight)] = weight
    for key, weight in sources.items():
        empty = split(places[key][0][0], torch.empty_like(weight, dtype=resting(weight), device="meta"))
        stand_in = nn.Parameter(empty, requires_grad=weight.requires_grad)
        for module, name in places[key]:
            module._parameters[name] = stand_in
    fully_shard(unit, **how)
    for key in places:
        weight = sources.pop(key)  # whoever else held it in full has it no longer
        module, name = places[key][0]
        sharded: Any = module._parameters[name]
        mesh, placements = sharded.device_mesh, sharded.placements
        shape, offset = compute_local_shape_and_global_offset(weight.shape, mesh, placements)
        own = weight.detach()[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]
        share: Any = torch.empty_like(sharded, device=rest, requires_grad=False)  # wherever the mesh computes
        local_shard(share).copy_(own)
        parameter = nn.Parameter(share, requires_grad=weight.requires_grad)
        for module, name in places[key]:
            setattr(module, name, parameter)
    return unit


def _in_one_order(unit: Any, blocks: Sequence[Any], stacks: Sequence[Sequence[Any]]) -> None:
    """Make every pass run its collectives in the same order on every rank, whatever its rows are, and ahead of its use.

    By default FSDP prefetches in the order of this rank's earlier forward passes, and reduces the gradients of a block
    when they leave it by an input, or at the end of the pass if no input needs a gradient. Both may differ by rank: one
    may have sampled more than another, and inputs of blocks need a gradient only where weights outside of them are
    trained, such as a vision tower for rows with images. Ranks in different orders would deadlock.
    """
    units = [[block, *own] for block, own in zip(blocks, stacks, strict=True)]
    for module, ahead in pairwise([unit, *chain(*reversed(units)), unit]):
        module.set_modules_to_backward_prefetch([ahead])
    for module, ahead in pairwise(chain(*units)):
        module.set_modules_to_forward_prefetch([ahead])
    inside = {weight for block in blocks for weight in block.parameters()}
    if any(weight.requires_grad for weight in unit.parameters() if weight not in inside):
        for block in blocks:
            block.register_forward_pre_hook(_require_input_gradient, prepend=True, with_kwargs=True)


def _require_input_gradient(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make an input of a block require a gradient if none does."""
    given = [*args, *kwargs.values()]
    tensors = [i for i, value in enumerate(given) if isinstance(value, Tensor) and value.is_floating_point()]
    if not torch.is_grad_enabled() or any(given[i].requires_grad for i in tensors):
        return None
    given[tensors[0]] = given[tensors[0]].detach().requires_grad_()
    return tuple(given[: len(args)]), dict(zip(kwargs, given[len(args) :], strict=True))


def mesh_of(ranks: Ranks, shard_size: int | str | None, device: str) -> DeviceMesh:
    """Device mesh of the ranks: one dimension, or (replicate, shard) with a ``shard_size`` that divides them."""
    from torch.distributed.device_mesh import init_device_mesh

    if not isinstance(shard_size, int) or shard_size == ranks.size:
        return init_device_mesh(device, (ranks.size,), mesh_dim_names=("shard",))
    return device_mesh(ranks, device, shard=shard_size)


def local_shard(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor, which shares its memory; an unsharded tensor as it is."""
    if not is_sharded(tensor):
        return tensor
    there: Any = tensor.detach()
    return there.to_local()  # type: ignore[no-any-return]


def copy_full(target: Tensor, full: Tensor | SavedTensor) -> None:
    """Copy a saved tensor into one that may be sharded, of which only this rank's slice is read; or one that is not.

    Raises:
        UserError: a saved one has another shape, or can't be read.
    """
    if isinstance(full, SavedTensor):
        if full.shape != target.shape:
            raise UserError(f"the checkpoint has a tensor of shape {list(full.shape)}, not {list(target.shape)}")
        full.read_into(*own_slice(target.detach()))
        return
    with torch.no_grad():
        target.copy_(full)


BUCKET = 1 << 24  # elements that are summed at once: 64 MiB


class Replicated(Shards):
    """No network is sharded, so ranks run theirs as often as each likes; only gradients are summed over them."""

    def __init__(self, ranks: Ranks, weights: Mapping[str, nn.Parameter]) -> None:
        """Args: ``weights`` are all that may be trained, the same on every rank."""
        super().__init__(ranks)
        self.weights = dict(weights)

    def learned(self) -> dict[str, float]:
        return {name: 1.0 for name, weight in self.weights.items() if weight.grad is not None}

    def settle_gradients(self, learned: Mapping[str, float]) -> None:
        """Sum the gradients over all ranks; a weight that received none on any rank has none."""
        for bucket in _buckets([weight for name, weight in self.weights.items() if name in learned]):
            found = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in bucket]
            flat = torch.cat([gradient.flatten().float() for gradient in found])
            torch.distributed.all_reduce(flat, group=self.ranks.group)
            summed = flat.split([gradient.numel() for gradient in found])
            for weight, gradient, total in zip(bucket, found, summed, strict=True):
                weight.grad = gradient.copy_(total.view_as(gradient))


def _buckets(weights: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """The weights in order, as many at once as fit into a bucket."""
    bucket: list[nn.Parameter] = []
    for weight in weights:
        if bucket and sum(one.numel() for one in bucket) + weight.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(weight)
    if bucket:
        yield bucket
