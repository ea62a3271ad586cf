"""The networks of a worker by their jobs: policy, reference, old policy. With LoRA they are adapters of one network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from burnish.algorithms.base import Name, Needs, Role
from burnish.algorithms.flow.teaching import Teacher
from burnish.flow.sampling import guide
from burnish.models.flow.base import FlowModel
from burnish.models.lora import add_adapters, lora_layers, merged, switch_adapter
from burnish.options import LoraOptions, ShardingOptions
from burnish.rewards.base import Reward
from burnish.training.ranks import Ranks
from burnish.training.sharding import Shards, fill, held, mesh_of, shard
from burnish.types.batch import Gathered
from burnish.types.rollout import Collected, Conditioning, Prompt
from burnish.utils import random

T = TypeVar("T")
P = TypeVar("P")


class NetworkRole:
    """Predicts velocities as one of the networks, with the guidance of the run."""

    def __init__(self, roles: NetworkRoles, name: Name) -> None:
        self.roles, self.name = roles, name

    def __call__(
        self,
        x: Tensor,
        time: Tensor,
        conditioning: Gathered[Conditioning],
        unconditional: Gathered[Conditioning],
        *,
        guidance: float | None = None,
    ) -> Tensor:
        """The velocity at latents [M, ...] and times [M]: [M, ...] float32."""
        roles = self.roles
        network = roles.activate(self.name)
        scale = roles.guidance if guidance is None else guidance

        def run() -> Tensor:
            return guided(roles.model, network, x, time, conditioning, unconditional, scale, roles.rescale)

        velocity = roles.shards.inside(roles.network_of(self.name), run)
        if self.name != "policy":
            roles.activate("policy")
        return velocity


class TeacherRole:
    """Predicts velocities as a frozen network of its own, with its own guidance."""

    def __init__(self, model: FlowModel, *, guidance: float, rescale: bool) -> None:
        self.model, self.guidance, self.rescale = model, guidance, rescale

    def __call__(
        self,
        x: Tensor,
        time: Tensor,
        conditioning: Gathered[Conditioning],
        unconditional: Gathered[Conditioning],
        *,
        guidance: float | None = None,
    ) -> Tensor:
        """The velocity at latents [M, ...] and times [M]: [M, ...] float32."""
        scale = self.guidance if guidance is None else guidance
        return guided(self.model, self.model.network, x, time, conditioning, unconditional, scale, self.rescale)


def guided(
    model: FlowModel,
    network: nn.Module,
    x: Tensor,
    time: Tensor,
    conditioning: Gathered[Conditioning],
    unconditional: Gathered[Conditioning],
    scale: float,
    rescale: bool,
) -> Tensor:
    """What ``network`` predicts under classifier-free guidance; at scale 1 the unconditional half is not asked."""
    asked = conditioning.rows()
    if scale == 1:
        return model.velocity(network, x, time, asked)
    both = Conditioning.cat([asked, unconditional.rows()])
    velocity = model.velocity(network, torch.cat([x, x]), torch.cat([time, time]), both)
    towards, away = velocity.chunk(2)
    return guide(towards, away, scale, rescale=rescale)


class NetworkRoles:
    """Builds the roles that an algorithm needs and keeps them in step."""

    def __init__(
        self,
        model: FlowModel,
        needs: Needs,
        lora: LoraOptions | None,
        *,
        guidance: float,
        rescale: bool,
        micro_batch_size: int,
        on_policy: bool,
        seed: int,
        load_teacher: Callable[[Teacher], FlowModel] | None = None,
        rewards: Mapping[str, Reward] | None = None,
    ) -> None:
        """``load_teacher`` is asked for teachers that are not the untrained policy, when they are first needed."""
        self.model, self.needs, self.lora = model, needs, lora
        self.guidance, self.rescale = guidance, rescale
        self.micro_batch_size, self.on_policy = micro_batch_size, on_policy
        self.moved, self.fresh, self.old_is_policy = False, True, True
        self.optimizer_steps = 0
        self._merged = False
        self.shards = Shards()
        network = model.network
        self.device = next(network.parameters()).device
        self._networks: dict[str, nn.Module] = {"policy": network}
        if lora is not None:
            names = ["policy", "old"] if needs.old else ["policy"]
            add_adapters(
                network, lora, names, seed=random.key(seed, "lora") % 2**32, default_targets=model.lora_targets
            )
            self._carriers, self._active = lora_layers(network), "policy"
        else:
            # frozen copies are made before anything is marked as trained
            if needs.reference:
                self._networks["reference"] = copy.deepcopy(network)
            if needs.old:
                self._networks["old"] = copy.deepcopy(network)
            network.requires_grad_(True)
        self.policy, self.reference, self.old = (NetworkRole(self, n) for n in ("policy", "reference", "old"))
        self._load_teacher = load_teacher
        self.rewards = {label: reward for label, reward in (rewards or {}).items() if reward.weight}

    @cached_property
    def teachers(self) -> list[Role]:
        """The frozen networks to learn from; whoever only draws with a trained policy never loads them."""
        return [self._teacher(teacher) for teacher in self.needs.teachers]

    def _teacher(self, teacher: Teacher) -> Role:
        scale = self.guidance if teacher.guidance_scale is None else teacher.guidance_scale
        if teacher.is_start:
            return partial(self.reference, guidance=scale)
        assert self._load_teacher is not None, "nobody can load a teacher here"
        return TeacherRole(self._load_teacher(teacher), guidance=scale, rescale=self.rescale)

    def reward(self, latents: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """The weighted sum of the run's rewards for finished latents [B, ...], with gradients to them: [B]."""
        pictures = self.model.decode_tensor(latents)
        each = [reward.weight * reward.differentiable(pictures, prompts) for reward in self.rewards.values()]
        return torch.stack(each).sum(0)

    @property
    def has_reference(self) -> bool:
        """Whether the network before training is at hand; with adapters it always is."""
        return self.lora is not None or self.needs.reference

    def activate(self, name: Name) -> nn.Module:
        """The network that does a job, ready to run."""
        provided = {"policy": True, "reference": self.has_reference, "old": self.needs.old}
        assert provided[name], f"{name} is not among what the algorithm needs"
        if self.lora is None:
            return self._networks[name]
        if not self._merged and name != self._active:
            switch_adapter(self._carriers, None if name == "reference" else name)
            self._active = name
        return self._networks["policy"]

    def network_of(self, name: Name) -> str:
        """Which of the networks does a job: with adapters it is one for all."""
        return name if self.lora is None else "policy"

    def shard(self, ranks: Ranks, options: ShardingOptions) -> None:
        """Share all networks out among ranks, before anything is made of their weights."""
        self.shards = Shards(ranks)
        mesh = mesh_of(ranks, options.shard_size, self.device.type)
        for name, network in self._networks.items():
            children = [child for child in network.children() if isinstance(child, nn.ModuleList)]
            blocks = [block for child in children for block in child]
            self.shards.networks[name] = shard(
                [network], blocks, mesh, options, compute=self.model.compute, device=self.device
            )

    def gathered(self) -> AbstractContextManager[None]:
        """Whole weights of every network for a while, which each rank may use as it likes. Ranks enter together."""
        return self.shards.gathered()

    def spread(self, function: Callable[[P], T], parts: Iterable[P]) -> list[T]:
        """What ``function`` makes of every part, in order, shared out among the ranks."""
        return self.shards.spread(function, parts)

    @contextmanager
    def sampling(self, name: Name, *, merge: bool) -> Iterator[NetworkRole]:
        """The role that samples, its adapter folded into the weights if asked, without gradients."""
        role = {"policy": self.policy, "old": self.old, "reference": self.reference}[name]
        with torch.no_grad(), self.shards.gathered([self.network_of(name)]):
            if not merge or self.lora is None or name == "reference":
                yield role
                return
            with merged(self._networks["policy"], name):
                self._merged = True
                try:
                    yield role
                finally:
                    self._merged = False

    def parameters(self, name: Literal["policy", "old"] = "policy") -> dict[str, nn.Parameter]:
        """Parameters of a role by the name that they have in the policy."""
        if self.lora is None:
            return dict(self._networks[name].named_parameters())
        mark = f".{name}.weight"
        found = dict(self._networks["policy"].named_parameters())
        return {key.replace(mark, ".weight"): value for key, value in found.items() if key.endswith(mark)}

    def sampler_weights(self, *, whole: bool) -> dict[str, Tensor]:
        """What samples elsewhere is made of: the trained weights of the policy, and of the old one where that samples.

        ``whole`` adds what is never trained.
        """
        names: list[Literal["policy", "old"]] = ["policy", "old"] if self.needs.sampler == "old" else ["policy"]
        found: dict[str, Tensor] = {f"{n} {key}": value for n in names for key, value in self.parameters(n).items()}
        if not whole or self.lora is None:
            return found
        every = self._networks["policy"].named_parameters()
        return found | {f"base {key}": v for key, v in every if not key.endswith((".policy.weight", ".old.weight"))}

    def blend_old(self, decay: float) -> None:
        """old = decay * old + (1 - decay) * policy."""
        with torch.no_grad():
            old: list[Tensor] = [held(value) for value in self.parameters("old").values()]
            policy: list[Tensor] = [held(value) for value in self.parameters().values()]
            if decay == 0:
                torch._foreach_copy_(old, policy)
            else:
                torch._foreach_lerp_(old, policy, 1 - decay)
        self.old_is_policy = decay == 0

    def begin(self, collected: Collected, *, moved: bool) -> None:
        """Samples have come to learn from; ``moved`` says that the policy is no longer the one that made them."""
        self.moved, self.fresh = moved, True

    def stepped(self) -> None:
        """The optimizer has moved the policy away from what sampled."""
        self.moved, self.fresh, self.old_is_policy = True, False, False

    def state_dict(self) -> dict[str, object]:
        """Trained weights of every role, and how they relate."""
        state: dict[str, object] = {"policy": _tensors(self.parameters()), "old_is_policy": self.old_is_policy}
        if self.needs.old:
            state["old"] = _tensors(self.parameters("old"))
        return state

    def load_state_dict(self, state: dict) -> None:
        names: list[Literal["policy", "old"]] = ["policy", "old"] if self.needs.old else ["policy"]
        for name in names:
            target = self.parameters(name)
            assert target.keys() == state[name].keys(), "the checkpoint's identity was not checked"
            for key, value in target.items():
                fill(value, state[name][key])
        self.old_is_policy = state["old_is_policy"]


def _tensors(parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in parameters.items()}
