"""All kinds of hostile inputs, and the sample of them that is tried on every change."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.hostile import command_lines, copies, damage, folders, interruptions, recipes, records, values
from tests.hostile.bench import shuffled
from tests.hostile.cases import Case

KINDS: dict[str, Callable[[], Iterable[Case]]] = {
    "values": values.cases,
    "command lines": command_lines.cases,
    "recipes": recipes.cases,
    "records": records.cases,
    "data": damage.data_cases,
    "models": damage.model_cases,
    "folders": folders.cases,
    "runs": damage.run_cases,
    "copies": copies.cases,
    "signals": interruptions.cases,
}
SAMPLED = 4  # of every kind


def every_case() -> list[Case]:
    """Everything, in an order that stays."""
    return [case for make in KINDS.values() for case in make()]


def sample(seed: int) -> list[Case]:
    """Some of every kind."""
    return [case for make in KINDS.values() for case in shuffled(list(make()), seed)[:SAMPLED]]
