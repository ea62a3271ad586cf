"""The networks of a worker that trains a generator: policy, reference, old policy and teachers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from burnish.diffusion.algorithms.base import Needs, Role, Teacher
from burnish.diffusion.pipeline.base import Agree, FlowModel
from burnish.diffusion.pipeline.contexts import split_sequences
from burnish.diffusion.pipeline.networks import Networks, blocks_of
from burnish.models.linear import in_fp8, joined
from burnish.models.quantization import layers_for_fp8
from burnish.options.cluster import ShardingOptions
from burnish.options.model import LoraOptions
from burnish.rewards.base import Reward
from burnish.training.profiling import Meter
from burnish.training.ranks import Ranks
from burnish.training.roles import TrainedRoles
from burnish.training.sharding import Sharded
from burnish.training.tensor_parallel import COLUMNS, ROWS, Fused, styles_of
from burnish.types.rollout import Prompt, Requests
from burnish.utils import random
from burnish.utils.errors import UserError

SAME = "is_policy"  # in checkpoints: which lagged policies have the policy's own weights


@dataclass(frozen=True)
class NetworkRole:
    """Predicts velocities as one of the networks, with guidance of its own."""

    model: FlowModel
    guidance: float
    active: Callable[[], AbstractContextManager[nn.Module]]  # the network, ready to run
    sharded: Sharded | None = None  # as several ranks hold it together
    agree: Agree | None = None  # how many forwards these ranks make
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # entered for every forward
    products: Callable[[], AbstractContextManager[None]] = nullcontext  # entered too: those of its layers are in fp8

    def __call__(
        self,
        x: Tensor,
        time: Tensor,
        conditioning: Requests,
        *,
        guidance: float | None = None,
    ) -> Tensor:
        """The velocity at latents [M, ...] and times [M]: [M, ...] float32."""
        scale = self.guidance if guidance is None else guidance
        with self.around(), self.products(), self.active() as network:
            predict = partial(self.model.predict, network, x, time, conditioning, guidance=scale, agree=self.agree)
            return predict() if self.sharded is None else self.sharded(predict)

    def write(
        self, conditioning: Requests, keys: Sequence[tuple[random.Part, ...]], size: int
    ) -> tuple[Requests, list[Tensor]]:
        """Tokens of samples, in their conditioning, and their log-probs; see ``FlowModel.write``."""
        with self.around(), self.active() as network:
            return self.model.write(network, conditioning, keys, size)

    def token_logprobs(self, conditioning: Requests) -> Tensor:
        """Log-probs [M, T] of the tokens of samples, with gradients; 0 beyond their ends."""
        with self.around(), self.active() as network:
            score = partial(self.model.token_logprobs, network, conditioning, agree=self.agree)
            return score() if self.sharded is None else self.sharded(score)


@dataclass(frozen=True)
class StreamOf:
    """One stream of the states of a micro-batch, of which a network only ever sees all: it runs once for them."""

    states: Tensor  # [M, N] all streams
    columns: slice
    found: dict[tuple[str, float | None], Tensor]  # what networks gave, by role and guidance

    def velocity(
        self, name: str, role: NetworkRole, x: Tensor, time: Tensor, conditioning: Requests,
        *, guidance: float | None = None,
    ) -> Tensor:  # fmt: skip
        """The velocity of a role at the stream ``x`` of the states."""
        if (name, guidance) not in self.found:
            self.found[name, guidance] = role(self.states, time, conditioning, guidance=guidance)
        return self.found[name, guidance][:, self.columns]


def _parts(network: nn.Module) -> Iterable[nn.Module]:
    """The networks that one module holds."""
    return network.children() if isinstance(network, Networks) else [network]


PACKED = {  # styles of diffusers, and where a layer has the ratio of the sizes of its parts, and their sum
    "PackedColwiseParallel": (COLUMNS, "_tp_packed_col_blocks", "out_features"),
    "PackedRowwiseParallel": (ROWS, "_tp_packed_row_blocks", "in_features"),
}


def _style(style: Any, layer: nn.Module) -> Any:
    """How a layer is split, from diffusers' plan."""
    if type(style).__name__ not in PACKED:
        return style
    kind, ratio, count = PACKED[type(style).__name__]
    base: Any = getattr(layer, "base_layer", layer)
    parts = style.blocks or getattr(base, ratio)
    return Fused(kind, tuple(getattr(base, count) * part // sum(parts) for part in parts))


class FlowRoles(TrainedRoles):
    """Builds the roles that an algorithm needs and keeps them in step."""

    model: FlowModel
    _stream: StreamOf | None = None

    def __init__(
        self,
        model: FlowModel,
        needs: Needs,
        lora: LoraOptions | None,
        *,
        guidance: float,
        micro_batch_size: int,
        on_policy: bool,
        seed: int,
        load_teacher: Callable[[Teacher, FlowModel], FlowModel] | None = None,
        rewards: Mapping[str, Reward] | None = None,
        shared: bool = False,
    ) -> None:
        """Build them.

        ``load_teacher`` loads teachers other than the untrained policy, when they are first needed; ``shared`` says
        that the model is not read until it is sharded.
        """
        super().__init__(model, lora, micro_batch_size=micro_batch_size, on_policy=on_policy)
        self.needs, self.guidance = needs, guidance
        learning = [name for name, optimizer in needs.networks.items() if optimizer is not None]
        self.trained = ("policy", *needs.lagged, *needs.networks)
        self.never_stepped = ("reference", *(name for name in self.trained[1:] if name not in learning))
        self._as_policy = set(needs.lagged)  # those that have the policy's own weights
        self.sampled = ("policy",) if needs.sampler == "policy" else ("policy", needs.sampler)
        self._add(
            self.trained[1:],
            learning,
            reference=needs.reference,
            targets=() if lora is None else model.lora_targets,
            seed=seed,
            shared=shared,
        )
        if lora is not None:
            joined(self._carriers)
        if lora is not None and lora.path is not None:
            # networks of an algorithm's own begin as the untrained model
            self._go_on(model.adapter_weights(lora), ("policy", *needs.lagged))
        self._load_teacher = load_teacher
        self.rewards = {label: reward for label, reward in (rewards or {}).items() if reward.counts}

    @property
    def policy(self) -> Role:
        """The network that learns."""
        return self.lagged("policy")

    @property
    def reference(self) -> Role:
        """The network before training."""
        return self.lagged("reference")

    def lagged(self, name: str) -> Role:
        """A role by its name."""
        role = self._role(name)
        return role if self._stream is None else partial(self._stream.velocity, name, role)

    def _role(self, name: str) -> NetworkRole:
        network = self.network_of(name)
        sharded, agree = self.shards.networks.get(network), partial(self.shards.agree, network)
        return NetworkRole(self.model, self.guidance, partial(self.active, name), sharded, agree)

    def of_stream(self, stream: StreamOf) -> FlowRoles:
        """The same networks, asked for a stream."""
        other = copy(self)
        other._stream = stream
        return other

    @cached_property
    def teachers(self) -> list[NetworkRole]:
        """The frozen networks to learn from, loaded when first needed; sampling alone never needs them."""
        return [self._teacher(teacher) for teacher in self.needs.teachers]

    def measure(self, peak: float) -> None:
        self.meter = meter = Meter(peak)
        for network in self._networks.values():
            meter.watch(network, self.active_adapter)

    def shard(self, ranks: Ranks, options: ShardingOptions) -> None:
        super().shard(ranks, options)
        if ranks.context.size > 1:
            for network in self._networks.values():
                split_sequences(network, ranks.context)

    def _teacher(self, teacher: Teacher) -> NetworkRole:
        scale = self.guidance if teacher.guidance_scale is None else teacher.guidance_scale
        if teacher.is_start:
            return replace(self._role("reference"), guidance=scale)
        assert self._load_teacher is not None, "no teachers can be loaded here"
        model = self._load_teacher(teacher, self.model)
        if self.meter is not None:
            self.meter.watch(model.network)
        return NetworkRole(model, scale, lambda: nullcontext(model.network))

    def images(self, latents: Tensor, conditioning: Requests) -> Tensor:
        """What finished latents [B, ...] show, with gradients to them."""
        return self.model.decode_tensor(latents, conditioning)

    def reward(self, images: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """The weighted sum of the run's rewards for images, with gradients to them: [B]."""
        each = [reward.weight * reward.with_gradients(images, prompts) for reward in self.rewards.values()]
        return torch.stack(each).sum(0)

    def _blocks(self, network: nn.Module) -> list[nn.Module]:
        return [block for one in _parts(network) for block in blocks_of(one)]

    def _styles(self, network: nn.Module) -> dict[nn.Module, Any]:
        parts = [styles_of(one, getattr(one, "_tp_plan", None)) for one in _parts(network)]
        return {module: _style(style, module) for styles in parts for module, style in styles.items()}

    @contextmanager
    def sampling(self, name: str, *, merge: bool) -> Iterator[NetworkRole]:
        """A role to sample with, without gradients; ``merge`` folds its adapter into the weights."""
        with self._sampling(name, merge=merge):
            yield self._role(name)

    @contextmanager
    def fp8(self, name: str, role: NetworkRole) -> Iterator[NetworkRole]:
        """A role that samples now, with products in fp8."""
        with in_fp8(layers_for_fp8(self._networks[self.network_of(name)]).values()) as switch:
            yield replace(role, products=switch)

    def is_policy(self, name: str) -> bool:
        """Whether a lagged policy has the policy's own weights."""
        return name in self._as_policy

    def blend(self, name: str, decay: float, source: str = "policy") -> None:
        """lagged = decay * lagged + (1 - decay) * source."""
        self.move(name, 1 - decay, source)
        same = decay == 0 and source == "policy"
        self._as_policy = self._as_policy | {name} if same else self._as_policy - {name}

    def stepped(self) -> None:
        super().stepped()
        self._as_policy = set()

    def state_dict(self) -> dict[str, Any]:
        """Trained weights of every role, and how they relate."""
        return super().state_dict() | {SAME: {name: self.is_policy(name) for name in self.needs.lagged}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if absent := [name for name in self.trained if name not in state]:
            raise UserError(
                f"the checkpoint has no weights of {absent[0]}, which algorithm keeps beside the policy that learns; "
                "remove it, or begin a new run from exported weights"
            )
        super().load_state_dict(state)
        self._as_policy = {name for name in self.needs.lagged if state[SAME][name]}
