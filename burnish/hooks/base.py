"""What happens around updates: judging, saving, recording, showing."""

from __future__ import annotations


class Hook:
    """Called after every update with its metrics. It may add to them; hooks that come later see that."""

    def start(self, done: int) -> None:
        """Before the first update of this process; ``done`` updates were made by earlier ones."""

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        """After ``update`` policy updates; 0 is the untrained model, before the first one."""

    def finish(self) -> None:
        """After the last update of this process, unless an error ended it."""

    def close(self) -> None:
        """Let go of what is held, whatever has ended the run."""
