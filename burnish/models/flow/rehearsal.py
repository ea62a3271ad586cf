"""All steps of a pipeline's own run with made-up outputs of its networks: what it makes of a step may depend on nothing
but the state, the time and these outputs. No network computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from burnish.models.flow.forwards import Whole
from burnish.models.flow.levels import Unsupported
from burnish.models.flow.runs import Placed, Witness

CLOSE, ROUNDED = 1e-3, 5e-2  # largest difference, relative to the largest value: in float32, and in less


class Rehearsal(Witness):
    """Notes the calls and the made-up outputs of each step."""

    def __init__(self, forwards: Any) -> None:
        super().__init__(forwards, own=False)
        self.made: list[list[tuple[str, dict[str, Any], Any]]] = [[]]  # by step: network, arguments and output
        self._draw = torch.Generator().manual_seed(0)

    def call(self, name: str, network: nn.Module, arguments: dict[str, Any]) -> Any:
        def drawn(value: Tensor) -> Tensor:
            return torch.randn(value.shape, generator=self._draw).to(value)

        output = tree_map_only(Tensor, drawn, super().call(name, network, arguments))
        self.made[-1].append((name, arguments, output))
        return output

    def step(self, scheduler: Any, output: Tensor, time: Any, x: Tensor, own: Callable[..., Tensor]) -> Tensor:
        self.made.append([])
        return super().step(scheduler, output, time, x, own)


def turned_off(pipeline: Any) -> str:
    """How to turn off what a pipeline's guidance keeps from step to step, for a message."""
    from diffusers.guiders.guider_utils import GUIDER_CONFIG_NAME, BaseGuidance

    guiders = {name: part for name, part in pipeline.components.items() if isinstance(part, BaseGuidance)}
    if not guiders:
        return "rollout.guidance_scale=1 or rollout.call may turn it off"
    files, kind = (f"{name}/{GUIDER_CONFIG_NAME}" for name in guiders), type(next(iter(guiders.values()))).__name__
    return f'its guider, {kind}, may do so: it is off with "enabled": false in {" and ".join(files)}'


def rehearse(
    visit: Callable[[Any], Any], forwards: Any, table: Any, pipeline: Any, *, exact: bool, start: int = 0
) -> None:
    """Compare each step of a run with the same step taken by itself.

    Args:
        visit: runs the pipeline.
        forwards: of the model.
        table: of the run.
        pipeline: that runs, for the message.
        exact: whether networks compute in float32.
        start: the first step that is compared.

    Raises:
        Unsupported: a step differs.
    """
    rehearsal, tolerance = Rehearsal(forwards), CLOSE if exact else ROUNDED
    visit(rehearsal)
    states, velocities = rehearsal.states(table)
    for k in range(start, len(states)):
        made = rehearsal.made[k]
        alone = Placed(forwards, table, states[k : k + 1], float(table.times[k]))
        visit(alone)
        same = [call.network for call in alone.calls] == [name for name, _, _ in made]
        if same and made:
            velocity = visit(alone.answered(iter(output for _, _, output in made)))
            same = _close([call.arguments for call in alone.calls], [arguments for _, arguments, _ in made], tolerance)
            same = same and _close(velocity, velocities[k : k + 1], tolerance)
        if not same:
            raise Unsupported(
                f"its step {k + 1} of {len(states)} does something else than the same step by itself: it depends on "
                f"its number, or on the steps before ({turned_off(pipeline)})"
            )


def _close(found: Any, expected: Any, tolerance: float) -> bool:
    """Whether two trees have equal tensors, but for rounding."""
    plain = [
        [leaf.value if isinstance(leaf, Whole) else leaf for leaf in tree_leaves(tree)] for tree in (found, expected)
    ]
    tensors = [[leaf.double() for leaf in leaves if isinstance(leaf, Tensor)] for leaves in plain]
    if [leaf.shape for leaf in tensors[0]] != [leaf.shape for leaf in tensors[1]]:
        return False
    return all(
        float((one - other).abs().max()) <= tolerance * max(float(other.abs().max()), 1e-9)
        for one, other in zip(*tensors, strict=True) if one.numel()
    )  # fmt: skip


def distance(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest value."""
    if found.shape != expected.shape:
        return float("inf")
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-12))
