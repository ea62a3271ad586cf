"""Writes the figures of ``python -m benchmarks.gpu --output gpu.json`` into the documentation.

python -m benchmarks.gpu.table gpu.json
"""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "benchmarks" / "README.md"
BEGIN, END = "<!-- figures: python -m benchmarks.gpu.table -->", "<!-- end of figures -->"
HEADS = {"s planned": "plan", "GB planned": "plan", "bound planned": "plan", "planned": "plan", "name": ""}
SHARES = ("busy", "of peak")
CARDS = (24, 48, 80, 141, 192)  # GB of memory, as they are sold
OVERHEAD, FRAGMENTS = 1.6, 1.05  # what a GPU needs beside the tensors, as the forecast has it
Row = dict[str, Any]


def page(text: str, found: dict[str, Any]) -> str:
    """The page with other figures."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{figures(found)}\n\n{END}{after}"


def figures(found: dict[str, Any]) -> str:
    """Figures as Markdown: a table for rows of the same kind, then what was skipped or failed, with reasons."""
    about = found["machine"]
    blocks = [
        f"{about['device']} × {about['cards']} ({about['memory']:.0f} GB each), PyTorch {about['torch']}, Python "
        f"{about['python']}."
        if about["cards"]
        else f"Without a GPU ({about['device']}): tiny models and two processes, so these figures mean nothing."
    ]
    every = [row for rows in found["rows"].values() for row in rows]
    blocks += [_table(list(rows)) for _, rows in groupby(every, key=_kind)]
    blocks += [_profile(rows, about["cards"]) for rows in found["rows"].values() if rows and rows[0].get("own sizes")]
    blocks += [f"{kind}: {name}: {reason}" for kind in ("skipped", "failed") for name, reason in found[kind].items()]
    return "\n\n".join(blocks)


def _profile(rows: list[Row], cards: int) -> str:
    """The hardware that a recipe may state, from what its run took."""
    peak, plan = (max(row.get(name) or 0.0 for row in rows) for name in ("GB", "GB planned"))
    memory = next((size for size in CARDS if size >= peak * FRAGMENTS + OVERHEAD), CARDS[-1])
    return (
        f"`{rows[0]['recipe']}`: `hardware: {{gpus: {cards or 2}, memory_gb: {memory}}}` by {peak:.3g} GB of tensors; "
        f"the forecast has {plan:.3g} GB."
    )


COLUMNS = (
    "name", "phase", "per s", "unit", "of peak", "s", "s planned", "bound", "bound planned", "busy", "GB", "GB planned",
    "/dev/shm GB",
)  # fmt: skip


def _kind(row: Row) -> Any:
    """Rows of runs have the same columns, whichever of them are known."""
    return COLUMNS if "phase" in row else tuple(row)


def _table(rows: list[Row]) -> str:
    keys = [key for key in _kind(rows[0]) if any(row.get(key) is not None for row in rows)]
    lines = [[HEADS.get(key, key) for key in keys], ["---"] * len(keys)]
    lines += [[_cell(key, row.get(key)) for key in keys] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(key: str, value: Any) -> str:
    if key in SHARES and value is not None:
        return f"{100 * value:.0f} %"
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="what python -m benchmarks.gpu --output wrote")
    found = json.loads(parser.parse_args().file.read_text())
    if not found["machine"]["cards"]:
        parser.error("these figures are of tiny models on a CPU; they mean nothing")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
