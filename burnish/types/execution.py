"""How rewards were computed: what failed, was tried again or left out, and how long it took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# of a sample and a reward, as the sum of those that hold
FAILED = 1  # it raised, its process died, or it was late
RETRIED = 2  # it failed and was asked again
TIMED_OUT = 4
REPEATED = 8  # the sample was scored once, together with an equal one
OUTCOMES = {"failed": FAILED, "retried": RETRIED, "timed_out": TIMED_OUT, "repeated": REPEATED}
DROPS = 16  # it has no value, and its group is to be left out

Ran = tuple[float, int]  # seconds from request to score, and which of the above hold

PERCENTILES = {"p50": 0.5, "p95": 0.95, "max": 1.0}


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Of a reward and some samples."""

    failed: int = 0
    retried: int = 0
    timed_out: int = 0
    repeated: int = 0
    dropped: int = 0
    seconds: tuple[float, ...] = ()  # one per sample that it was asked about

    def __add__(self, other: Execution) -> Execution:
        return Execution(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def metrics(self, label: str) -> dict[str, float]:
        """By name."""
        counts = {f"reward/{label}/{name}": float(getattr(self, name)) for name in (*OUTCOMES, "dropped")}
        ordered, last = sorted(self.seconds), len(self.seconds) - 1
        late = {name: ordered[round(share * last)] for name, share in PERCENTILES.items() if ordered}
        return counts | {f"reward/{label}/latency_s/{name}": value for name, value in late.items()}


def execution_of(rows: Sequence[Mapping[str, Ran]], dropped: Sequence[bool]) -> dict[str, Execution]:
    """Of the samples of a batch, by reward; ``dropped`` are those that were left out with their group."""
    samples: dict[str, list[tuple[float, int, bool]]] = {}
    for row, left_out in zip(rows, dropped, strict=True):
        for label, (seconds, outcome) in row.items():
            samples.setdefault(label, []).append((seconds, outcome, left_out))
    return {
        label: Execution(
            dropped=sum(left_out for _, _, left_out in own),
            seconds=tuple(seconds for seconds, _, _ in own),
            **{name: sum(bool(outcome & flag) for _, outcome, _ in own) for name, flag in OUTCOMES.items()},
        )
        for label, own in samples.items()
    }


def joined(parts: Iterable[Mapping[str, Execution]]) -> dict[str, Execution]:
    """Of several batches."""
    whole: dict[str, Execution] = {}
    for part in parts:
        for label, execution in part.items():
            whole[label] = whole.get(label, Execution()) + execution
    return whole
