"""How a batch becomes optimizer steps: micro-batches, gradients, their norm, and metrics of every step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from burnish.metrics import Stopwatch, moved
from burnish.options import StepOptions
from burnish.rl.algorithm import Algorithm, Metrics
from burnish.rl.kl import gate
from burnish.training.exchange import bring, without_others
from burnish.training.optimizer import Ema, ParameterGroup, clip_gradients
from burnish.training.profiling import Usage
from burnish.training.ranks import SINGLE_RANK, Ranks, shares
from burnish.training.roles import Publisher, TrainedRoles
from burnish.types.batch import Batch, numbers, settle
from burnish.types.rollout import Collected, OfflineResponses, OfflineSamples
from burnish.utils import random
from burnish.utils.errors import UserError

T = TypeVar("T")
COUNTERS = ("version", "optimizer_steps", "skipped_in_a_row")  # of a trainer, which a checkpoint holds


def mini_batches(batch: Batch, options: StepOptions, seed: int, update: int) -> Iterator[Batch]:
    """What each optimizer step of a policy update learns from: the rows in order, or in one drawn for each epoch.

    Each is made when it is asked for, since its rows are copies.
    """
    return (batch.select(rows) for rows in _rows_of_minis(len(batch), options, seed, update))


def steps_of_an_update(config: Any) -> StepOptions:
    """How a batch of a run becomes optimizer steps; a mini-batch is counted in rows of the batch."""
    size = config.trainer.mini_batch_size
    found: StepOptions = replace(config.trainer, mini_batch_size=size and size // config.rows_per_group)
    return found


def learned_in_an_update(records: Sequence[T], costs: Sequence[int], config: Any, ranks: Ranks, update: int) -> list[T]:
    """Those of a batch of records that a rank learns in the mini-batches of an update."""
    learned: set[int] = set()
    for rows in _rows_of_minis(len(costs), steps_of_an_update(config), config.seed, update):
        learned.update(rows[shares([costs[row] for row in rows], ranks.size)[ranks.rank]])
    return [records[row] for row in sorted(learned)]


def _rows_of_minis(count: int, options: StepOptions, seed: int, update: int) -> Iterator[list[int]]:
    size = options.mini_batch_size or max(count, 1)
    for epoch in range(options.epochs):
        drawn = options.shuffle and size < count
        order = random.permutation(count, seed, "mini_batches", update, epoch) if drawn else list(range(count))
        yield from (order[start : start + size] for start in range(0, count, size))


def rank_micro_batches(
    algorithm: Algorithm, batch: Batch, size: int, ranks: Ranks
) -> Iterator[tuple[Batch, float, bool]]:
    """Micro-batches of this rank's rows with the weights of their losses, and whether it is the last one: the same
    number on every rank.

    A sharded network runs on all ranks or none, so a rank with fewer micro-batches of a kind repeats a small one with
    weight 0.

    Args:
        algorithm: splits the batch.
        batch: with at least one term; the same on every rank.
        size: of a micro-batch, as the algorithm counts it.
        ranks: that share the batch.
    """
    waiting: list[tuple[Batch, float]] = []
    for micro in _weighted(algorithm, batch, size, ranks):
        moved()
        yield from ((*one, False) for one in waiting)
        waiting = [micro]
    yield from ((*one, True) for one in waiting)


def _weighted(algorithm: Algorithm, batch: Batch, size: int, ranks: Ranks) -> Iterator[tuple[Batch, float]]:
    if ranks.size == 1:
        yield from ((micro, 1.0) for micro in algorithm.micro_batches(batch, size))
        return
    own, kinds = bring(batch, ranks, shares(batch.costs(), ranks.size)), defaultdict[str, list[Batch]](list)
    for micro in algorithm.micro_batches(own, size) if len(own) else ():
        kinds[type(micro).__name__].append(micro)
    counts = ranks.gather({kind: len(some) for kind, some in kinds.items()})  # before the first forward, a collective
    for kind in sorted({kind for there in counts for kind in there}):
        yield from ((micro, 1.0) for micro in kinds[kind])
        if missing := max(there.get(kind, 0) for there in counts) - len(kinds[kind]):
            rows = (without_others(batch.select([row])) for row in range(len(batch)))
            every = (micro for row in rows for micro in algorithm.micro_batches(row, 1))
            repeated = next(micro for micro in every if type(micro).__name__ == kind)
            yield from [(repeated, 0.0)] * missing


def step_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Metrics of a mini-batch: ``sum NAME`` by ``count NAME``, and ``report NAME`` as it is."""
    named = [name.removeprefix("sum ") for name in sums if name.startswith("sum ")]
    metrics = {name: sums[f"sum {name}"] / sums[f"count {name}"] for name in named if sums[f"count {name}"]}
    for name in [name for name in metrics if name.startswith("actor/ratio_square")]:
        variance = metrics.pop(name) - (metrics[name.replace("square", "mean")] - 1) ** 2
        metrics[name.replace("square", "std")] = max(variance, 0.0) ** 0.5
    for name, value in sums.items():
        if name.startswith("extreme ") and math.isfinite(value):  # of a rank that had terms
            metric = name.split(" ", 2)[2]
            metrics[metric] = extreme_of(metric)([value, metrics.get(metric, value)])
    return metrics | {name.removeprefix("report "): value for name, value in sums.items() if name.startswith("report ")}


