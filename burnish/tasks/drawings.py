"""Images, clips and sounds that were drawn: as files, on a contact sheet, and in validations, whoever draws them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from burnish.metrics import diversities, group_diversity
from burnish.rl.algorithm import Metrics
from burnish.rollout.sources import Job
from burnish.tasks.evaluate import Evaluated, Evaluation, prompt_images
from burnish.types.media import evenly_spaced
from burnish.types.prompt import Prompt
from burnish.types.samples import Clip, Sample, Sound
from burnish.utils.disk import writing
from burnish.utils.images import PAPER, grid, strip, waveform
from burnish.utils.video import clip_format, encode_clip, encode_sound

STRIP = 4  # frames of a clip on a contact sheet
GLIMPSES = 8  # prompts of an update that a sample is kept of
KEPT = 512  # longest side in pixels of what is kept of a prompt's images


class DrawnEvaluation(Evaluation):
    """Shows images, clips or sounds, and a sheet of them. What metrics are made of is their structure."""

    def metrics(self, job: Job, evaluated: Evaluated) -> Metrics:
        return {"val-aux/variety": group_diversity(evaluated.known, job.group)}

    def measured(self, job: Job, evaluated: Evaluated) -> Mapping[str, Sequence[float]]:
        varied = diversities(evaluated.known, job.group)
        return {"variety": [varied.get(number, math.nan) for number in job.group.tolist()]}

    def keep(self, target: Path, job: Job, n: int, evaluated: Evaluated, shown: int) -> Sequence[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        with writing(target):
            for i, sample in enumerate(evaluated.shown[:shown]):
                group = f"{int(job.group[i]):03d}"
                if i % n == 0:
                    inputs = write_inputs(target / "pictures", f"{group}-input", job.prompts[i])
                file = write_sample(target / "pictures", f"{group}-{i % n:02d}", sample)
                records.append({"file": file} | ({"images": inputs} if inputs else {}))
            contact_sheet(evaluated.shown[:shown], job.prompts[:shown:n], n).save(target / "grid.png")
        return records

    def keep_file(self, folder: Path, job: Job, evaluated: Evaluated, row: int) -> Mapping[str, Any]:
        return {"file_name": write_sample(folder, f"{int(job.sample[row]):03d}", evaluated.shown[row])}

    def keep_of_suite(self, folder: Path, stem: str, evaluated: Evaluated, row: int) -> dict[str, Any]:
        sample = evaluated.shown[row]
        return {} if sample is None else {"file": write_sample(folder, stem, sample)}


def shades(height: int, width: int) -> np.ndarray:
    """An image of shades, uint8 [H, W, 3]: a placeholder, to try rewards with."""
    rows, columns = np.indices((height, width))
    return np.stack([rows % 256, columns % 256, (rows + columns) // 2 % 256], -1).astype(np.uint8)


def write_sample(folder: Path, stem: str, sample: Sample) -> str:
    """Write a sample; the name of its file. Sound that a format lacks lies beside it as .wav."""
    if isinstance(sample, Sound):
        (folder / f"{stem}.wav").write_bytes(encode_sound(sample.samples, sample.rate))
        return f"{stem}.wav"
    if not isinstance(sample, Clip):
        Image.fromarray(sample).save(folder / f"{stem}.png")
        return f"{stem}.png"
    sound = None if sample.sound is None else (sample.sound.samples, sample.sound.rate)
    name = f"{stem}.{clip_format()}"
    (folder / name).write_bytes(encode_clip(sample.frames, sample.fps, sound))
    if sample.sound is not None and clip_format() == "webp":
        write_sample(folder, stem, sample.sound)
    return name


def write_inputs(folder: Path, stem: str, prompt: Prompt) -> list[str]:
    """Write small copies of a prompt's images; the names of their files, in order."""
    names = []
    for what, image in prompt_images(prompt):
        image.thumbnail((KEPT, KEPT), Image.Resampling.LANCZOS)
        names.append(f"{stem}-{what}.png")
        image.save(folder / names[-1])
    return names


def contact_sheet(samples: Sequence[Sample], prompts: Sequence[Prompt], n: int) -> Image.Image:
    """``n`` samples per prompt in a row, of clips some frames; images that prompts begin from come first.

    Args:
        samples: of all prompts, those of one prompt adjacent.
        prompts: one per row.
        n: samples of a prompt.
    """
    cells, columns = [_cell(sample) for sample in samples], n
    if any(prompt.images for prompt in prompts):
        columns = n + 1
        starts = [_start(prompt, cells[0]) for prompt in prompts]
        cells = [cell for row, start in enumerate(starts) for cell in (start, *cells[row * n : (row + 1) * n])]
    across = min(len(samples[0].frames), STRIP) if isinstance(samples[0], Clip) else 1
    return grid(cells, columns=columns, labels=[prompt.text for prompt in prompts], across=across)


def _cell(sample: Sample) -> np.ndarray:
    if isinstance(sample, Clip):
        return strip([sample.frames[i] for i in evenly_spaced(len(sample.frames), STRIP)])
    return waveform(sample.samples) if isinstance(sample, Sound) else sample


def _start(prompt: Prompt, cell: np.ndarray) -> np.ndarray:
    """The image that a prompt begins from, in the size of a cell; an empty one where there is none."""
    height, width = cell.shape[:2]
    start = prompt.images[0].image() if prompt.images else Image.new("RGB", (width, height), PAPER)
    return np.asarray(ImageOps.pad(start, (width, height), color=PAPER))
