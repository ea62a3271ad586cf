"""What an algorithm is to the loop, and what recipes choose for one: advantages, surrogates, KL, correction."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self, get_type_hints

import pydantic
from pydantic import BeforeValidator, Field, model_validator

from burnish.options import Finite, Positive, Rule, Rules
from burnish.registry import Choice, ReadIf, explanation, lookup, options
from burnish.utils.user_code import path_of

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.rl.advantages import Advantages, Rewards
    from burnish.rl.surrogates import Surrogate
    from burnish.types.batch import Batch
    from burnish.types.rollout import Loss, Scores


def _listed(value: Any) -> Any:
    """One rule, or one bound, is short for a list of it."""
    return value if value is None or isinstance(value, (list, tuple)) else [value]


@options
class RolloutCorrection:
    """What happens where sampler and trainer disagree about a step: weights that correct it, and rejection."""

    mode: Literal["decoupled", "bypass"] = "decoupled"
    """decoupled: ratios refer to the policy at the start of the update. bypass: to the sampler itself, so that the
    clip range lies around the sampler; such a ratio holds the whole weight, and is scaled to the bounded one.
    A surrogate without a ratio (reinforce) is weighted alike in both."""
    weights: Literal["step", "sample", "none"] = "step"
    """Importance weight of each step, of the whole sample (the product over its steps), or none."""
    upper: Annotated[Positive, ReadIf("weights", "step", "sample")] = 2.0
    """Larger weights become this one (truncated importance sampling)."""
    lower: Annotated[Positive | None, ReadIf("weights", "step", "sample")] = None
    """If given, weights outside of lower to upper become 0 instead (IcePop)."""
    batch_normalise: Annotated[bool, ReadIf("weights", "step", "sample")] = False
    """Divide weights by their mean, so that they don't change the learning rate."""
    reject: Annotated[Annotated[list[Rule], Field(min_length=1)] | None, BeforeValidator(_listed)] = None
    """Leave out steps (token) or samples (by the sum, mean or largest of their steps) that are too far off, and out of
    the count. Of a ratio r, k1 is -log r, k2 is (log r)^2 / 2 and k3 is r - 1 - log r. Of a list, what any rule
    rejects is out."""
    reject_above: Annotated[list[Positive] | None, BeforeValidator(_listed)] = None
    """Largest k2 or k3; k1 may be at most the log of it. A list has one for each rule."""
    reject_below: Annotated[list[Positive | None] | None, BeforeValidator(_listed)] = None
    """k1 must be at least the log of it; null takes 1 / reject_above. The others have no lower bound. A list has one,
    or null, for each rule."""

    def contradictions(self, run: Any) -> Rules:
        given = [self.reject, self.reject_above, self.reject_below]
        uneven = len({len(bounds or []) for bounds in given[:2]} | {len(bounds) for bounds in given if bounds}) > 1
        shown = [("null" if bounds is None else ", ".join(map(str, bounds))) for bounds in given]
        return [
            (
                self.lower is not None and self.lower > self.upper,
                f"lower is {self.lower} and upper is {self.upper}: no weight lies between; swap them",
            ),
            (
                self.weights == "none" and self.reject is None,
                "weights is none and reject is null, so nothing is corrected; choose one of them",
            ),
            (
                uneven,
                f"reject is {shown[0]}, reject_above is {shown[1]} and reject_below is {shown[2]}: "
                f"{len(self.reject or [])} rules need as many bounds each; give one for each rule, in order",
            ),
            *(
                (
                    low is not None and (low > high or not rule.endswith("k1")),
                    f"reject_below is {low} and reject_above is {high} with {rule}: only rules of k1 have a lower "
                    "bound, which is below the upper one; give null for the others",
                )
                for rule, high, low in ([] if uneven else self.rules)
            ),
        ]

    @property
    def rules(self) -> list[tuple[Rule, float, float | None]]:
        """Every rule of rejection with its upper and its lower bound."""
        rules = self.reject or []
        return list(zip(rules, self.reject_above or [], self.reject_below or [None] * len(rules), strict=True))

    def apply(
        self,
        learner: Tensor,
        sampled: Tensor,
        mask: Tensor,
        time: Tensor | None = None,
        scale: Tensor | None = None,
        *,
        compares: bool = True,
    ) -> tuple[Tensor, Tensor, dict[str, float]]:
        """Factors of the loss [B, K], which steps stay [B, K] bool, and all ``rollout_corr/*`` metrics.

        Args:
            learner: [B, K] log-probs under the policy that learns, before its first step.
            sampled: [B, K] under the one that sampled.
            mask: [B, K] bool, steps that count.
            time: [B, K] of denoising steps; tokens have none.
            scale: [B, K] nats of a step per unit of its log-prob, which is a mean over the latent's elements; None
                where log-probs are in nats already, as those of tokens.
            compares: whether the surrogate has a ratio, which in bypass is a part of these weights already.
        """
        from burnish.rl.importance import (
            correction_metrics,
            importance_weights,
            joint_metrics,
            rejected_fractions,
            rejection,
        )
        from burnish.rl.surrogates import masked, ratio_of

        ratio, kept = learner - sampled, mask  # as surrogates compare them
        nats = ratio if scale is None else ratio * scale
        metrics = correction_metrics(learner, sampled, mask, time=time, scale=scale)
        weights = mask.to(learner.dtype)
        if not mask.any():
            return weights, kept, metrics
        if self.weights != "none":
            weights, measured = importance_weights(
                nats, mask, level=self.weights, upper=self.upper, lower=self.lower, batch_normalise=self.batch_normalise
            )
            metrics |= measured
            if scale is not None:
                metrics |= joint_metrics(nats, mask, level=self.weights, applied=weights)
            if self.mode == "bypass" and compares:
                weights = weights / ratio_of(masked(ratio, mask))
        for rule, high, low in self.rules:
            stays, measured = rejection(nats, mask, rule=rule, upper=high, lower=low)
            kept, metrics = kept & stays, metrics | measured
        if self.rules:
            metrics |= rejected_fractions(kept, mask)
        return weights, kept, metrics


