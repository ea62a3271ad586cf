"""Parameters with one optimizer, one learning rate and one gradient clipping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from burnish.options import OptimizerOptions
from burnish.training.optimizer import clip_gradients, learning_rate, make_optimizers
from burnish.training.saved import SavedTensor
from burnish.training.sharding import copy_full, sharded_like
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
        self.optimizers = make_optimizers(self.parameters, options)
        self.steps = 0

    def learns(self, update: int) -> bool:
        """Whether a policy update, counted from 1, trains the group."""
        return update >= self.first_update

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def clip(self) -> float:
        """Clip the gradient norm and return the norm before clipping."""
        return float(clip_gradients(list(self.parameters.values()), self.options.max_grad_norm))

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return learning_rate(self.steps, self.options, self.total_steps)

    def step(self) -> None:
        """One optimizer step."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.lr
            optimizer.step()
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        states: list[Any] = [optimizer.state_dict() for optimizer in self.optimizers]
        known = {} if self.options.name == "adamw" else {"name": self.options.name, "others": states[1:]}
        return {"optimizer": states[0], "steps": self.steps} | known

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if (before := state.get("name", "adamw")) != self.options.name:
            raise UserError(
                f"optimizer.name is {self.options.name}, but the checkpoint has the state of {before}; set "
                f"optimizer.name={before}"
            )
        for optimizer, saved in zip(self.optimizers, [state["optimizer"], *state.get("others", [])], strict=True):
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            self._check_moments(saved["state"], len(weights))
            moments = {
                number: {name: _placed(value, weights[number]) for name, value in some.items()}
                for number, some in saved["state"].items()
            }
            # its rates are those of the options, which the saved groups of parameters repeat
            optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
        self.steps = state["steps"]

    def _check_moments(self, saved: Mapping[Any, Any], count: int) -> None:
        where = f"the checkpoint has a groups.{self.name}.optimizer.state"
        for number, values in saved.items():
            if number not in range(count) or not isinstance(values, dict):
                raise UserError(f"{where}.{number} that is not of one of {count} weights; use another checkpoint")
            for name, value in values.items():
                counts = name == "step" and self.options.name == "adamw_8bit"  # which counts by a number
                if not isinstance(value, int if counts else Tensor | SavedTensor):
                    raise UserError(
                        f"{where}.{number}.{name} that is not a tensor: {value!r:.40}; use another checkpoint"
                    )


def _placed(value: Any, weight: nn.Parameter) -> Any:
    """A value of an optimizer's state, sharded like its weight if it is as large."""
    if isinstance(value, SavedTensor):
        if value.shape != weight.shape:
            return value.load()
        placed = torch.empty_like(weight, dtype=value.dtype, requires_grad=False)
        copy_full(placed, value)
        return placed
    return sharded_like(value, weight) if isinstance(value, Tensor) else value
