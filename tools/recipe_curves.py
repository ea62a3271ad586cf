"""Draws what runs of a recipe measured, for the gallery of recipes: docs/images/recipes/NAME.svg.

    burnish train quickstart --sweep seed=0,1,2 output_dir=runs/seeds
    python tools/recipe_curves.py quickstart runs/seeds/seed=0 runs/seeds/seed=1 runs/seeds/seed=2

Of each run: the reward of held-out prompts at every validation, and that of the training samples at every update.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "images" / "recipes"
TRAINING = "critic/rewards/mean"
# legible on a white page and on a dark one
INK, HELD_OUT, TRAINED = "#808080", "#2f81d6", "#c98500"

Points = list[tuple[int, float]]


def measured(run: Path) -> tuple[Points, Points]:
    """Rewards of held-out prompts (a mean over data sources) and of training samples, by update."""
    held_out, training = [], []
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        update = int(row["training/global_step"])
        found = [value for name, value in row.items() if name.startswith("val-core/") and "/reward/mean@" in name]
        if found:
            held_out.append((update, sum(found) / len(found)))
        if TRAINING in row:
            training.append((update, row[TRAINING]))
    return held_out, training


def draw(recipe: str, runs: list[Path]) -> Path:
    """Write the image of a recipe's runs."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {
        "svg.hashsalt": recipe, "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK,
        "ytick.color": INK, "font.size": 9,
    }  # fmt: skip
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(4.8, 2.2), layout="constrained")
    for number, run in enumerate(runs):
        held_out, training = measured(run)
        axes.plot(*zip(*training, strict=True), color=TRAINED, linewidth=0.8, label=_once("training samples", number))
        axes.plot(
            *zip(*held_out, strict=True), color=HELD_OUT, linewidth=2, marker="o", markersize=4,
            label=_once("held-out prompts", number),
        )  # fmt: skip
    axes.set(xlabel="updates", ylabel="reward")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{recipe.replace('/', '_')}.svg"
    figure.savefig(path, transparent=True, metadata={"Date": None})
    pyplot.close(figure)
    return path


def _once(label: str, number: int) -> str:
    return label if number == 0 else "_nolegend_"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs, a seed each")
    given = parser.parse_args()
    print(draw(given.recipe, given.runs))
