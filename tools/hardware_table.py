"""The table of docs/hardware.md: what every shipped recipe of a real model states about its machine.

python tools/hardware_table.py writes it anew.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from burnish.config.hardware import Hardware
from burnish.config.load import hardware_of, recipe_names

PAGE = Path(__file__).parents[1] / "docs" / "hardware.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def table() -> str:
    """Recipes of a folder that state the same share a row."""
    rows = ["| recipes | hardware | options |", "| --- | --- | --- |"]
    stated = [(name, found) for name in recipe_names() if (found := hardware_of(name)) is not None]
    for folder, group in groupby(stated, key=lambda one: one[0].partition("/")[0]):
        kinds: dict[Hardware, list[str]] = {}
        for name, hardware in group:
            kinds.setdefault(hardware, []).append(name.partition("/")[2])
        for hardware, names in sorted(kinds.items(), key=lambda one: -len(one[1])):
            shown = ", ".join(f"`{folder}/{name}`" for name in names)
            shown = f"`{folder}/*`" + (" but the next" if len(kinds) > 1 else "") if len(names) > 3 else shown
            options = " ".join(hardware.options)
            rows.append(f"| {shown} | {hardware} | {f'`{options}`' if options else ''} |")
    return "\n".join(rows)


def written(page: str) -> str:
    """The page with the table of now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
