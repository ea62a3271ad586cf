"""The table of docs/hardware.md: what every shipped recipe of a real model states about its machine, and its forecast.

python tools/hardware_table.py writes it anew; with names of recipes, or with all, it forecasts these on what they state
first, with the largest batches that fit where they are auto: minutes of a CPU for each. It keeps the figures in
tools/hardware_needs.yaml.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from burnish.config.hardware import Hardware
from burnish.config.load import hardware_of, recipe_names
from burnish.config.yaml_text import parse

NEEDS = Path(__file__).with_name("hardware_needs.yaml")
HEAD = "# GB that a GPU needs by forecast, on what a recipe states: written by python tools/hardware_table.py RECIPE\n"
PAGE = Path(__file__).parents[1] / "docs" / "hardware.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def table() -> str:
    """Recipes of a folder that state the same share a row."""
    rows = ["| recipes | hardware | needs, GB | options |", "| --- | --- | --- | --- |"]
    known = needs()
    stated = [(name, one) for name in recipe_names() for one in hardware_of(name)]
    for folder, group in groupby(stated, key=lambda one: one[0].partition("/")[0]):
        kinds: dict[str, tuple[Hardware, list[str]]] = {}
        of_folder = list(group)
        for name, hardware in of_folder:
            kinds.setdefault(f"{hardware} {hardware.options}", (hardware, []))[1].append(name.partition("/")[2])
        for hardware, names in sorted(kinds.values(), key=lambda one: -len(one[1])):
            shown = ", ".join(f"`{folder}/{name}`" for name in names)
            if len(names) > 3:
                shown = f"`{folder}/*`" + (" but the next" if len(names) < len(dict(of_folder)) else "")
            options = " ".join(hardware.options_for())
            figures = [known[full] for name in names if (full := key(f"{folder}/{name}", hardware)) in known]
            between = "–".join(dict.fromkeys(f"{one:.0f}" for one in (min(figures), max(figures)))) if figures else ""
            between += f" ({len(figures)} of {len(names)})" if 0 < len(figures) < len(names) else ""
            rows.append(f"| {shown} | {hardware} | {between} | {f'`{options}`' if options else ''} |")
    return "\n".join(rows)


def needs() -> dict[str, float]:
    """GB that a GPU needs by forecast, of the recipes that were forecast."""
    found: dict[str, float] = parse(NEEDS.read_text(encoding="utf-8"))
    return found


def forecast_recipes(names: Sequence[str]) -> None:
    """Forecast recipes on what they state, and keep what they need."""
    from burnish.config.batches import smallest, with_sizes, written
    from burnish.config.load import load
    from burnish.plan.advice import choose
    from burnish.plan.forecast import forecast

    for name in names:
        assert hardware_of(name), f"{name} states no hardware"
        for hardware in hardware_of(name):
            config = load(name, [f"gpus={hardware.gpus}", f"memory={hardware.memory_gb:g}GB"])
            chosen = choose(config, forecast(with_sizes(config, smallest(config))), hardware.bytes)
            needed = chosen.forecast.needs_of(hardware.bytes) / 1e9
            print(f"{name}: {needed:.1f} GB of {hardware} {' '.join(written(chosen.sizes))}", flush=True)
            kept = needs() | {key(name, hardware): round(needed, 1)}
            lines = "".join(f"{one}: {figure}\n" for one, figure in sorted(kept.items()))
            NEEDS.write_text(HEAD + lines, encoding="utf-8")


def key(name: str, hardware: Hardware) -> str:
    """Of a recipe's figure: its name, and the hardware where the recipe states several."""
    return name if hardware == hardware_of(name)[0] else f"{name} {hardware.gpus}x{hardware.memory_gb:g}"


def written(page: str) -> str:
    """The page with the table of now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    given = sys.argv[1:]
    forecast_recipes([name for name in recipe_names() if hardware_of(name)] if given == ["all"] else given)
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
