"""The networks that a rank trains with, by their jobs. With LoRA they are adapters of one network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from burnish.models.adapters import saved_name
from burnish.models.linear import cast_once
from burnish.models.lora import adapter_parameters, add_adapters, carriers, merged, switch_adapter
from burnish.models.placing import place, rest_frozen, twin
from burnish.options.cluster import ShardingOptions
from burnish.options.model import LoraOptions
from burnish.rl.algorithm import Metrics
from burnish.training.exchange import kept_by_owners
from burnish.training.experts import split_mesh
from burnish.training.profiling import Meter
from burnish.training.ranks import SINGLE_RANK, Ranks, distribute
from burnish.training.sharding import Replicated, Shards, copy_full, local_shard, mesh_of, shard
from burnish.training.tensor_parallel import TensorSplit, check_plan
from burnish.utils import random
from burnish.utils.errors import UserError

T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R", bound=Sized)


class Publisher(Protocol):
    """An engine that samples with weights of its own."""

    def sync_weights(self, version: int) -> None:
        """Sample with the policy's present weights from now on."""

    def rest(self) -> None:
        """Nothing is sampled until the next weight sync."""


class TrainedRoles(ABC):
    """What every task's networks have in common; what a role predicts is the task's own."""

    trained: tuple[str, ...] = ("policy",)  # roles that a checkpoint holds, the policy first
    sampled: tuple[str, ...] = (
        "policy",
    )  # roles whose networks run while samples are made, here or in other processes
    counts_tokens = False  # whether batches are of texts, so that what a row costs is its tokens
    never_stepped: tuple[str, ...] = ("reference",)  # roles that all of their weights belong to, as none is learned

    memory: dict[str, Any]  # what the algorithm remembers from update to update: things with a state, by name
    learned: Metrics  # of the update that is done
    balance: Any = None  # of the experts of a mixture, if the network is one
    clock: Callable[[str], AbstractContextManager[None]] = nullcontext  # type: ignore[assignment]  # measures a part of what is going on
    meter: Meter | None = None  # of what the networks compute, where the device's peak is known

    def __init__(self, model: Any, lora: LoraOptions | None, *, micro_batch_size: int, on_policy: bool) -> None:
        """Take over a loaded model, whose network is the policy.

        Args:
            model: whose networks these are.
            lora: how it is adapted; None trains all of its weights.
            micro_batch_size: as the algorithm counts it.
            on_policy: an update is one optimizer step on samples of these very weights.
        """
        self.model, self.lora = model, lora
        self.micro_batch_size, self.on_policy = micro_batch_size, on_policy
        self.moved, self.fresh = False, True
        self.optimizer_steps = 0  # of the run so far
        self.memory, self.learned = {}, {}
        self.device: torch.device = model.device  # where the networks compute
        self.shards = Shards()  # how they lie on the ranks
        self.context: Ranks = SINGLE_RANK  # that run them together, each for a part of every sequence
        self._networks: dict[str, nn.Module] = {"policy": model.network}
        self._adapters: Sequence[str] = ()
        self._carriers: list[Any] = []  # modules with weights of adapters
        self._active = "policy"
        self._folded = False

    def _add(
        self, roles: Sequence[str], learning: Sequence[str], *, reference: bool, targets: Sequence[str], seed: int,
        shared: bool = False,
    ) -> None:  # fmt: skip
        """Give ``roles`` weights of their own, all equal to the policy's, which is trained from here on.

        Those that are ``learning`` are trained too.

        Without adapters, the untrained network is copied too where an algorithm needs the ``reference``. Networks that
        are ``shared`` by ranks are not read before they are sharded, each from the same files.
        """
        network = self.model.network
        if self.lora is not None:
            self._adapters = ("policy", *roles)
            key = random.key(seed, "lora") % 2**32
            add_adapters(network, self.lora, self._adapters, seed=key, default_targets=targets)
            self._carriers = carriers(network)
            for name in learning:
                for weight in adapter_parameters(network, name).values():
                    weight.requires_grad_(True)
            return
        copied = [*(["reference"] if reference else []), *(name for name in roles if name != "reference")]
        for name in copied:  # before anything is marked as trained
            self._networks[name] = other = twin(network)
            if name not in roles:
                rest_frozen(other, self.model.compute)
            if not shared:
                place(other, next(network.parameters()).device, copy=True)
        for name in ("policy", *learning):
            self._networks[name].requires_grad_(True)

    @abstractmethod
    def measure(self, peak: float) -> None:
        """Count what the networks compute from here on, before they are sharded.

        Args:
            peak: of the device, in operations per second.
        """

    def _go_on(self, given: Mapping[str, Tensor], roles: Sequence[str]) -> None:
        """Begin with the weights of an adapter.

        Raises:
            UserError: it is of another shape.
        """
        for role in roles:
            own = {saved_name(key): value for key, value in TrainedRoles.parameters(self, role).items()}
            odd = sorted(given.keys() ^ own.keys()) or [key for key in own if own[key].shape != given[key].shape]
            if odd:
                raise UserError(
                    f"the adapter in model.lora.path and this run's differ in {odd[0]} and {len(odd) - 1} more "
                    "weights: it is of other layers than model.lora.targets and model.lora.exclude say, of another "
                    "rank, or of another model than model.path"
                )
            with torch.no_grad():
                for name, weight in own.items():
                    weight.copy_(given[name])

    @contextmanager
    def active(self, name: str) -> Iterator[nn.Module]:
        """The network that does a job, ready to run."""
        if self.lora is None:
            yield self._networks[name]
            return
        assert name in (*self._adapters, "reference"), f"{name} is not among what the algorithm needs"
        self._switch(name if name in self._adapters else None)
        try:
            yield self._networks["policy"]
        finally:
            self._switch("policy")

    @contextmanager
    def fixed_weights(self) -> Iterator[None]:
        """A context in which no weight is moved: what was gathered stays, where options say so, and what was cast."""
        with self.shards.kept(), cast_once(self._carriers, self._adapters):
            yield

    def _switch(self, adapter: str | None) -> None:
        if not self._folded and adapter != self._active:
            switch_adapter(self._carriers, adapter)
            self._active = adapter or ""

    def active_adapter(self) -> str | None:
        """The adapter that is active; None without one."""
        return (self._active or None) if self.lora is not None else None

    def run(self, name: str, function: Callable[[nn.Module], T]) -> T:
        """What a function makes of the network that does a job: tensors, alone or in tuples."""
        with self.active(name) as network:
            return self.shards.inside(self.network_of(name), lambda: function(network))

    def network_of(self, name: str) -> str:
        """Which of the networks does a job: with adapters it is one for all."""
        return name if self.lora is None else "policy"

    def shard(self, ranks: Ranks, options: ShardingOptions) -> None:
        """Shard all networks over the ranks, before anything is made of their weights."""
        self.shards, self.context = Shards(ranks.rows), ranks.context
        mesh = mesh_of(ranks, options.shard_size, self.device.type)
        experts, tensor = (split_mesh(ranks, options, self.device.type, name) for name in ("experts", "tensor"))
        for name, network in self._networks.items():
            self.shards.networks[name] = shard(
                [network, *self._called_with(name)], self._blocks(network), mesh, options,
                compute=self.model.compute, device=self.device, adapters=self.lora is not None,
                experts=experts, tensor=None if tensor is None else TensorSplit(tensor, self._styles(network)),
            )  # fmt: skip
        self.model.refuse_non_finite(lambda found: sorted({name for some in ranks.gather(found) for name in some}))

    def check_plan(self, size: int) -> None:
        """Refuse networks whose layers ``size`` ranks can't hold together; weights need no values for this."""
        for network in self._networks.values():
            check_plan(self._blocks(network), self._styles(network), size)

    @abstractmethod
    def _styles(self, network: nn.Module) -> dict[nn.Module, Any]:
        """How the modules of a network are split by its library's plan for tensor parallelism."""

    def copied_on(self, ranks: Ranks) -> None:
        """Have every rank hold all networks in full; what is trained stays equal, as its gradients are summed."""
        weights = {f"{role} {name}": value for role in self.trained for name, value in self.parameters(role).items()}
        self.shards = Replicated(ranks, weights)

    @abstractmethod
    def _blocks(self, network: nn.Module) -> list[nn.Module]:
        """Modules of a network that every forward calls one after the other."""

    def _called_with(self, name: str) -> list[nn.Module]:
        """Modules outside of a network that are called together with it."""
        return []

    def gathered(self) -> AbstractContextManager[None]:
        """Full weights of what samples for a while, which each rank may use as it likes. Ranks enter together.

        Nothing else: references, critics and lagged policies are as large as the policy.
        """
        return self.shards.gathered(list(map(self.network_of, self.sampled)))

    def distribute(self, function: Callable[[P], T], parts: Iterable[P]) -> list[T]:
        """What ``function`` makes of every part, in order, shared out among the ranks."""
        return distribute(self.shards.ranks, function, parts)

    def kept(self, function: Callable[[R], Tensor], parts: Sequence[R]) -> Tensor:
        """What ``function`` makes of the rows of all parts; of several ranks each keeps what it made."""
        return kept_by_owners(self.shards.ranks, function, parts)

    @contextmanager
    def _sampling(self, name: str, *, merge: bool) -> Iterator[None]:
        """Full weights of a role, without gradients; ``merge`` folds its adapter into them."""
        folds = merge and name in self._adapters
        adapted = merged(self._networks["policy"], name) if folds else cast_once(self._carriers, [name])
        with torch.no_grad(), self.shards.gathered([self.network_of(name)]), adapted:
            before, self._folded = self._folded, self._folded or folds
            try:
                yield
            finally:
                self._folded = before

    def parameters(self, name: str = "policy") -> dict[str, nn.Parameter]:
        """Parameters of a role by the names that they have in the policy: those that are learned, if it learns."""
        if self.lora is None:
            own = self._networks[name].named_parameters()
            return {key: value for key, value in own if value.requires_grad or name in self.never_stepped}
        return adapter_parameters(self._networks["policy"], name)

    def move(self, name: str, share: float, source: str = "policy") -> None:
        """Move the weights of a role towards another's, by a share of the way."""
        with torch.no_grad():
            target = self.parameters(source)
            both = [(value, target[key]) for key, value in self.parameters(name).items() if key in target]
            old, new = ([local_shard(pair[side]) for pair in both] for side in (0, 1))
            torch._foreach_lerp_(old, new, share)

    def sampler_weights(self, *, full: bool) -> dict[str, Tensor]:
        """Weights for an engine in another process: those that training changes; ``full`` adds the frozen ones."""
        found: dict[str, Tensor] = {f"{n} {key}": v for n in self.sampled for key, v in self.parameters(n).items()}
        if not full:
            return found
        learned = {id(value) for name in self._adapters for value in self.parameters(name).values()}
        every = self._networks["policy"].named_parameters()
        rest = {key: value for key, value in every if id(value) not in learned and f"policy {key}" not in found}
        return found | {f"base {key}": value for key, value in rest.items()}

    def begin(self, collected: Any, *, moved: bool) -> None:
        """Samples have come to learn from; ``moved`` says that the policy is no longer the one that made them."""
        self.moved, self.fresh = moved, True

    def stepped(self) -> None:
        """The optimizer has moved the policy away from what sampled and from what annotated."""
        self.moved, self.fresh = True, False

    def state_dict(self) -> dict[str, Any]:
        """Trained weights of every role, and what the algorithm remembers."""
        roles = {role: self.parameters(role).items() for role in self.trained}
        weights = {role: {name: value.detach() for name, value in own} for role, own in roles.items()}
        return weights | {"memory": {name: part.state_dict() for name, part in self.memory.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for role in self.trained:
            target = self.parameters(role)
            assert target.keys() == state[role].keys(), "the checkpoint's identity was not checked"
            for name, value in target.items():
                copy_full(value, state[role][name])
        for name, part in self.memory.items():
            part.load_state_dict(state["memory"][name])
