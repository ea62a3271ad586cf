"""What was drawn: what rewards ask for of it, and its files, with what it was drawn from."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from burnish.tasks.evaluate import prompt_pictures
from burnish.tasks.job import Job
from burnish.types.clips import Clip, Sample, Sound
from burnish.types.media import evenly_spaced
from burnish.types.prompt import Prompt
from burnish.types.rollout import Denoising
from burnish.utils.images import PAPER, grid, strip, waveform
from burnish.utils.video import clip_format, encode_clip, encode_sound

STRIP = 4  # frames of a clip on a contact sheet
GLIMPSES, GLIMPSE = 8, 128  # prompts of an update that a sample is kept of, and its longest side in pixels
KEPT = 512  # longest side in pixels of what is kept of a prompt's pictures


def inputs_of(trace: Denoising, asked: Collection[str]) -> dict[str, list[Any]]:
    """What rewards ask for besides what was drawn, by name, of each sample; nothing else leaves the GPU."""
    inputs: dict[str, list[Any]] = {}
    if "latents" in asked:
        inputs["latents"] = list(trace.latents.float().cpu().numpy())
    return inputs


def glimpses(job: Job, rows: slice, samples: Sequence[Sample]) -> list[bytes]:
    """Small PNG files of some rows of a job: of the first sample of each of the first prompts. A sound has none."""
    found = []
    for row, sample in zip(range(rows.start, rows.stop), samples, strict=True):
        group = int(job.group[row])
        first = row == 0 or int(job.group[row - 1]) != group
        if not first or group >= GLIMPSES or isinstance(sample, Sound):
            continue
        picture = Image.fromarray(sample.frames[len(sample.frames) // 2] if isinstance(sample, Clip) else sample)
        picture.thumbnail((GLIMPSE, GLIMPSE))
        file = io.BytesIO()
        picture.save(file, format="PNG")
        found.append(file.getvalue())
    return found


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
    """Write small copies of a prompt's pictures; the names of their files, in order."""
    names = []
    for what, picture in prompt_pictures(prompt):
        picture.thumbnail((KEPT, KEPT), Image.Resampling.LANCZOS)
        names.append(f"{stem}-{what}.png")
        picture.save(folder / names[-1])
    return names


def contact_sheet(samples: Sequence[Sample], prompts: Sequence[Prompt], n: int) -> Image.Image:
    """``n`` samples per prompt in a row, of clips some frames; pictures that prompts begin from come first.

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
    """The picture that a prompt begins from, in the size of a cell; an empty one where there is none."""
    height, width = cell.shape[:2]
    start = prompt.images[0].image() if prompt.images else Image.new("RGB", (width, height), PAPER)
    return np.asarray(ImageOps.pad(start, (width, height), color=PAPER))