def extreme_of(name: str) -> Callable[[Sequence[float]], float]:
    """What several values of a metric become: of ratio_max and the like the extreme, else the mean."""
    extremes: dict[str, Callable[[Sequence[float]], float]] = {"max": max, "min": min}
    kind = name.rpartition("_")[2] if "/" in name else ""
    return extremes.get(kind, lambda values: sum(values) / len(values))


def length_metrics(tokens: Sequence[int], ranks: int) -> dict[str, float]:
    """verl's metrics of how the tokens of a mini-batch are shared out among ranks.

    Args:
        tokens: [B] of each sample, prompt and response.
        ranks: that learn from it.
    """
    size = -(-len(tokens) // ranks)
    given = [sum(tokens[start : start + size]) for start in range(0, size * ranks, size)]
    balanced = [sum(tokens[rows]) for rows in shares(tokens, ranks)]
    return {
        "global_seqlen/min": float(min(given)),
        "global_seqlen/max": float(max(given)),
        "global_seqlen/minmax_diff": float(max(given) - min(given)),
        "global_seqlen/balanced_min": float(min(balanced)),
        "global_seqlen/balanced_max": float(max(balanced)),
        "global_seqlen/mean": sum(given) / ranks,
    }


def signal_metrics(sums: Mapping[str, float], norm: float | None) -> dict[str, float]:
    """verl's proxies of how much of the gradient is signal, where the power of the terms' gradients is known.

    Args:
        sums: of the mini-batch; of the squared norms of its terms' gradients, where somebody measured them.
        norm: of the mean of those gradients; None where the actor does not learn. The mean of N gradients with a mean
            squared norm P has a variance of (P - norm^2) / (N - 1).
    """
    terms = sums.get("count variance_proxy/proxy2_total_power")
    if not terms or norm is None:
        return {}
    power = sums["sum variance_proxy/proxy2_total_power"] / terms
    noise = max(power - norm**2, 0.0) / (terms - 1) if terms > 1 else 0.0
    return {"variance_proxy/proxy1_signal_strength": norm**2, "variance_proxy/proxy3_pure_noise": noise}


class AuxiliaryLoss:
    """A second loss with its own batches, which depend only on the number of the optimizer step."""

    def __init__(
        self,
        algorithm: Algorithm,
        draw: Callable[[int], OfflineSamples | OfflineResponses],
        coef: float,
        *,
        metric: str = "actor/sft_loss",
    ) -> None:
        """Args: ``draw`` returns the batch of an optimizer step; ``coef`` is the weight of the loss, where the
        algorithm that it stands beside does not change it."""
        self.algorithm, self.draw, self.coef, self.metric = algorithm, draw, coef, metric

    def backward(self, step: int, coef: float, roles: Any, ranks: Ranks = SINGLE_RANK) -> list[Tensor]:
        """Backward pass of an optimizer step, counted from 0, whose loss is weighted by ``coef``: the losses of this
        rank's micro-batches without that weight, whose sum over all ranks is the loss."""
        batch, _ = self.algorithm.compute_advantages(self.draw(step))
        size, losses = self.algorithm.size(batch), []
        for micro, weight, last in rank_micro_batches(self.algorithm, batch, roles.micro_batch_size, ranks):
            roles.shards.micro_batch(last=last)
            loss = self.algorithm.loss(micro.to(roles.device), roles).total * weight / size
            (coef * loss).backward()
            losses.append(loss.detach())
        return losses


@dataclass
class Trainer:
    """The networks, their optimizers and their average, behind the verbs of the loop.

    On several ranks, every verb is called on all of them, with the same arguments; each learns its own rows of every
    mini-batch.
    """

    roles: TrainedRoles
    algorithm: Algorithm
    groups: Sequence[ParameterGroup]  # what learns, the actor first
    _: KW_ONLY
    options: StepOptions  # how a batch becomes optimizer steps
    ema: Ema | None  # of the actor's weights
    seed: int
    watch: Stopwatch
    auxiliary: AuxiliaryLoss | None = None  # what every optimizer step adds to the algorithm's loss
    publisher: Publisher | None = None  # the engine, where it has weights of its own
    ranks: Ranks = SINGLE_RANK  # that hold these networks together
    version: int = field(default=0, init=False)  # policy updates that the published weights have seen
    optimizer_steps: int = field(default=0, init=False)
    skipped_in_a_row: int = field(default=0, init=False)
    credited: list[float] | None = field(default=None, init=False)  # advantage of each sample of the last batch
    usage: Usage = field(init=False)
    rows: Ranks = field(init=False)  # those that share out the rows of a mini-batch
    _gated: Metrics = field(default_factory=dict, init=False)  # what the gate of the KL did with the last batch

    def __post_init__(self) -> None:
        self.usage = Usage(self.roles.meter, self.ranks.size)
        self.rows = self.ranks.rows
        self.roles.clock = self._part

    def compute_logprobs(self, scored: Collected) -> Any:
        """Add what needs a forward pass."""
        if self.publisher is not None:
            self.publisher.rest()
        self.roles.begin(scored, moved=scored.version != self.version)
        self._gated = {}
        if self.algorithm.kl_gate is not None and self.algorithm.kl_option:
            scored, self._gated = gate(self.algorithm.kl_gate, scored, self.roles.memory["kl_gate"])
        with self.watch("old_log_prob"), self.usage.during("actor_infer"), self.roles.fixed_weights():
            found = self.algorithm.compute_logprobs(scored, self.roles)
            settle(self.roles.device)  # or its time would be that of whoever waits next
        return found

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        """A part of annotation that has a time of its own."""
        with self.watch.part(name):
            yield
            settle(self.roles.device)

    def compute_advantages(self, annotated: Any) -> tuple[Any, Metrics]:
        """Rewards to training signal: all of the batch, on every rank alike."""
        with self.watch("adv"):
            batch, metrics = self.algorithm.compute_advantages(annotated)
        self.credited = self.algorithm.take_advantages()
        return batch, metrics | self._gated

    def update(self, batch: Batch, update: int) -> Metrics:
        """Mini-batches, micro-batches and optimizer steps of one policy update."""
        metrics: defaultdict[str, list[float]] = defaultdict(list)
        # gradients are on, whatever code of the user has set for the whole process
        with self.watch("update_actor"), self.usage.during("actor"), torch.enable_grad():
            for mini in mini_batches(batch, self.options, self.seed, update):
                step = self._step(mini, update)
                del mini  # before the next one is made
                for name, value in step.items():
                    metrics[name].append(value)
            nothing = not metrics  # there was nothing to learn from
            skipped, empty = (bool(metrics.pop(f"actor/{name}", nothing)) for name in ("skipped", "empty"))
            means = {name: extreme_of(name)(values) for name, values in metrics.items()}
            self.roles.optimizer_steps, self.roles.learned = self.optimizer_steps, means
            after = self.algorithm.after_update(self.roles, update)
            settle(self.roles.device)
        means |= {"actor/skipped_updates": float(skipped), "actor/empty_updates": float(empty)}
        return means | after | self.usage.metrics()

    def sync_weights(self, version: int) -> None:
        """Sample with these weights from now on; for an engine that shares them, only the version changes."""
        self.version = version
        self.roles.moved = False
        for group in self.groups:
            group.zero_grad()  # as large as the weights, while what comes next samples
        if self.publisher is not None:
            self.publisher.sync_weights(version)

    def _step(self, mini: Batch, update: int) -> Metrics:
        """One optimizer step. The loss is divided once, by the size of the full mini-batch."""
        size = self.algorithm.size(mini)
        if not size:
            return {"actor/skipped": 1.0, "actor/empty": 1.0}  # nothing in it can be learned from
        for group in self.groups:
            group.zero_grad()
        rest, coef = 1.0, 0.0
        if self.auxiliary is not None:
            rest, coef = self.algorithm.shares(update, self.auxiliary.coef)
        with self.roles.fixed_weights():
            share, sums = self._backward(mini, size, rest)
            if self.auxiliary is not None:
                own = self.auxiliary.backward(self.optimizer_steps, coef, self.roles, self.rows)
                sums += [(f"report {self.auxiliary.metric}", loss) for loss in own]
        # read only now, so that the GPU need not be waited for between micro-batches
        for (name, _), number in zip(sums, numbers([value for _, value in sums]), strict=True):
            if name.startswith("extreme "):
                share[name] = extreme_of(name)([number, share.get(name, number)])
            else:
                share[name] += number
        if self.auxiliary is not None:
            share["auxiliary"] = coef * share[f"report {self.auxiliary.metric}"]
        if not self.ranks.tells:
            share.clear()  # of ranks that learn the same rows the first one tells what came of them
        whole = self.ranks.sum(share | self.usage.share("actor") | self.roles.shards.learned())
        self.usage.add(whole)
        if not whole.pop("taught") and self.auxiliary is None:
            return {"actor/skipped": 1.0, "actor/empty": 1.0}  # a frozen network predicts all of these steps
        self.roles.shards.settle_gradients(whole)
        total, metrics = whole["loss"] + whole.get("auxiliary", 0.0), step_metrics(whole)
        metrics["actor/loss"] = whole["loss"] / size
        if rest != 1:
            metrics["actor/mu"] = coef
        if self.roles.counts_tokens:
            metrics |= length_metrics(mini.costs(), self.rows.size)
        learning = [group for group in self.groups if group.learns(update)]
        clipped = clip_gradients([([*one.parameters.values()], one.options.max_grad_norm) for one in learning])
        norms = {group.name: float(norm) for group, norm in zip(learning, clipped, strict=True)}
        for group in learning:
            metrics |= {f"{group.name}/grad_norm": norms[group.name], f"{group.name}/lr": group.lr}
        metrics |= signal_metrics(whole, norms.get(self.groups[0].name))
        if not all(map(math.isfinite, [total, *norms.values()])):
            return self._skip(total, norms)
        for group in learning:
            group.step()
        self.optimizer_steps += 1
        self.skipped_in_a_row = 0
        if self.groups[0] in learning:
            self.roles.stepped()
            if self.ema:
                self.ema.update()
        return metrics

    def _backward(
        self, mini: Batch, size: int, factor: float
    ) -> tuple[defaultdict[str, float], list[tuple[str, Tensor | float]]]:
        """Gradients of a mini-batch, times ``factor``, a micro-batch at a time: what is known of this rank's share of
        its sums, and what is to be added to it by name."""
        share: defaultdict[str, float] = defaultdict(float, {"loss": 0.0, "taught": 0.0})
        sums: list[tuple[str, Tensor | float]] = []
        balance = self.roles.balance
        tokens = sum(mini.costs()) if balance else 0
        for part, weight, last in self._micro_batches(mini):
            self.roles.shards.micro_batch(last=last and self.auxiliary is None)
            own = balance.learning(sum(part.costs()) / tokens) if balance and weight else nullcontext()
            # a micro-batch of weight 0 only keeps ranks in step: it counts neither as work nor for experts' balance
            with own, nullcontext() if weight else self.usage.paused():
                loss = self.algorithm.loss(part, self.roles)
            if loss.total.requires_grad:
                (loss.total * (weight * factor) / size).backward()
                share["taught"] += 1
            elif self.ranks.size > 1:  # others would wait for this one's gradients
                raise UserError(
                    "Steps that a frozen network predicts were to be learned from; keep algorithm.window to those of "
                    "model.networks, or train with one process"
                )
            if not weight:
                continue
            sums.append(("loss", loss.total.detach()))
            for name, (value, count) in loss.metrics.items():
                sums += [(f"sum {name}", value), (f"count {name}", count)]
            sums += [(f"extreme {self.rows.rank} {name}", value) for name, value in loss.extremes.items()]
        reported = balance.metrics() if balance else {}
        share |= {f"report {name}": value for name, value in reported.items()}
        return share, sums

    def _micro_batches(self, mini: Batch) -> Iterator[tuple[Batch, float, bool]]:
        """This rank's micro-batches of a mini-batch, on the networks' device; see ``rank_micro_batches``."""
        for part, weight, last in rank_micro_batches(self.algorithm, mini, self.roles.micro_batch_size, self.rows):
            yield part.to(self.roles.device), weight, last

    def _skip(self, total: float, norms: dict[str, float]) -> Metrics:
        """Skip the step: one non-finite batch must not end a run; several in a row do."""
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row > self.options.max_skipped_updates:
            shown = ", ".join(f"{name} {norm}" for name, norm in norms.items())
            raise UserError(
                f"loss {total} and gradient norm ({shown}) were not finite for {self.skipped_in_a_row} optimizer "
                f"steps in a row (trainer.max_skipped_updates={self.options.max_skipped_updates}); "
                "lower optimizer.lr, and resume from the last checkpoint"
            )
        return {"actor/skipped": 1.0}

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "roles": self.roles.state_dict(),
            "groups": {group.name: group.state_dict() for group in self.groups},
            "ema": self.ema.state_dict() if self.ema else None,
            "trainer": {name: getattr(self, name) for name in COUNTERS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if (state["ema"] is None) != (self.ema is None):
            raise UserError("ema is set in only one of checkpoint and configuration; set it in both or in neither")
        self.roles.load_state_dict(state["roles"])
        for group in self.groups:
            group.load_state_dict(state["groups"][group.name])
        if self.ema:
            self.ema.load_state_dict(state["ema"])
        for name in COUNTERS:
            setattr(self, name, state["trainer"][name])
