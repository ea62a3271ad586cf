"""What a tracker is told, and what it has to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from burnish.utils.feed_process import Outcome

Names = Literal["verl", "lightrft"]
GENERATIONS = "val/generations"  # verl's name of the table of validation samples
COLUMNS = ("step", "input", "output", "score")  # of that table
SAMPLES = "val/samples"  # what was drawn, one after another
ALARMS = "alarms"


@dataclass(frozen=True, kw_only=True)
class About:
    """A run, and how a tracker is to show it."""

    name: str
    options: Mapping[str, Any]  # of the tracker's section
    config: Mapping[str, Any]  # every option of the run
    folder: Path  # for what the tracker's library writes on this machine
    names: Names  # of metrics
    id: str | None  # by which the tracker knows the run; None for one that it has not seen


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample of a validation."""

    prompt: str
    text: str | None  # a response; None for what was drawn
    file: Path | None  # what was drawn
    shown: Sequence[Path]  # pictures and sounds of the prompt
    score: float | None
    note: str

    @property
    def said(self) -> str:
        """The response, or the name of what was drawn."""
        return self.text or "" if self.file is None else self.file.name

    @property
    def caption(self) -> str:
        """One line below a picture."""
        return f"{'missing' if self.score is None else f'{self.score:.4g}'} | {self.prompt}"


@dataclass(frozen=True, kw_only=True)
class Notice:
    """An alarm that was raised, or one that is over."""

    update: int
    name: str
    text: str  # what was said when it was raised
    over: bool

    @property
    def title(self) -> str:
        """One line."""
        return f"alarm {self.name} is over" if self.over else f"alarm {self.name}"

    @property
    def said(self) -> str:
        """All of it."""
        return f"over since update {self.update}; raised because {self.text}" if self.over else self.text


class Tracker(Protocol):
    """A run as a tracker's own library writes it. It is opened where it is made, with what ``About`` says."""

    id: str
    url: str | None  # where to look at the run

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics of an update; steps only rise."""
        ...

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Samples of a validation."""
        ...

    def alarm(self, notice: Notice) -> None:
        """An alarm, after the metrics of its update."""
        ...

    def close(self, outcome: Outcome) -> None:
        """Write what is left; the run may be opened again later."""
        ...
