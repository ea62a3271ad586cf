"""What an algorithm remembers from update to update: controllers and running statistics, saved with checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Remembered(Protocol):
    """A thing with a state."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Memory:
    """Remembered things by name."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts: dict[str, Any] = dict(parts)

    def __getitem__(self, name: str) -> Any:
        return self.parts[name]

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state.keys() == self.parts.keys(), "the checkpoint's identity was not checked"
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
