"""Draws a run's held-out images before and after training side by side: the image of the README."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from burnish.config.run_folder import RunFolder
from burnish.utils.images import BLUE, VERMILION, grid

FRAME = 3  # pixels


def main() -> None:
    """Read two validations of a run and write one image."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="folder of a finished run")
    parser.add_argument("output", help="image to write")
    parser.add_argument("--prompts", type=int, default=6, help="rows (%(default)s)")
    parser.add_argument("--samples", type=int, default=4, help="images of each side in a row (%(default)s)")
    arguments = parser.parse_args()
    folder = RunFolder(arguments.run)
    judged = [folder.validation(update) for update in folder.validations()]
    before, after = (_read(path, arguments.samples) for path in (judged[0], judged[-1]))
    images, labels = [], []
    for index in list(before)[: arguments.prompts]:
        both = before[index] + after[index]
        images += [_framed(image, right) for image, right, _ in both]
        labels.append(before[index][0][2])
    Path(arguments.output).parent.mkdir(parents=True, exist_ok=True)
    grid(images, 2 * arguments.samples, labels).save(arguments.output, optimize=True)


def _framed(image: np.ndarray, right: bool) -> np.ndarray:
    """With a blue frame for True, and a vermilion one for False: distinguishable with any colour vision."""
    return np.asarray(ImageOps.expand(Image.fromarray(image), FRAME, BLUE if right else VERMILION))


def _read(validation: Path, samples: int) -> dict[int, list[tuple[np.ndarray, bool, str]]]:
    """Images by prompt, each with whether it was read exactly right, and its prompt."""
    rows: dict[int, list[tuple[np.ndarray, bool, str]]] = {}
    for line in (validation / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        if sample["sample"] < samples:
            file = validation / "pictures" / f"{sample['index']:03d}-{sample['sample']:02d}.png"
            entry = (np.asarray(Image.open(file)), sample["note"] == sample["answer"], sample["prompt"])
            rows.setdefault(sample["index"], []).append(entry)
    return rows


if __name__ == "__main__":
    main()
