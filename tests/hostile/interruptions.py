"""Signals at any moment of a run: it stops, and the same command arrives where an untroubled run does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tests.hostile.cases import Case, Place

SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL")
MOMENTS = 10  # of each signal and task


def cases() -> Iterator[Case]:
    for task in ("drawing", "seeing"):
        for name in SIGNALS:
            for number in range(MOMENTS):
                draw = random.Random(f"{task} {name} {number}")
                yield _case(task, number, ((name, draw.random()),))
        for number in range(MOMENTS):
            draw = random.Random(f"{task} twice {number}")
            first = draw.random()
            yield _case(task, number, ((draw.choice(SIGNALS[:2]), first), ("SIGTERM", first + 0.3 * draw.random())))


def _case(task: str, number: int, signals: tuple[tuple[str, float], ...]) -> Case:
    def make(place: Place, scratch: Path) -> list[str]:
        return ["train", str(place.recipe(task)), "steps=2", "output_dir=run"]

    said = " and ".join(f"{name} at {moment:.0%}" for name, moment in signals)
    return Case(kind="signals", name=f"{task}, {said}, {number}", make=make, signals=signals)
