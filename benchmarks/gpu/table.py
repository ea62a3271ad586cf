"""Writes the figures of ``python -m benchmarks.gpu --output gpu.json`` into the documentation.

python -m benchmarks.gpu.table gpu.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "benchmarks" / "README.md"
BEGIN, END = "<!-- figures: python -m benchmarks.gpu.table -->", "<!-- end of figures -->"
HEAD = "| | sampled per s | of peak | learned per s | of peak | load GiB | sampling GiB | update GiB |"


def page(text: str, found: dict[str, Any]) -> str:
    """The page with other figures."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{figures(found)}\n\n{END}{after}"


def figures(found: dict[str, Any]) -> str:
    """Figures as Markdown: models, then everything else, then what was skipped or failed."""
    about, every = found["machine"], [row for rows in found["rows"].values() for row in rows]
    models = [row for row in every if "of" in row]
    blocks = [f"{about['device']} × {about['cards']}, PyTorch {about['torch']}, Python {about['python']}."]
    if models:
        lines = [HEAD, "| --- |" + " --- |" * (HEAD.count("|") - 2)]
        lines += [
            f"| {row['name']}, {row['of']} | {_of(row, 'sample')} | {_of(row, 'update')} | {_gib(row, 'load')} | "
            f"{_gib(row, 'sample')} | {_gib(row, 'update')} |"
            for row in models
        ]
        blocks.append("\n".join(lines))
    blocks += [_other(rows) for rows in found["rows"].values() if rows and "of" not in rows[0]]
    blocks += [f"{kind}: {name}: {reason}" for kind in ("skipped", "failed") for name, reason in found[kind].items()]
    return "\n\n".join(blocks)


def _of(row: dict[str, Any], phase: str) -> str:
    return f"{row[f'{phase} per s']:.3g} | {100 * row[f'{phase} share']:.0f} %"


def _gib(row: dict[str, Any], phase: str) -> str:
    forecast = row.get(f"{phase} forecast GiB")
    return f"{row[f'{phase} GiB']:.1f}" + ("" if forecast is None else f" (forecast {forecast:.1f})")


def _other(rows: list[dict[str, Any]]) -> str:
    keys = [key for key in rows[0] if key not in ("name", "seconds")]
    lines = [f"| | {' | '.join(keys)} |", "| --- |" + " --- |" * len(keys)]
    lines += [f"| {row['name']} | {' | '.join(_cell(row.get(key)) for key in keys)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="what python -m benchmarks.gpu --output wrote")
    found = json.loads(parser.parse_args().file.read_text())
    if not found["machine"]["cards"]:
        parser.error("these figures are of tiny models on a CPU; they mean nothing")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