OldLogprobs = Literal["own", "sampler", "recomputed"]  # the policy's own, and before its first step; see old_logprob


@options
class Part:
    """Base of what a recipe chooses by name: a function, with its options."""

    function: ClassVar[Any]
    reads: ClassVar[str] = ""  # its option that names rewards


@options
class AdvantagePart(Part):
    """Base of advantages: what they need of the system."""

    groups: ClassVar[bool] = False  # compares samples of one prompt, so a prompt needs two at least
    critic: ClassVar[bool] = False  # reads predictions of the value network
    greedy: ClassVar[bool] = False  # reads the reward of a greedy response to each prompt
    steps: ClassVar[bool] = False  # compares rewards of the steps of responses
    advantage_aggregation = "sum"
    turn_rewards = False
    least: ClassVar[str] = ""  # its option that says how many samples of a prompt it needs

    @property
    def samples(self) -> int:
        """Samples of a prompt that it needs."""
        return int(getattr(self, self.least)) if self.least else 1


@options
class SurrogatePart(Part):
    """Base of surrogates: how they look at the actions of a sample."""

    compares: ClassVar[bool] = True  # with old log-probs
    whole_samples: ClassVar[bool] = False  # all actions of a sample have to be given together
    clip = 0.1  # a hundredth of it is a difference of log-probs that can't be seen in the loss


class WholeSamples(SurrogatePart):
    """Base of surrogates that look at all actions of a sample, as any function of a user's may."""

    whole_samples = True


class AdvantageFunction(Protocol):
    """What a function registered as an "advantage" is called with."""

    def __call__(self, rewards: Rewards) -> Tensor | Advantages:
        """Rewards of B samples to an advantage of each [B], or of each action [B, K]; options are keyword-only."""


class SurrogateFunction(Protocol):
    """What a function registered as a "surrogate" is called with."""

    def __call__(self, logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor) -> Surrogate:
        """[B, K] each: log-probs under the policy, with gradient, and under the one that sampled, advantages, and
        which actions count; a row is a sample. The loss must be 0 where masked."""


