"""Optimizers, groups of parameters with a learning rate and schedule of their own, the moving average of weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor, nn

from burnish.options import OptimizerOptions
from burnish.rl.algorithm import call
from burnish.training.saved import SavedTensor, in_memory
from burnish.training.sharding import copy_full, local_shard
from burnish.types.batch import is_sharded
from burnish.utils.errors import UserError


class ParameterGroup:
    """The actor's weights, the critic's, or those of another network."""

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, nn.Parameter],
        options: OptimizerOptions,
        *,
        total_steps: int,
        first_update: int = 1,
    ) -> None:
        """Make the optimizers.

        Args:
            name: prefix of its metrics.
            parameters: by name in the network.
            options: of the optimizer.
            total_steps: optimizer steps after which a decaying learning rate is zero.
            first_update: first policy update that trains the group; it is frozen before.
        """
        self.name, self.parameters, self.options = name, dict(parameters), options
        self.total_steps, self.first_update = total_steps, first_update
        self.optimizers, self._rate = make_optimizers(self.parameters, options), options.rate
        self.steps = 0
        # of the groups of parameters that an optimizer tells apart, which keep the proportion of their learning rates
        self._shares = [[group["lr"] / options.lr for group in one.param_groups] for one in self.optimizers]

    def learns(self, update: int) -> bool:
        """Whether a policy update, counted from 1, trains the group."""
        return update >= self.first_update

    def zero_grad(self) -> None:
        for weight in self.parameters.values():
            weight.grad = None

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return learning_rate(self.steps, self.options, self.total_steps, self._rate)

    def step(self) -> None:
        """One optimizer step."""
        for optimizer, shares in zip(self.optimizers, self._shares, strict=True):
            for group, share in zip(optimizer.param_groups, shares, strict=True):
                group["lr"] = self.lr * share
            optimizer.step()
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        states = {number: optimizer.state_dict() for number, optimizer in enumerate(self.optimizers)}
        return {"name": self.options.optimizer.name, "optimizer": states, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["name"] != (name := self.options.optimizer.name):
            raise UserError(
                f"optimizer.name is {name}, but the checkpoint has the state of {state['name']}; set "
                f"optimizer.name={state['name']}"
            )
        for optimizer, saved in zip(self.optimizers, state["optimizer"].values(), strict=True):
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            moments = {
                number: {name: _placed(value, weights[number]) for name, value in some.items()}
                for number, some in saved["state"].items()
            }
            # its rates are those of the options, which saved groups of parameters repeat; what else they have moves
            now = optimizer.state_dict()
            groups = [
                own | {name: in_memory(value) for name, value in before.items() if name not in OF_OPTIONS}
                for own, before in zip(now["param_groups"], saved["param_groups"], strict=True)
            ]
            optimizer.load_state_dict(now | {"state": moments, "param_groups": groups})
        self.steps = state["steps"]


OF_OPTIONS = ("params", "lr", "betas", "eps", "weight_decay", "momentum")  # of a group of parameters


def _placed(value: Any, weight: nn.Parameter) -> Any:
    """A value of an optimizer's state; a saved one is sharded like its weight if it is as large."""
    if isinstance(value, SavedTensor):
        if value.shape != weight.shape:
            if is_sharded(weight) and value.shape.numel() > 1:
                raise UserError(
                    f"the optimizer's state of a weight {list(weight.shape)} has shape {list(value.shape)}, which no "
                    "rank can take its share of; resume on one process, or with an optimizer.name whose states are as "
                    "large as the weights"
                )
            return value.load()
        placed = torch.empty_like(weight, dtype=value.dtype, requires_grad=False)
        copy_full(placed, value)
        return placed
    return value


def step_on_host(optimizer: torch.optim.Optimizer, weights: Mapping[nn.Parameter, nn.Parameter]) -> None:
    """Have an optimizer of copies in CPU memory step ``weights``, which are what they are copies of.

    At a step gradients and weights come to the CPU, and weights go back. Between steps the device holds weights alone,
    and through the backward pass their gradients.
    """
    copies = [copy for group in optimizer.param_groups for copy in group["params"]]

    @torch.no_grad()
    def bring(*_: Any) -> None:
        for copy in copies:
            if (gradient := weights[copy].grad) is not None:
                copy.copy_(weights[copy])
                copy.grad = gradient.to("cpu", copy.dtype)

    @torch.no_grad()
    def take_back(*_: Any) -> None:
        for copy in copies:
            if copy.grad is not None:
                weights[copy].copy_(copy)
                copy.grad = None

    optimizer.register_step_pre_hook(bring)
    optimizer.register_step_post_hook(take_back)


def make_optimizers(parameters: Mapping[str, nn.Parameter], options: OptimizerOptions) -> list[torch.optim.Optimizer]:
    """What steps the trained parameters.

    Args:
        parameters: by their names in the network.
        options: which one, and its rates.

    Raises:
        UserError: it makes no optimizer.
    """
    part = options.optimizer
    stepped = dict(parameters)
    if options.offload:
        stepped = {name: nn.Parameter(torch.empty(one.shape, dtype=one.dtype)) for name, one in parameters.items()}
    given = call(part, stepped, options)
    made = list(given) if isinstance(given, Sequence) else [given]
    if odd := [type(one).__name__ for one in made if not isinstance(one, torch.optim.Optimizer)]:
        raise UserError(
            f"optimizer.name is {part.name}, whose function returns a {odd[0]}; return a torch.optim.Optimizer, or a "
            "list of them"
        )
    if options.offload:
        weights = {stepped[name]: weight for name, weight in parameters.items()}
        for one in made:
            step_on_host(one, weights)
    return made


