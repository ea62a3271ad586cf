"""What is tried, and what counts as a good answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Expect = Literal["refused", "works", "either"]
STOLEN = "stolen"  # file that code of a stranger writes to the scratch folder where it is run


@dataclass(frozen=True)
class Place:
    """Models, data, recipes and finished runs that nothing is wrong with; every try damages copies of its own."""

    folder: Path

    @property
    def drawing(self) -> Path:
        """A recipe that trains a generator for a step."""
        return self.folder / "drawing.yaml"

    @property
    def seeing(self) -> Path:
        """A recipe that trains a vision-language model for a step."""
        return self.folder / "seeing.yaml"

    def recipe(self, task: str) -> Path:
        return self.folder / f"{task}.yaml"

    def run(self, task: str) -> Path:
        """A finished run of that recipe, two updates long."""
        return self.folder / "runs" / task


@dataclass(frozen=True, kw_only=True)
class Case:
    """One hostile input.

    ``make`` prepares a scratch folder, which is the current one of the try, and returns the command line.
    ``refused``: exit code 2, one message of at most ten lines that names ``words`` and the way out. ``works``: exit
    code 0. ``either``: one of both, as for a flipped bit, which may do no harm.
    """

    kind: str
    name: str
    make: Callable[[Place, Path], list[str]]
    expect: Expect = "refused"
    words: tuple[str, ...] = ()  # of which a refusal has all, whatever their case
    environment: tuple[tuple[str, str], ...] = ()
    changes: tuple[str, ...] = ()  # beginnings of paths in the scratch folder that the command is there to change
    signals: tuple[tuple[str, float], ...] = ()  # name of a signal, and which share of a whole run's time it comes at

    @property
    def id(self) -> str:
        return f"{self.kind}: {self.name}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a try; ``bad`` is empty where it was answered well."""

    case: Case
    bad: str
    said: str
    seconds: float  # of computing