class KlFunction(Protocol):
    """What a function registered as a "kl estimator" is called with."""

    def __call__(self, logprob: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
        """Log-probs under the policy, with gradient, and under the reference to an estimate of each action [B, K]."""


class KlGateFunction(Protocol):
    """What a function registered as a "kl gate" is called with."""

    def __call__(self, rewards: Rewards, memory: dict[str, Any]) -> Tensor:
        """Rewards of the B samples of an update to the factor of the KL of each [B]: 0 lets a sample go. What is put
        into the memory is there in the next update, and in checkpoints."""


def adopt(cls: type, part: type) -> None:
    """Give a class the options of a part, before those of its own."""
    own = dict(vars(cls).get("__annotations__", {}))
    hints, taken = get_type_hints(part, include_extras=True), {}
    for name, field in part.__pydantic_fields__.items():  # type: ignore[attr-defined]
        if name != "name":
            taken[name] = hints[name]
            if name not in own:
                setattr(cls, name, pydantic.Field(default=field.default, description=explanation(part, name)))
    cls.__annotations__ = taken | own


def chosen(algorithm: Any, kind: str) -> Any:
    """The part that an algorithm's option ``kind`` names, else the algorithm's own, with its options.

    Raises:
        ValueError: its options are wrong, or those of its own are given while another takes its place.
    """
    given, own = getattr(algorithm, kind), algorithm.parts[kind]
    values = {one.name: getattr(algorithm, one.name) for one in dataclasses.fields(own) if one.name != "name"}
    if given is None:
        return own(**values)
    if own in (AdvantagePart, SurrogatePart):
        raise ValueError(f"{kind} is {given.name}, but {algorithm.name} is defined by its own; remove it")
    defaults = type(algorithm).__pydantic_fields__
    for name, value in values.items():
        if value != defaults[name].default:
            instead = f", or set {kind}.{name}" if name in vars(given) else ""
            raise ValueError(
                f"{name} is {value}, but {kind} is {given.name}, which takes the place of what reads it; leave it "
                f"out{instead}"
            )
    return given


def range_metrics(**values: Tensor) -> dict[str, float]:
    """Mean and range of each, as ``critic/NAME/mean``, ``/max`` and ``/min``; nothing of what is empty."""
    return {
        f"critic/{name}/{how}": float(getattr(value, how)())
        for name, value in values.items()
        if len(value)
        for how in ("mean", "max", "min")
    }


def advantage_metrics(scores: Scores, advantage: Tensor) -> dict[str, float]:
    """Of the rewards of a batch, and of its advantages [B, ...]."""
    present = (~scores.missing).nonzero().flatten()
    return range_metrics(rewards=scores.reward[present], advantages=advantage[present], returns=advantage[present])


Metrics = dict[str, float]

ADVANTAGES = "_advantages"  # where an algorithm holds those of the last batch until they are taken


class Notes(dict[str, Any]):
    """What a gate of the KL remembers: numbers, and lists of them, by name."""

    state_dict = dict.copy

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.clear()
        self.update(state)


@options
class Algorithm(ABC):
    """Base of all algorithms; a subclass is registered under its paper's name.

    ``class GSPO(TokenPolicyGradient, advantage="group", surrogate="gspo")`` has the options of these two registered
    parts as if they stood in the class, which may give them other defaults.
    """

    name: ClassVar[str]
    parts: ClassVar[dict[str, type[Any]]] = {"advantage": AdvantagePart, "surrogate": SurrogatePart}  # its own
    gates_kl: ClassVar[bool] = False  # its KL to the reference counts by ``kl_factor``, sample by sample
    kl_gate = None
    surrogate = None

    def __init_subclass__(cls, **named: str) -> None:
        super().__init_subclass__()
        cls.name = path_of(cls)  # until it is registered
        cls.parts = cls.parts | {kind: lookup(kind, name) for kind, name in named.items()}
        for kind in named:
            adopt(cls, cls.parts[kind])

    @abstractmethod
    def needs(self) -> Any:
        """What has to be there for this algorithm with these options."""

    @property
    def kl_option(self) -> str:
        """The option that weighs its KL to the reference; empty where it has none."""
        own = vars(self)
        return "kl_coef" if own.get("kl_coef") else "kl.coef" if own.get("kl") else ""

    def make_memory(self) -> dict[str, Any]:
        """What this algorithm remembers between updates, saved with checkpoints: things with a state, by name."""
        return {"kl_gate": Notes()} if self.kl_gate is not None else {}

    def compute_logprobs(self, scored: Any, roles: Any) -> Any:
        """Add what needs a forward pass without gradients; the default needs none."""
        return scored

    @abstractmethod
    def compute_advantages(self, annotated: Any) -> tuple[Batch, Metrics]:
        """Turn rewards into a training signal: tensors only, no network. Samples without reward are dropped."""

    @abstractmethod
    def micro_batches(self, batch: Any, size: int) -> Iterator[Batch]:
        """Split an optimizer batch into micro-batches of at most ``size`` network rows."""

    @abstractmethod
    def loss(self, part: Any, roles: Any) -> Loss:
        """The sum of the loss over the terms of one micro-batch."""

    @abstractmethod
    def size(self, batch: Any) -> int:
        """Number of terms in an optimizer batch: what the sum of its losses is divided by."""

    def shares(self, update: int, coef: float) -> tuple[float, float]:
        """Weights in an update, counted from 1: of its own loss, and of the supervised one beside it, for which the
        options say ``coef``."""
        return 1.0, coef

    def take_advantages(self) -> list[float] | None:
        """Advantage of each sample of the last batch that got credit, a mean over its actions; None if it has none."""
        return self.__dict__.pop(ADVANTAGES, None)  # type: ignore[no-any-return]

    def after_update(self, roles: Any, update: int) -> Metrics:
        """What happens once all optimizer steps of a policy update are done; ``update`` counts from 1."""
        return {}


KlGate = Annotated[Any, Choice("kl gate"), ReadIf("kl_option", why="its KL to the reference has no weight")]


@options
class AdvantageAlgorithm(Algorithm):
    """Base of those that learn from advantages: rewards become such by a rule that goes by name."""

    by_stream: ClassVar[bool] = False  # streams of a sample may have advantages of their own
    of_responses: ClassVar[bool] = False  # has what only language models have: tokens, a value network, turns
    advantage: Annotated[Any, Choice("advantage")] = None
    """How rewards become advantages, in place of this algorithm's own way: the name of a registered advantage, or
    {name: NAME} with its options; null takes its own."""
    advantage_clip: Positive | None = None
    """Largest size of an advantage; null never clips."""
    advantage_clip_low: Finite | None = None
    """Smallest advantage if negative ones are to be bounded otherwise; null takes -advantage_clip."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        self.__dict__["_chosen"] = {kind: chosen(self, kind) for kind in self.parts}
        clip_range("advantage_clip", self.advantage_clip_low, self.advantage_clip)
        own = self.part("advantage")
        if not self.of_responses and (own.critic or own.greedy or own.steps or own.turn_rewards):
            raise ValueError(f"advantage is {own.name}, which is for responses alone; choose another")
        return self

    def part(self, kind: str) -> Any:
        """The advantage or the surrogate that is in use, with its options."""
        return self.__dict__["_chosen"][kind]

    def clipped(self, advantage: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
        """Advantages [B, K] within their bounds, and the share that was outside."""
        from burnish.rl.advantages import clip_values

        if self.advantage_clip is None and self.advantage_clip_low is None:
            return advantage, {}
        low, high = clip_range("advantage_clip", self.advantage_clip_low, self.advantage_clip)
        advantage, share = clip_values(advantage, low, high, mask)
        return advantage, {"critic/advantages/clip_ratio": share}


@options
class PolicyGradient(AdvantageAlgorithm):
    """Rewards, then advantages, then a surrogate of each action; advantages and surrogates go by name."""

    gates_kl = True
    surrogate: Annotated[Any, Choice("surrogate")] = None
    """What is maximised for each action, in place of this algorithm's own: the name of a registered surrogate, or
    {name: NAME} with its options; null takes its own."""
    kl_gate: KlGate = None
    """Which samples the KL to the reference holds, and how strongly: the name of a registered gate, or {name: NAME}
    with its options; null holds all alike."""
    old_logprob: Literal["auto", "sampler", "recompute"] = "auto"
    """Log-probs that ratios refer to: the sampler's, recomputed, or auto: the policy's own until it is stepped, then
    the sampler's if a check shows that they are the trainer's, else recomputed."""
    rollout_correction: RolloutCorrection | None = None
    """Importance correction between the policy that sampled and the one that learns: weights and rejection; null
    trusts the sampler. Where async_rollout.depth is above 0 it is on unless it is set to null."""

    def contradictions(self, run: Any) -> Rules:
        mode = self.rollout_correction.mode if self.rollout_correction else None
        return [
            (
                (mode, self.old_logprob) in (("decoupled", "sampler"), ("bypass", "recompute")),
                f"old_logprob is {self.old_logprob} and rollout_correction.mode is {mode}: decoupled refers to "
                "recomputed log-probs and bypass to the sampler's; leave old_logprob out",
            ),
            (
                not self.part("surrogate").compares and self.old_logprob != "auto",
                f"old_logprob is {self.old_logprob}, but the surrogate has no ratio; remove it",
            ),
        ]

    @property
    def bypasses(self) -> bool:
        """Whether ratios refer to the sampler, whatever the trainer makes of its actions."""
        return self.rollout_correction is not None and self.rollout_correction.mode == "bypass"

    @property
    def tolerance(self) -> float:
        """A difference of log-probs that can't be seen in the loss."""
        return float(self.part("surrogate").clip) / 100

    def old_logprobs(self, roles: Any, difference: Callable[[], float]) -> tuple[OldLogprobs, Metrics]:
        """Whose log-probs ratios refer to, and what there is to report.

        Args:
            roles: the networks.
            difference: measures how far sampler and trainer are apart, in one micro-batch.
        """
        metrics: Metrics = {}
        recompute = self.old_logprob == "recompute" or self.rollout_correction is not None
        compares = self.old_logprob == "auto" and self.part("surrogate").compares
        if compares and not recompute and (roles.moved or not roles.on_policy):
            metrics["old_policy/logprob_check"] = apart = difference()
            recompute = apart > self.tolerance
        old: OldLogprobs = "own" if self.old_logprob == "auto" and not roles.moved else "sampler"
        if self.bypasses:
            old = "sampler"
        elif recompute:
            old = "recomputed"
        metrics["old_policy/recomputed"] = float(old == "recomputed")
        return old, metrics

    def objective(
        self, logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, weight: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted loss of each action and its metrics, [B, K] each, by the chosen surrogate."""
        return weighted(call(self.part("surrogate"), logprob, old, advantage, mask), weight)


RewardsRead = Mapping[str, tuple[str, ...]]  # names of single rewards that parts of an algorithm read, by its kind


def rewards_read(algorithm: AdvantageAlgorithm) -> RewardsRead:
    """What the advantage reads, and the gate of the KL where there is one."""
    parts = {"advantage": algorithm.part("advantage"), "kl_gate": algorithm.kl_option and algorithm.kl_gate}
    named = {kind: getattr(part, part.reads) for kind, part in parts.items() if part and part.reads}
    return {kind: (names,) if isinstance(names, str) else tuple(names) for kind, names in named.items() if names}


def call(part: Any, *tensors: Any) -> Any:
    """The function of a part on tensors, with the part's options."""
    given = {one.name: getattr(part, one.name) for one in dataclasses.fields(part) if one.name != "name"}
    return part.function(*tensors, **given)


def advantages_of(algorithm: AdvantageAlgorithm, rewards: Rewards) -> Advantages:
    """Advantages by an algorithm's rule; one that gives a number per sample gives it to all of its actions."""
    from burnish.rl.advantages import Advantages

    found = call(algorithm.part("advantage"), rewards)
    found = found if isinstance(found, Advantages) else Advantages.of(found, rewards.mask)
    counts = rewards.mask.sum(1)
    means = (found.advantage * rewards.mask).sum(1) / counts.clamp_min(1)
    algorithm.__dict__[ADVANTAGES] = means.masked_fill(counts == 0, float("nan")).tolist()  # for whoever looks on
    return found


def weighted(found: Surrogate, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of each action times its weight, and the metrics of a surrogate with those of its ratio."""
    if not hasattr(found, "metrics"):
        raise TypeError(f"a surrogate returns a {type(found).__name__}; it must be a burnish.rl.surrogates.Surrogate")
    values = dict(found.metrics)
    if found.ratio is not None:
        off = (found.ratio - 1).masked_fill(found.ratio == 0, 0.0)  # 0 is masked
        values |= {"actor/ratio_mean": found.ratio, "actor/ratio_square": off.square()}
    return found.loss * weight, values


def clip_range(name: str, low: float | None, high: float | None) -> tuple[float, float]:
    """The range of an option ``name`` and its ``name_low``: symmetric if low is None, open where nothing bounds it.

    Raises:
        ValueError: it is empty.
    """
    if low is None:
        low = -math.inf if high is None else -high
    elif high is not None and low >= high:
        raise ValueError(f"{name}_low is {low:g} and {name} is {high:g}: nothing lies between; lower {name}_low")
    return low, math.inf if high is None else high
