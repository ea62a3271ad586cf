"""What runs leave behind, so that it can be compared."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from burnish.checkpoint.files import read
from burnish.training.saved import in_memory
from tests.support.tiny_run import is_time_column


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """Every line of metrics.jsonl without its time columns."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not is_time_column(name)} for line in lines]


def assert_same(folder: Path, other: Path) -> None:
    """All metrics but times, and all that is saved, bit for bit."""
    assert metrics_of(folder) == metrics_of(other)
    found, expected = last_state(folder), last_state(other)
    assert [name for name in found | expected if name not in found or found[name] != expected.get(name)] == []


def last_state(folder: Path) -> dict[str, Any]:
    """The same as ``state_of``, tensors as bytes, so that bits are compared."""
    return {name: _bits(value) for name, value in state_of(folder).items()}


def state_of(folder: Path) -> dict[str, Any]:
    """Everything in the newest checkpoint by dotted names."""
    newest = max(path for path in (folder / "checkpoints").iterdir() if path.name.isdecimal())
    checkpoint = read(newest)
    return dict(_flat(in_memory(checkpoint.load(checkpoint.identity)), newest.name))


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        yield from _flat(dict(enumerate(value)), name)
    else:
        yield name, value


def _bits(value: Any) -> Any:
    return value.numpy().tobytes() if hasattr(value, "numpy") else value
