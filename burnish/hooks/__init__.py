"""Hooks of the training loop: validation, checkpoints, metrics, progress, stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from burnish.types.rollout import Collected


class Hook:
    """Called after every update with its metrics, to which it may add for later hooks."""

    def start(self, done: int) -> None:
        """Before the first update of this process, after ``done`` updates of earlier ones."""

    def observe(self, update: int, collected: Collected) -> None:
        """With the batch of an update, before anything is learned from it."""

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        """After ``update`` policy updates; 0 is before the first one."""

    def finish(self) -> None:
        """After the last update of this process, unless it failed."""

    def close(self) -> None:
        """Release resources, also after an error."""
