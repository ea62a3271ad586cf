"""The networks of a worker that trains a generator: policy, reference, old policy and teachers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from burnish.diffusion.algorithms.base import Needs, Role, Teacher
from burnish.diffusion.pipeline.base import Agree, FlowModel
from burnish.diffusion.pipeline.contexts import split_sequences
from burnish.diffusion.pipeline.networks import Networks, blocks_of
from burnish.models.linear import joined
from burnish.options.cluster import ShardingOptions
from burnish.options.model import LoraOptions
from burnish.rewards.base import Reward
from burnish.training.profiling import Meter
from burnish.training.ranks import Ranks
from burnish.training.roles import TrainedRoles
from burnish.training.sharding import Sharded
from burnish.types.batch import Gathered
from burnish.types.rollout import Conditioning, Prompt
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

    def __call__(
        self,
        x: Tensor,
        time: Tensor,
        conditioning: Gathered[Conditioning],
        *,
        guidance: float | None = None,
    ) -> Tensor:
        """The velocity at latents [M, ...] and times [M]: [M, ...] float32."""
        scale = self.guidance if guidance is None else guidance
        given = conditioning.to(x.device).rows()
        with self.around(), self.active() as network:
            predict = partial(self.model.predict, network, x, time, given, guidance=scale, agree=self.agree)
            return predict() if self.sharded is None else self.sharded(predict)


class FlowRoles(TrainedRoles):
    """Builds the roles that an algorithm needs and keeps them in step."""

    model: FlowModel

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
    def policy(self) -> NetworkRole:
        """The network that learns."""
        return self.lagged("policy")

    @property
    def reference(self) -> NetworkRole:
        """The network before training."""
        return self.lagged("reference")

    def lagged(self, name: str) -> NetworkRole:
        """A role by its name."""
        network = self.network_of(name)
        sharded, agree = self.shards.networks.get(network), partial(self.shards.agree, network)
        return NetworkRole(self.model, self.guidance, partial(self.active, name), sharded, agree)

    @cached_property
    def teachers(self) -> list[Role]:
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

    def _teacher(self, teacher: Teacher) -> Role:
        scale = self.guidance if teacher.guidance_scale is None else teacher.guidance_scale
        if teacher.is_start:
            return partial(self.reference, guidance=scale)
        assert self._load_teacher is not None, "no teachers can be loaded here"
        model = self._load_teacher(teacher, self.model)
        if self.meter is not None:
            self.meter.watch(model.network)
        return NetworkRole(model, scale, lambda: nullcontext(model.network))

    def images(self, latents: Tensor, conditioning: Gathered[Conditioning]) -> Tensor:
        """What finished latents [B, ...] show, with gradients to them."""
        return self.model.decode_tensor(latents, conditioning.rows())

    def reward(self, images: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """The weighted sum of the run's rewards for images, with gradients to them: [B]."""
        each = [reward.weight * reward.with_gradients(images, prompts) for reward in self.rewards.values()]
        return torch.stack(each).sum(0)

    @property
    def has_reference(self) -> bool:
        """Whether the network before training is at hand; with adapters it always is."""
        return self.lora is not None or self.needs.reference

    def _blocks(self, network: nn.Module) -> list[nn.Module]:
        return [
            block
            for one in (network.children() if isinstance(network, Networks) else [network])
            for block in blocks_of(one)
        ]

    @contextmanager
    def sampling(self, name: str, *, merge: bool) -> Iterator[NetworkRole]:
        """A role to sample with, without gradients; ``merge`` folds its adapter into the weights."""
        with self._sampling(name, merge=merge):
            yield self.lagged(name)

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
