"""The networks of a worker that trains a language model: policy, reference and critic."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from burnish.algorithms.language.base import LanguageNeeds
from burnish.batches.responses import trace_of
from burnish.language.cost import cheapest_for_all
from burnish.language.logprobs import ResponseStates, TokenScores, response_states, score
from burnish.language.model import LanguageModel
from burnish.models.lora import add_adapters, language_targets, lora_layers, merged, merging_rounds, switch_adapter
from burnish.options import CriticOptions, LanguageLoraOptions, ShardingOptions
from burnish.training.balance import Balance
from burnish.training.ranks import Ranks
from burnish.training.sharding import Shards, fill, held, mesh_of, shard
from burnish.types.completion import Completion
from burnish.types.rollout import OfflineResponses, ScoredResponses
from burnish.utils import random
from burnish.utils.errors import UserError

Layout = Literal["auto", "padded", "packed", "shared"]
T = TypeVar("T")
P = TypeVar("P")


class TokenRole:
    """Scores responses as one of the networks."""

    def __init__(self, roles: LanguageRoles, name: str) -> None:
        self.roles, self.name = roles, name

    def __call__(self, completion: Completion) -> TokenScores:
        """Log-prob and entropy [B, T] of every token that the policy chose."""
        with self.roles.active(self.name) as network:

            def run() -> tuple[Tensor, Tensor]:
                scores = self.roles.score(network, self.roles.states(network, completion), completion)
                return scores.logprob, scores.entropy

            return TokenScores(*self.roles.shards.inside(self.roles.network_of(self.name), run))


class LanguageRoles:
    """Builds the networks that an algorithm needs. With LoRA they are adapters of one network."""

    def __init__(
        self,
        model: LanguageModel,
        needs: LanguageNeeds,
        lora: LanguageLoraOptions | None,
        *,
        critic: CriticOptions,
        freeze: Sequence[str],
        temperature: float,
        layout: Layout,
        micro_batch_size: int,
        on_policy: bool,
        memory: Any,
        seed: int,
        router_aux_loss_coef: float = 0.0,
        sampled_elsewhere: bool = False,
        mini_batch_size: int | None = None,
    ) -> None:
        """``sampled_elsewhere`` says that another engine's kernels sample than this project's."""
        self.model, self.needs, self.lora, self.critic = model, needs, lora, critic
        self.temperature, self.layout, self.mini_batch_size = temperature, layout, mini_batch_size
        self.micro_batch_size, self.on_policy, self.memory = micro_batch_size, on_policy, memory
        self.moved, self.fresh = False, True
        self.optimizer_steps = 0
        self._settled: Literal["padded", "packed", "shared"] | None = None
        self.sampler_rounds = sampled_elsewhere or model.compute != torch.float32
        self.shards = Shards()
        self.device = next(model.network.parameters()).device
        own_trunk = needs.critic and critic.trunk == "own"
        self._networks: dict[str, nn.Module] = {"policy": model.network}
        self._active = "policy"
        if lora is not None:
            names = ["policy", *(["critic"] if own_trunk else []), *(["reference"] if needs.refreshed else [])]
            targets = language_targets(model.network, model.text(model.network), lora)
            add_adapters(model.network, lora, names, seed=random.key(seed, "lora") % 2**32, default_targets=targets)
            self._carriers: list[Any] = lora_layers(model.network)
            for name, parameter in model.network.named_parameters():
                parameter.requires_grad_(name.endswith((".policy.weight", ".critic.weight")))
        else:
            if needs.reference:
                self._networks["reference"] = copy.deepcopy(model.network)
            if own_trunk:
                self._networks["critic"] = copy.deepcopy(model.network).requires_grad_(True)
            model.network.requires_grad_(True)
        self._freeze(freeze)
        self.value_head = self._make_value_head(seed) if needs.critic else None
        self.policy, self.reference = TokenRole(self, "policy"), TokenRole(self, "reference")
        self.balance = Balance(model.network, router_aux_loss_coef) if router_aux_loss_coef else None

    def _freeze(self, patterns: Sequence[str]) -> None:
        """Take parts out of training, in the policy and in the critic's trunk.

        Raises:
            UserError: a pattern matches nothing, or nothing is left to train.
        """
        for network in (network for name, network in self._networks.items() if name != "reference"):
            parameters = dict(network.named_parameters())
            for pattern in patterns:
                found = [name for name in parameters if name.startswith(pattern) or fnmatch.fnmatch(name, pattern)]
                if not found:
                    shown = ", ".join(list(parameters)[:3])
                    raise UserError(
                        f"model.freeze has {pattern!r}, which matches no parameter; they are called like {shown}"
                    )
                for name in found:
                    parameters[name].requires_grad_(False)
            if not any(parameter.requires_grad for parameter in parameters.values()):
                raise UserError(
                    f"model.freeze is {list(patterns)}, which leaves nothing to train; leave some parts out of it"
                )

    def _make_value_head(self, seed: int) -> nn.Linear:
        weight = self.model.head(self.model.network)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(random.key(seed, "value head") % 2**32)
            # drawn on the CPU: a GPU has a generator of its own, with other numbers
            head = nn.Linear(weight.shape[1], 1, dtype=torch.float32)
            # small, so that the first values are near 0, as the rewards to come of an unknown policy
            nn.init.normal_(head.weight, std=1e-2)
            nn.init.zeros_(head.bias)
        return head.to(weight.device)

    @contextmanager
    def active(self, name: str) -> Iterator[nn.Module]:
        """The network that does a job, ready to run."""
        if self.lora is None:
            yield self._networks[name]
            return
        adapter = None if name == "reference" and not self.needs.refreshed else name
        self._switch(adapter)
        try:
            yield self._networks["policy"]
        finally:
            self._switch("policy")

    def _switch(self, adapter: str | None) -> None:
        if adapter != self._active:
            switch_adapter(self._carriers, adapter)
            self._active = adapter or ""

    def states(self, network: nn.Module, completion: Completion) -> ResponseStates:
        """States that the tokens of the policy were chosen from."""

        def run() -> ResponseStates:
            return response_states(self.model, network, completion, layout=self._settled or self.layout)

        learns = self._active == "policy" and network is self._networks["policy"]
        return self.balance.through(run) if self.balance is not None and learns else run()

    def score(self, network: nn.Module, states: ResponseStates, completion: Completion) -> TokenScores:
        """Log-probs and entropies from states."""
        return score(self.model, network, states, completion, temperature=self.temperature)

    def values(self, completion: Completion) -> Tensor:
        """The critic's prediction before every token that the policy chose: [B, T] float32, 0 elsewhere."""
        name = "critic" if self.critic.trunk == "own" else "policy"
        with self.active(name) as network:
            return self.shards.inside(self.network_of(name), lambda: self._values(self.states(network, completion)))

    def scores_and_values(self, completion: Completion) -> tuple[TokenScores, Tensor]:
        """Both with gradients, from one forward where policy and critic share a trunk."""
        if self.critic.trunk == "own":
            return self.policy(completion), self.values(completion)
        with self.active("policy") as network:

            def run() -> tuple[Tensor, Tensor, Tensor]:
                states = self.states(network, completion)
                scores = self.score(network, states, completion)
                return scores.logprob, scores.entropy, self._values(states)

            logprob, entropy, value = self.shards.inside("policy", run)
            return TokenScores(logprob, entropy), value

    def network_of(self, name: str) -> str:
        """Which of the networks does a job: with adapters it is one for all."""
        return name if self.lora is None else "policy"

    def shard(self, ranks: Ranks, options: ShardingOptions) -> None:
        """Share all networks out among ranks, before anything is made of their weights."""
        self.shards = Shards(ranks)
        mesh = mesh_of(ranks, options.shard_size, self.device.type)
        judge = self.network_of("critic" if self.critic.trunk == "own" else "policy")
        for name, network in self._networks.items():
            together = [network]
            if self.value_head is not None and name == judge:
                together.append(self.value_head)
            # layers of a vision tower are no blocks: a rank without pictures does not run them
            self.shards.networks[name] = shard(
                together, self.model.text(network).layers, mesh, options,
                compute=self.model.compute, device=self.device,
            )  # fmt: skip

    def gathered(self) -> AbstractContextManager[None]:
        """Whole weights of every network for a while, which each rank may use as it likes. Ranks enter together."""
        return self.shards.gathered()

    def spread(self, function: Callable[[P], T], parts: Iterable[P]) -> list[T]:
        """What ``function`` makes of every part, in order, shared out among the ranks."""
        return self.shards.spread(function, parts)

    def _values(self, states: ResponseStates) -> Tensor:
        assert self.value_head is not None, "the algorithm did not say that it needs a critic"
        hidden = states.hidden.float()
        if self.critic.trunk == "shared" and self.critic.detach:
            hidden = hidden.detach()
        return states.scatter(self.value_head(hidden)[:, 0])

    @contextmanager
    def sampling(self, *, merge: bool | None = None) -> Iterator[nn.Module]:
        """The policy's network for a while, without gradients.

        ``merge`` folds its adapter into the weights; None does where that does not round it.
        """
        network = self._networks["policy"]
        with torch.no_grad(), self.shards.gathered(["policy"]):
            if merge is None:
                merge = not merging_rounds(network)
            if self.lora is None or not merge:
                yield network
            else:
                with merged(network, "policy"):
                    yield network

    def parameters(self, name: str = "policy") -> dict[str, nn.Parameter]:
        """Trained parameters of a role by their names in its network; those of the critic with its head."""
        found: dict[str, nn.Parameter] = {}
        if name == "critic":
            assert self.value_head is not None, "there is no critic"
            found = {f"value_head.{key}": value for key, value in self.value_head.named_parameters()}
            if self.critic.trunk == "shared":
                return found
        if self.lora is None:
            own = self._networks[name].named_parameters()
            return {key: value for key, value in own if value.requires_grad or name == "reference"} | found
        mark = f".{name}.weight"
        own = self._networks["policy"].named_parameters()
        return {key.replace(mark, ".weight"): value for key, value in own if key.endswith(mark)} | found

    def sampler_weights(self, *, whole: bool) -> dict[str, Tensor]:
        """What samples elsewhere is made of: the policy's trained weights; ``whole`` adds what is never trained."""
        found: dict[str, Tensor] = {f"policy {key}": value for key, value in self.parameters("policy").items()}
        if not whole:
            return found
        adapters = (".policy.weight", ".critic.weight", ".reference.weight") if self.lora is not None else ()
        every = self._networks["policy"].named_parameters()
        rest = {key: value for key, value in every if not key.endswith(adapters) and f"policy {key}" not in found}
        return found | {f"base {key}": value for key, value in rest.items()}

    def refresh_reference(self) -> None:
        """reference = policy."""
        with torch.no_grad():
            source = self.parameters("policy")
            for name, value in self.parameters("reference").items():
                if name in source:
                    held(value).copy_(held(source[name]))

    def frozen(self, update: int) -> bool:
        """Whether the policy stays as it is in an update, while the critic warms up."""
        return self.needs.critic and update <= self.critic.warmup_updates

    def begin(self, collected: ScoredResponses | OfflineResponses, *, moved: bool) -> None:
        """Samples have come to learn from; ``moved`` says that the policy is no longer the one that made them.

        Layouts round otherwise in half precision: what is compared over an update is computed in one of them, or
        ratios and KLs would hold that difference.
        """
        self.moved, self.fresh = moved, True
        trace = trace_of(collected)
        if self.layout == "auto" and self.model.compute != torch.float32 and len(trace):
            self._settled = cheapest_for_all(
                trace, self.model, budget=self.micro_batch_size, mini_batch=self.mini_batch_size
            )

    def stepped(self) -> None:
        """The optimizer has moved the policy away from what sampled."""
        self.moved, self.fresh = True, False

    def _parts(self) -> list[str]:
        return [
            "policy",
            *(["critic"] if self.needs.critic else []),
            *(["reference"] if self.needs.refreshed else []),
        ]

    def state_dict(self) -> dict[str, Any]:
        """Trained weights of every role, and what the algorithm remembers."""
        weights = {
            part: {name: value.detach() for name, value in self.parameters(part).items()} for part in self._parts()
        }
        return weights | {"memory": self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part in self._parts():
            target = self.parameters(part)
            assert target.keys() == state[part].keys(), "the checkpoint's identity was not checked"
            for name, value in target.items():
                fill(value, state[part][name])
        self.memory.load_state_dict(state["memory"])
