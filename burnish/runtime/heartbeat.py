"""Whether processes that wait for each other still move, and where each of them is if they don't."""

from __future__ import annotations

import sys
import traceback
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from burnish.metrics import moves

OWN = f"{Path(__file__).parents[1]}/"
LONGEST = 600.0  # seconds in which one of them must move
EVERY = 20  # how often they are asked in that time


@dataclass(frozen=True)
class Place:
    """Where a process is; equal to its last one if it has not moved."""

    moves: int  # see ``moved``
    stack: int  # a hash of the lines of all frames
    where: str  # for a person


def place(thread: int | None) -> Place:
    """Where a thread of this process is; None: it has nothing to do."""
    frame = None if thread is None else sys._current_frames().get(thread)
    if frame is None:
        return Place(moves(), 0, "waiting for the next call")
    lines = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_stack(frame)]
    file, number = next((line for line in lines if line[0].startswith(OWN)), lines[0])
    return Place(moves(), hash(tuple(lines)), f"in {file.removeprefix(OWN)}:{number}")


@dataclass
class Heartbeat:
    """What is known of some processes, by rank."""

    ranks: tuple[int, ...]
    began: float  # seconds of the clock that ``now`` is of, too
    _places: dict[int, Place] = field(default_factory=dict)
    _heard: dict[int, float] = field(default_factory=dict)
    _moved: float = 0.0

    def hear(self, rank: int, place: Place, now: float) -> None:
        """Take in where a process is."""
        if self._places.get(rank) != place:
            self._moved = now
        self._places[rank], self._heard[rank] = place, now

    def hanging(self, now: float) -> dict[str, list[int]]:
        """Ranks by where they are, those of the smallest group first, if none has moved for too long; {} otherwise.

        One that waits for the others in a collective operation is where most are, the one that hangs is elsewhere.
        """
        if now - max(self._moved, self.began) < LONGEST:
            return {}
        groups: dict[str, list[int]] = defaultdict(list)
        for rank in self.ranks:
            silent = now - self._heard.get(rank, self.began) > LONGEST / 2
            groups["not answering" if silent else self._places[rank].where].append(rank)
        return dict(sorted(groups.items(), key=lambda item: (item[0] != "not answering", len(item[1]))))
