"""The networks of a worker that trains a language model: policy, reference and critic."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from burnish.language.algorithms.base import LanguageNeeds
from burnish.language.config import LanguageConfig
from burnish.language.logprobs import (
    Layout,
    ResponseStates,
    TokenScores,
    cheapest_for_all,
    multiplications,
    response_states,
    score,
)
from burnish.language.losses import load_balancing
from burnish.language.model.reward_head import judged, new_head
from burnish.language.model.universal import LanguageModel
from burnish.language.routing import Routers
from burnish.language.teachers import Teachers
from burnish.models.adapters import OPTION, WEIGHTS, adapter_folder, read_weights
from burnish.models.linear import joined
from burnish.models.lora import lora_layers, merging_rounds
from burnish.models.targets import language_targets, router_outputs
from burnish.options.cluster import ShardingOptions
from burnish.training.flop_counter import Cost
from burnish.training.profiling import Meter
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.training.roles import TrainedRoles
from burnish.training.tensor_parallel import styles_of
from burnish.types.batch import numbers
from burnish.types.completion import Completion
from burnish.types.rollout import OfflineJudgements, OfflineResponses, ScoredResponses
from burnish.utils.errors import UserError

TokenRole = Callable[[Completion], TokenScores]  # scores responses as one of the networks
CHOSEN = ("num_experts_per_tok", "top_k_experts")  # names of the experts per token in configurations


class LanguageRoles(TrainedRoles):
    """Builds the networks that an algorithm needs and keeps them in step."""

    counts_tokens = True
    model: LanguageModel
    balance: Balance | None = None

    def __init__(self, model: LanguageModel, needs: LanguageNeeds, config: LanguageConfig, *, shared: bool) -> None:
        """Make them; ``shared`` says that the model is not read until it is sharded."""
        lora, critic, trainer, seed = config.model.lora, config.critic, config.trainer, config.seed
        super().__init__(
            model, lora, micro_batch_size=max(trainer.micro_batch_tokens // model.members, 1),
            on_policy=config.steps_per_update == 1,
        )  # fmt: skip
        self.needs, self.critic, self.temperature = needs, critic, config.rollout.temperature
        self.layout, self.mini_batch_size = trainer.layout, trainer.mini_batch_size
        self._settled: Layout | None = None
        # another engine's kernels round otherwise than this project's
        self.sampler_rounds = config.rollout.vllm is not None or model.compute != torch.float32
        critics = ("critic",) if needs.critic else ()
        refreshed = ("reference",) if needs.refreshed else ()
        self.trained = ("policy", *critics, *refreshed)
        self.valued = "critic" if critic.trunk == "own" else "policy"  # whose states the critic's head reads
        own_trunk = critics if self.valued == "critic" else ()
        learning = ("policy", *own_trunk)
        targets = language_targets(model.network, model.text(model.network), lora) if lora is not None else ()
        self._add(
            (*own_trunk, *refreshed), own_trunk, reference=needs.reference, targets=targets, seed=seed, shared=shared
        )
        if lora is not None and lora.path is not None:
            # a reference that is refreshed begins as the model without adapters, too
            self._go_on(read_weights(adapter_folder(lora) / WEIGHTS, OPTION), learning)
        if lora is not None and model.compute != torch.float32:
            joined(lora_layers(model.network))
        self._freeze([*model.unread_parts, *config.model.freeze])
        # near 0, as the rewards to come of an unknown policy
        self.value_head = new_head(model, 1, seed, purpose="value head", std=1e-2) if needs.critic else None
        self.reward_head = new_head(model, len(needs.heads), seed) if needs.heads else None
        self.policy: TokenRole = partial(self._scores, "policy")
        self.reference: TokenRole = partial(self._scores, "reference")
        self.teachers = Teachers(self, config.model)
        # what sampled responses is recorded of the policy, and replayed by it
        self.routers = Routers(model.network) if config.rollout.router_replay else None
        if coef := config.model.router_aux_loss_coef:
            networks = {name: self._networks[self.network_of(name)] for name in learning}
            self.balance = Balance(networks, coef)
            model.require_single_forward()  # a token's router logits are told by its place in the forward

    def measure(self, peak: float) -> None:
        self.meter = Meter(peak)

    def shard(self, ranks: Ranks, options: ShardingOptions) -> None:
        self.model.require_single_forward()
        if ranks.context.size > 1:
            self.model.require_split()
        super().shard(ranks, options)
        if self.balance is not None:
            self.balance.coef /= options.tensor_parallel  # each rank of a tensor group has the same loss

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
                    raise UserError(
                        f"model.freeze has {pattern!r}, which matches no parameter; they are called like "
                        f"{', '.join(list(parameters)[:3])}"
                    )
                for name in found:
                    parameters[name].requires_grad_(False)
            if not any(parameter.requires_grad for parameter in parameters.values()):
                raise UserError(
                    f"model.freeze is {list(patterns)}, which leaves nothing to train; leave some parts out of it"
                )

    def _scores(self, name: str, completion: Completion) -> TokenScores:
        """Log-prob and entropy [B, T] of every token that the policy chose, by one of the networks."""

        def run(network: nn.Module) -> tuple[Tensor, Tensor]:
            scores = self.score(network, self.states(network, completion), completion)
            return scores.logprob, scores.entropy

        return TokenScores(*self.run(name, run))

    def states(self, network: nn.Module, completion: Completion) -> ResponseStates:
        """States that the tokens of the policy were chosen from."""
        layout = self._settled or self.layout

        # ranks that have gathered the weights work apart
        apart = any(sharded.is_gathered for sharded in self.shards.networks.values())
        run: Callable[[], ResponseStates] = partial(
            response_states, self.model, network, completion, layout=layout,
            context=SINGLE_RANK if apart else self.context,
            routers=self.routers if self._replays(network) else None,
        )  # fmt: skip
        if self.meter is not None and self.meter.active:
            size = multiplications(completion, self.model, layout)
            run = partial(self.meter.run, (id(network), self.active_adapter(), layout), run, size)
        if self.balance is None:
            return run()
        # which role the network runs for; nothing for none of this run's own
        role = next((name for name, one in self._networks.items() if one is network), "")
        return self.balance.through(self._active if role == "policy" else role, run)

    def _replays(self, network: nn.Module) -> bool:
        """Whether experts are those that sampled: for the policy, and adapters that learn beside it."""
        return network is self._networks["policy"] and (self._active == "policy" or torch.is_grad_enabled())

    def score(self, network: nn.Module, states: ResponseStates, completion: Completion) -> TokenScores:
        """Log-probs and entropies from states."""
        if self.meter is not None:
            weight = self.model.head(network).weight  # whose products autograd does not see
            forward = 2.0 * len(states.hidden) * weight.numel()
            self.meter.add(Cost(forward, forward * (states.hidden.requires_grad + weight.requires_grad)))
        return score(self.model, network, states, completion, temperature=self.temperature)

    def values(self, completion: Completion) -> Tensor:
        """The critic's prediction before every token that the policy chose: [B, T] float32, 0 elsewhere."""
        return self.run(self.valued, lambda network: self._values(self.states(network, completion)))

    def judgements(self, completion: Completion) -> Tensor:
        """What a reward model's heads make of the text before every token of the mask: [B, T, H], 0 elsewhere."""
        assert self.reward_head is not None, "the algorithm did not say that it needs heads"
        head = self.reward_head
        return self.run("policy", lambda network: judged(head, self.states(network, completion)))

    def scores_and_values(self, completion: Completion) -> tuple[TokenScores, Tensor]:
        """Both with gradients, from one forward where policy and critic share a trunk."""
        if self.valued == "critic":
            return self.policy(completion), self.values(completion)

        def run(network: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
            states = self.states(network, completion)
            scores = self.score(network, states, completion)
            return scores.logprob, scores.entropy, self._values(states)

        logprob, entropy, value = self.run("policy", run)
        return TokenScores(logprob, entropy), value

    def _blocks(self, network: nn.Module) -> list[nn.Module]:
        # layers of a vision tower are no blocks: a rank without images does not run them
        return list(self.model.layers(network))

    def _styles(self, network: nn.Module) -> dict[nn.Module, Any]:
        decoder = self.model.text(network)
        return styles_of(decoder, decoder.tp_plan)

    def _called_with(self, name: str) -> list[nn.Module]:
        heads = ((self.reward_head, "policy"), (self.value_head, self.network_of(self.valued)))
        return [head for head, network in heads if head is not None and network == name]

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
        with self._sampling("policy", merge=not merging_rounds(network) if merge is None else merge):
            yield network

    def parameters(self, name: str = "policy") -> dict[str, nn.Parameter]:
        """Trained parameters of a role by their names in its network; a critic's and a reward model's with the head."""
        own = {} if name == "critic" and self.critic.trunk == "shared" else super().parameters(name)
        heads = {"policy": ("score", self.reward_head), "critic": ("value_head", self.value_head)}
        prefix, head = heads.get(name, ("", None))
        return own if head is None else own | dict(head.named_parameters(prefix))

    def frozen(self, update: int) -> bool:
        """Whether the policy stays as it is in an update, while the critic warms up."""
        return self.needs.critic and update <= self.critic.warmup_updates

    def begin(self, collected: ScoredResponses | OfflineResponses | OfflineJudgements, *, moved: bool) -> None:
        """Samples have come to learn from; ``moved`` says that the policy is no longer the one that made them.

        Layouts round otherwise in half precision: what is compared over an update is computed in one of them, or
        ratios and KLs would hold that difference.
        """
        super().begin(collected, moved=moved)
        trace = collected.trace if isinstance(collected, ScoredResponses) else collected.answers.trace
        if self.layout == "auto" and self.model.compute != torch.float32 and len(trace):
            self._settled = cheapest_for_all(
                trace, self.model, budget=self.micro_batch_size, mini_batch=self.mini_batch_size
            )


class Balance:
    """The load balancing losses of mixtures of experts, one for each role that learns, beside the algorithm's own.

    Those of micro-batches are weighted with their tokens, as everywhere else that trains such models.
    """

    def __init__(self, networks: Mapping[str, Any], coef: float) -> None:
        """Register hooks on the routers of networks, which must not be copied afterwards.

        Args:
            networks: by the roles that learn; of adapters the same one.
            coef: weight of the loss.
        """
        self.coef, self._share = coef, 0.0
        self._losses: dict[str, list[Tensor]] = {role: [] for role in networks}
        self._router_logits: list[Tensor] | None = None  # of the forward pass that is recorded, by layer
        for network in {id(network): network for network in networks.values()}.values():
            text = network.config.get_text_config()
            self.top_k = next(getattr(text, name) for name in CHOSEN if hasattr(text, name))
            for router, place in router_outputs(network).items():
                router.register_forward_hook(partial(self._observe, place))

    def _observe(self, place: int, router: nn.Module, inputs: Any, output: tuple[Tensor, ...]) -> None:
        if self._router_logits is not None:
            self._router_logits.append(output[place].flatten(0, -2))

    def learning(self, share: float) -> AbstractContextManager[Any]:
        """Forward passes in this context have that share of the loss; none with 0."""
        return patch.object(self, "_share", share)

    def metrics(self) -> dict[str, float]:
        """The losses of an optimizer batch, of this rank."""
        found = {
            f"{role.replace('policy', 'actor')}/router_aux_loss": sum(numbers(own))
            for role, own in self._losses.items()
            if own
        }
        for own in self._losses.values():
            own.clear()
        return found

    def through(self, role: str, run: Callable[[], ResponseStates]) -> ResponseStates:
        """Run a forward pass; the hidden states of a role that learns bring the loss's gradient."""
        if not self._share or role not in self._losses or not torch.is_grad_enabled():
            return run()
        with patch.object(self, "_router_logits", list[Tensor]()) as seen:  # none of a backward pass, which recomputes
            states = run()
        logits = [states.all(layer.index_select(0, states.index)) for layer in seen]
        loss = self._share * load_balancing(logits, self.top_k)
        self._losses[role].append(loss.detach())
        return replace(states, hidden=_AttachLoss.apply(states.hidden, self.coef * loss))  # type: ignore[no-untyped-call]


class _AttachLoss(torch.autograd.Function):
    """Identity on hidden states whose backward pass adds the gradient of a loss, unscaled."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, loss: Tensor) -> Tensor:
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.new_ones((), dtype=torch.float32)