def learning_rate(step: int, options: OptimizerOptions, total_steps: int, rate: Any) -> float:
    """The learning rate of an optimizer step.

    Args:
        step: counted from 0.
        options: peak, warm-up and shape.
        total_steps: of the schedule; linear and cosine reach their floor after the last one.
        rate: what the learning rate is after the warm-up.
    """
    warm_up = int(options.warmup_steps * (total_steps if options.warmup_steps < 1 else 1))
    if step < warm_up:
        return options.lr * (step + 1) / warm_up
    done = min((step - warm_up) / max(total_steps - warm_up, 1), 1.0)
    left: float = call(rate, done, step - warm_up)
    return options.min_lr + (options.lr - options.min_lr) * left


def clip_gradients(networks: Sequence[tuple[Sequence[nn.Parameter], float | None]]) -> list[Tensor]:
    """Clip the total gradient norms of networks, each to its own greatest norm, and return the norms before clipping.

    With a non-finite norm, gradients are left as they are. Sharded gradients are clipped by their norm over all ranks.
    """
    found = [[one.grad for one in parameters if one.grad is not None] for parameters, _ in networks]
    device = networks[0][0][0].device
    # read once: every comparison on a GPU would synchronise
    norms = torch.stack([_total_norm(gradients, device) for gradients in found]).cpu().unbind()
    for gradients, norm, (_, max_norm) in zip(found, norms, networks, strict=True):
        if max_norm is not None and norm > max_norm and torch.isfinite(norm):
            torch._foreach_mul_([local_shard(gradient) for gradient in gradients], float(max_norm / norm))
    return list(norms)


def _total_norm(gradients: Sequence[Tensor], device: torch.device) -> Tensor:
    """The norm of all gradients of a network, float32; 0 where there are none."""
    held: dict[Any, list[Tensor]] = {}  # by the mesh, and its axes that they are sharded over
    for gradient in gradients:
        axes = tuple(i for i, how in enumerate(getattr(gradient, "placements", ())) if not how.is_replicate())
        own = local_shard(gradient).float()
        held.setdefault((getattr(gradient, "device_mesh", None), axes), []).append(own)
    norms = [_norm(own, *where) for where, own in held.items()]
    return reduce(torch.hypot, norms) if norms else torch.zeros((), device=device)


def _norm(gradients: list[Tensor], mesh: Any, axes: Sequence[int]) -> Tensor:
    """The norm of gradients of which this rank has shards of a mesh; replicas are not counted again."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if mesh is None:
        return norm
    square = norm.square()
    for axis in axes:
        torch.distributed.all_reduce(square, group=mesh.get_group(axis))
    return square.sqrt()


DecaySchedule = Literal["constant", "power", "linear", "piecewise_linear", "cosine", "warmup_cosine"]


class Ema:
    """Averages parameters once per optimizer step, with the decay of ``decay_at``; it starts as a copy of them."""

    def __init__(
        self, parameters: Mapping[str, Tensor], decay: float, *, offload: bool = False, **schedule: Any
    ) -> None:
        """Args: ``offload`` keeps the average in CPU memory."""
        self.parameters, self.decay, self.schedule, self.steps = dict(parameters), decay, schedule, 0
        where = "cpu" if offload else None
        self.average = {name: value.detach().to(where, torch.float32, copy=True) for name, value in parameters.items()}

    def update(self) -> None:
        """Update the average with the current weights."""
        decay = decay_at(self.steps, self.decay, **self.schedule)
        average = [local_shard(value) for value in self.average.values()]
        present = [
            local_shard(value).detach().to(own.device, torch.float32)
            for own, value in zip(average, self.parameters.values(), strict=True)
        ]
        torch._foreach_lerp_(average, present, 1 - decay)
        self.steps += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the average as the network's weights in this context; the trained weights are restored bit for bit.

        They wait where the average was, so that nothing is held twice, but for weights of less precision than that.
        """
        alike = [name for name, value in self.parameters.items() if value.dtype == self.average[name].dtype]
        rounded = {name: value.detach().clone() for name, value in self.parameters.items() if name not in alike}
        self._exchange(alike)
        try:
            self._write({name: self.average[name] for name in rounded})
            yield
        finally:
            self._exchange(alike)
            self._write(rounded)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        for name, value in self.average.items():
            copy_full(value, state["average"][name])

    def _write(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                local_shard(self.parameters[name]).copy_(local_shard(value))

    def _exchange(self, names: Sequence[str]) -> None:
        """Put weights where their averages are, and these where they are."""
        with torch.no_grad():
            for name in names:
                weight, average = local_shard(self.parameters[name]), local_shard(self.average[name])
                kept = weight.clone()
                weight.copy_(average)
                average.copy_(kept)


def decay_at(
    step: int,
    decay: float,
    *,
    kind: DecaySchedule = "power",
    initial: float = 0.0,
    warm_up: int = 10,
    steps: int = 1000,
) -> float:
    """EMA decay at an optimizer step, with the schedules of Flow-Factory.

    Args:
        step: counted from 0.
        decay: final value, which ``constant`` has at once.
        kind: see ``EmaOptions``, also for the arguments below.
        initial, warm_up, steps: of the schedules.
    """
    if kind == "power":
        return min((1 + step) / (warm_up + step), decay)
    if kind == "linear":
        return initial + (decay - initial) * min(step / warm_up, 1.0)
    if kind == "piecewise_linear":
        return min(step / 1000, decay)
    if kind == "constant":
        return decay
    start = warm_up if kind == "warmup_cosine" else 0
    if step < start:
        return initial * step / start
    return initial + (decay - initial) * (1 - math.cos(math.pi * min((step - start) / (steps - start), 1.0))) / 2
