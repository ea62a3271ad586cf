"""Pictures of a model card: the curves of validations, and samples before and after training."""

from __future__ import annotations

import io
import itertools
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageSequence

from burnish.config.run_folder import RunFolder
from burnish.report.curves import VALIDATION, charts
from burnish.report.media import FRAMES, UNREADABLE, values_of
from burnish.report.samples import Sample, Samples
from burnish.report.summary import Summary
from burnish.types.media import evenly_spaced
from burnish.utils.images import RIGHT, WRONG, grid, strip, waveform
from burnish.utils.video import read_clip

CHARTS = 4  # the reward and the first measures beside it
PROMPTS, EACH = 6, 3  # rows of a sheet, and samples of each side of a row
CLIPS, STRIP = (".mp4", ".webp"), 3  # frames of a clip, of which one is shown on a side
LABEL = 200  # characters of a prompt beside its row
INK, GREY = "#222222", "#9a9a9a"


def curves(folder: RunFolder, run: Summary) -> bytes | None:
    """A PNG file of the reward and other measures over the updates; None before there are two points."""
    found = [chart for chart in charts(folder, run)["charts"] if chart["part"] == VALIDATION][:CHARTS]
    found = [chart for chart in found if any(len(line["x"]) > 1 for line in chart["series"])]
    if not found:
        return None
    from matplotlib.figure import Figure

    columns = min(2, len(found))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(4.6 * columns, 2.9 * rows), dpi=130, layout="constrained")
    for number, chart in enumerate(found):
        _draw(figure.add_subplot(rows, columns, number + 1), chart)
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _draw(axes: Any, chart: dict[str, Any]) -> None:
    """One chart: training is grey, validation blue with its band, the untrained model with guidance a dashed line."""
    from matplotlib.ticker import MaxNLocator

    factor = 100 if chart.get("percent") else 1
    colours = {"validation": tuple(value / 255 for value in RIGHT), "training": GREY}
    for line in chart["series"]:
        known = [i for i, y in enumerate(line["y"]) if y is not None]
        x = [line["x"][i] for i in known]
        y = [line["y"][i] * factor for i in known]
        validation = line["style"] == "validation"
        axes.plot(
            x, y, color=colours.get(line["style"], GREY), linewidth=1.8 if validation else 1, label=line["name"],
            marker="o" if validation else None, markersize=3.5, zorder=3 if validation else 2,
        )  # fmt: skip
        sides = [(line["low"][i], line["high"][i]) for i in known] if "low" in line else []
        if sides and all(low is not None and high is not None for low, high in sides):
            low, high = ([side * factor for side in one] for one in zip(*sides, strict=True))
            axes.fill_between(x, low, high, color=colours.get(line["style"], GREY), alpha=0.18, linewidth=0)
    reference = chart.get("reference")
    if reference is not None:
        colour = tuple(value / 255 for value in WRONG)
        axes.axhline(reference["y"] * factor, color=colour, linewidth=1, linestyle="--", label=reference["name"])
    axes.set_title(chart["title"] + (" (%)" if factor == 100 else ""), fontsize=10, color=INK, parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("policy updates", fontsize=8, color=INK)
    axes.tick_params(labelsize=8, colors=INK)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(fontsize=7, frameon=False, labelcolor=INK)


def sheet(before: Samples, after: Samples) -> bytes | None:
    """A JPEG file of samples of the same prompts with the same noise; None if too few can be read.

    Args:
        before: samples of the untrained model, on the left.
        after: those of the trained one, on the right.
    """
    cells: list[np.ndarray] = []
    labels: list[str] = []
    verdicts: list[bool | None] = []
    columns = across = 0
    for index in sorted({index for index, _ in after})[:PROMPTS]:
        sides = [_of(side, index) for side in (before, after)]
        across = STRIP if sides[1][0].picture.suffix in CLIPS else 1
        sides = [side[: EACH if across == 1 else 1] for side in sides]
        drawn = [[still(one.picture) for one in side] for side in sides]
        begun = [still(path) for path in sides[1][0].shown[:1]]
        row = [*begun, *drawn[0], *drawn[1]]
        if not drawn[0] or any(one is None for one in row) or (columns and len(row) != columns):
            continue
        columns = len(row)
        cells += [one for one in row if one is not None]
        labels.append(sides[1][0].prompt[:LABEL])
        verdicts += [None] * len(begun) + [one.exact for side in sides for one in side]
    if not cells:
        return None
    file = io.BytesIO()
    grid(cells, columns, labels, verdicts, across=across).save(file, format="JPEG", quality=90)
    return file.getvalue()


def _of(samples: Samples, index: int) -> list[Sample]:
    return [one for (number, _), one in sorted(samples.items()) if number == index]


def still(path: Path) -> np.ndarray | None:
    """A sample as one picture, uint8 [H, W, 3]: some frames of a clip, a sound over time; None if it can't be read."""
    try:
        match path.suffix:
            case ".mp4":
                return _frames(list(read_clip(path.read_bytes(), FRAMES)[0]))
            case ".webp":
                with Image.open(path, formats=["WEBP"]) as image:
                    frames = itertools.islice(ImageSequence.Iterator(image), FRAMES)
                    return _frames([np.asarray(frame.convert("RGB")) for frame in frames])
            case ".wav":
                with wave.open(str(path)) as file:
                    return waveform(values_of(file).T)
        with Image.open(path, formats=["PNG"]) as image:
            return np.asarray(image.convert("RGB"))
    except UNREADABLE:
        return None


def _frames(frames: Sequence[np.ndarray]) -> np.ndarray:
    return strip([frames[i] for i in evenly_spaced(len(frames), STRIP)])


def png(path: Path) -> bytes | None:
    """A picture of a prompt as a small PNG file; None if it can't be read."""
    picture = still(path)
    if picture is None:
        return None
    image = Image.fromarray(picture)
    image.thumbnail((256, 256))
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return file.getvalue()
