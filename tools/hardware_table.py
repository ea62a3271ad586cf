"""The tables of docs/hardware.md: what shipped recipes of real models state about their machine, and their forecasts.

    python tools/hardware_table.py                     # write them anew
    python tools/hardware_table.py all                 # first forecast what recipes need at least: all, or some by name
    python tools/hardware_table.py fills RECIPE ...    # first forecast what auto takes on the stated hardware, too

A forecast takes up to half a minute of a CPU, what auto takes some of them. tools/hardware_needs.yaml keeps figures.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from contextlib import chdir, closing
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from burnish.config.batches import smallest, written
from burnish.config.hardware import Hardware
from burnish.config.load import hardware_of, load, recipe_names
from burnish.config.yaml_text import parse

NEEDS = Path(__file__).absolute().with_name("hardware_needs.yaml")
HEAD = "# GB that a GPU needs by forecast, with the smallest batches or those named: by tools/hardware_table.py\n"
PAGE = Path(__file__).absolute().parents[1] / "docs" / "hardware.md"
# what some recipes leave to the user
REWARDS = "".join(f"def {name}(*_):\n    return []\n" for name in ("edit_score", "geneval", "geneval2", "hpsv3"))
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


def filled() -> str:
    """What auto takes on the hardware that a recipe states, of the recipes that were forecast so."""
    rows = ["| recipe | hardware | `auto` takes | needs, GB |", "| --- | --- | --- | --- |"]
    rows += [
        f"| `{name}` | {hardware} | `{' '.join(options)}` | {needs()[key(name, hardware, options)]:.0f} |"
        for name, hardware, options in stated()
        if options
    ]
    return "\n".join(rows)


def filling() -> dict[str, list[str]]:
    """What auto takes, by the key of a recipe on its hardware."""
    found = (re.fullmatch(r"(.*?) (\w+\.\w+=.*)", known) for known in needs())
    return {match[1]: match[2].split() for match in found if match}


def stated() -> Iterator[tuple[str, Hardware, list[str]]]:
    """Recipes with each hardware that they state: with no options, and with what auto takes there, if that is known."""
    known = filling()
    for name in recipe_names():
        for hardware in hardware_of(name):
            yield name, hardware, []
            if options := known.get(key(name, hardware)):
                yield name, hardware, options


def machine(hardware: Hardware) -> list[str]:
    """The words of a command line that ask for it."""
    return [f"gpus={hardware.gpus}", f"memory={hardware.memory_gb:g}GB"]


def forecast_recipe(name: str, hardware: Hardware, *, fills: bool) -> None:
    """Forecast a recipe on what it states, and keep what it needs."""
    from burnish.plan.advice import choose
    from burnish.plan.forecast import Forecasts

    config, known = load(name, machine(hardware)), needs()
    with closing(Forecasts(config)) as forecasts:
        figures = {key(name, hardware): forecasts(smallest(config))}
        if fills:
            known.pop(key(name, hardware, filling().get(key(name, hardware), ())), None)
            chosen = choose(forecasts, hardware.bytes)
            figures[key(name, hardware, written(chosen.sizes))] = chosen.forecast
    for full, figure in figures.items():
        known[full] = round(figure.needs_of(hardware.bytes) / 1e9, 1)
        print(f"{full}: {known[full]} GB", flush=True)
    lines = "".join(f"{full}: {figure}\n" for full, figure in sorted(known.items()))
    NEEDS.write_text(HEAD + lines, encoding="utf-8")


def key(name: str, hardware: Hardware, options: Sequence[str] = ()) -> str:
    """Of a recipe's figure: its name, the hardware where the recipe states several, and options beside."""
    further = [] if hardware == hardware_of(name)[0] else [f"{hardware.gpus}x{hardware.memory_gb:g}"]
    return " ".join([name, *further, *options])


def updated(page: str) -> str:
    """The page with the tables of now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n\n{filled()}\n{END}{after}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help="all, or some; behind fills what auto takes, too")
    given = parser.parse_args().recipes
    fills = given[:1] == ["fills"]
    given = given[fills:]
    with TemporaryDirectory() as folder, chdir(folder):
        Path("rewards.py").write_text(REWARDS)
        for recipe in [name for name in recipe_names() if hardware_of(name)] if given == ["all"] else given:
            assert hardware_of(recipe), f"{recipe} states no hardware"
            for hardware in hardware_of(recipe):
                forecast_recipe(recipe, hardware, fills=fills)
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
