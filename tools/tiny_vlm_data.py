"""Questions about handwritten digits, the ways to answer them, and which images are held out."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from burnish.utils.random import generator, permutation

SIZE = 28  # pixels of an image's side; the scans have 8
Task = Literal["digit", "sum", "larger"]
QUESTIONS: dict[Task, str] = {
    "digit": "What digit is this?",
    "sum": "What is the sum of the two digits?",
    "larger": "Which digit is larger?",
}
SIGNS: dict[Task, str] = {"digit": "", "sum": "+", "larger": ","}  # between the digits of a thought
FREE = ("{}", "It is {}.", "The answer is {}.", "I see {} here.")
STYLES = {"reasoned": 0.35, "tagged": 0.25, "free": 0.40}  # shares of the warm-up
HELDOUT, TRAIN = 160, 320  # images; all others are the warm-up's
HELDOUT_PER_TASK, TRAIN_PER_TASK, SUPERVISED_PER_TASK = 64, 256, 64
TURNED, MOST_TURNED = 2, 75.0  # images of a scan that are turned, and by how many degrees at most to either side
GREYS = 16  # of a turned image, as its scan has
SUPERVISED = 120  # of the warm-up's images, those that ship


@cache
def scans() -> tuple[np.ndarray, np.ndarray]:
    """Scikit-learn's digits: images uint8 [1797, SIZE, SIZE], dark on white, and the digits [1797]."""
    from sklearn.datasets import load_digits

    loaded: Any = load_digits()
    grey = (255 - loaded.images * (255 / 16)).round().astype(np.uint8)
    enlarged = [Image.fromarray(scan).resize((SIZE, SIZE), Image.Resampling.BILINEAR) for scan in grey]
    return np.stack([np.asarray(image) for image in enlarged]), loaded.target


@dataclass(frozen=True)
class Split:
    """Numbers of images: no two parts share one."""

    warmup: tuple[int, ...]
    """Seen by the supervised warm-up."""
    train: tuple[int, ...]
    """Seen by reinforcement learning."""
    heldout: tuple[int, ...]
    """Seen by neither."""


def split(seed: int) -> Split:
    """Share out the images."""
    order = permutation(len(scans()[0]), seed, "digits")
    heldout, train, warmup = order[:HELDOUT], order[HELDOUT : HELDOUT + TRAIN], order[HELDOUT + TRAIN :]
    return Split(warmup=tuple(warmup), train=tuple(train), heldout=tuple(heldout))


@dataclass(frozen=True)
class Question:
    """A task about one image or two."""

    task: Task
    images: tuple[int, ...]

    @property
    def digits(self) -> list[int]:
        return [int(scans()[1][image]) for image in self.images]

    @property
    def answer(self) -> str:
        return str(sum(self.digits) if self.task == "sum" else max(self.digits))

    @property
    def prompt(self) -> str:
        """With a marker for each image, as burnish reads it."""
        return "<image>" * len(self.images) + QUESTIONS[self.task]

    def record(self) -> dict[str, Any]:
        """A line of a data file."""
        images = [f"images/{image:04d}.png" for image in self.images]
        return {"prompt": self.prompt, "images": images, "answer": self.answer, "data_source": self.task}

    def reply(self, draws: torch.Generator) -> str:
        """The right answer in a style drawn at random."""
        style = list(STYLES)[int(torch.multinomial(torch.tensor(list(STYLES.values())), 1, generator=draws))]
        if style == "free":
            return FREE[int(torch.randint(len(FREE), (), generator=draws))].format(self.answer)
        thought = SIGNS[self.task].join(map(str, self.digits))
        return (f"<think>{thought}</think>" if style == "reasoned" else "") + f"<answer>{self.answer}</answer>"


def ask(task: Task, images: Sequence[int], draws: torch.Generator) -> Question:
    """A question about images drawn at random; those to compare show different digits."""
    while True:
        chosen = torch.randint(len(images), (1 if task == "digit" else 2,), generator=draws).tolist()
        question = Question(task, tuple(images[number] for number in chosen))
        twice = len(question.images) == 2 and question.images[0] == question.images[1]
        level = task == "larger" and len(set(question.digits)) == 1
        if not twice and not level:
            return question


def questions(images: Sequence[int], per_task: int, *parts: int | str) -> list[Question]:
    """Different questions, as many of each task, mixed; they depend on ``parts`` alone."""
    found: dict[Question, None] = {}
    draws = generator(*parts)
    for number, task in enumerate(QUESTIONS, 1):
        while len(found) < number * per_task:
            found[ask(task, images, draws)] = None
    asked = list(found)
    return [asked[i] for i in permutation(len(asked), *parts, "order")]


def write_data(folder: Path, seed: int) -> None:
    """Write train.jsonl, heldout.jsonl, supervised.jsonl and the images that they name."""
    parts = split(seed)
    train = questions(parts.train, TRAIN_PER_TASK, seed, "train")
    heldout = questions(parts.heldout, HELDOUT_PER_TASK, seed, "heldout")
    shown = questions(parts.warmup[:SUPERVISED], SUPERVISED_PER_TASK, seed, "supervised")
    draws = generator(seed, "supervised", "replies")
    write_lines(folder / "train.jsonl", [question.record() for question in train])
    write_lines(folder / "heldout.jsonl", [question.record() for question in heldout])
    write_lines(
        folder / "supervised.jsonl", [question.record() | {"response": question.reply(draws)} for question in shown]
    )
    (folder / "images").mkdir(exist_ok=True)
    for image in {image for question in (*train, *heldout, *shown) for image in question.images}:
        Image.fromarray(scans()[0][image]).save(folder / "images" / f"{image:04d}.png", optimize=True)


def write_questions(folder: Path, name: str, images: Sequence[int], per_task: int) -> Path:
    """Write a file of further questions about some images, and the images."""
    asked = questions(images, per_task, 0, name)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for image in {image for question in asked for image in question.images}:
        Image.fromarray(scans()[0][image]).save(folder / "images" / f"{image:04d}.png")
    write_lines(folder / f"{name}.jsonl", [question.record() for question in asked])
    return folder / f"{name}.jsonl"


def turned(scan: int, draws: torch.Generator) -> dict[str, Any]:
    """A line of a data file: a scan that is turned by an angle drawn at random, inside the record."""
    angle = (2 * float(torch.rand((), generator=draws)) - 1) * MOST_TURNED
    rotated = Image.fromarray(scans()[0][scan]).rotate(angle, Image.Resampling.BILINEAR, fillcolor=255)
    written = io.BytesIO()
    rotated.quantize(GREYS).save(written, format="PNG", optimize=True)
    image = base64.b64encode(written.getvalue()).decode()
    question = Question("digit", (scan,))
    return {"prompt": question.prompt, "images": [image], "answer": question.answer, "data_source": "turned"}


def write_turned(folder: Path, seed: int) -> None:
    """Write turned.jsonl and turned_heldout.jsonl; the warm-up has seen some of the scans, and those upright."""
    parts = split(seed)
    for name, chosen in (("turned", (*parts.train, *parts.warmup) * TURNED), ("turned_heldout", parts.heldout)):
        order = permutation(len(chosen), seed, name)
        draws = generator(seed, name)
        write_lines(folder / f"{name}.jsonl", [turned(chosen[i], draws) for i in order])


def write_lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Write one object a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
