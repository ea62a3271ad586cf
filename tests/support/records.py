"""Files of records, and what a run would learn on: by the options of a command line, without a model."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from burnish.config import load
from burnish.tasks import assemble
from tests.support.tiny_run import burnish

GENERATOR, LANGUAGE = "quickstart", "vlm_quickstart"
OFFLINE = "algorithm.online=false"
ALONE = ["rewards={exact: null, format: null}", "trainer.mini_batch_size=null"]  # reward models sample nothing
SIZED = ["rollout.height=6", "rollout.width=8"]
REWARDS = {GENERATOR: ["rewards.ocr=null", "rewards.border_darkness.weight=1"], LANGUAGE: ["rewards.exact=null"]}


def write(path: Path, *records: Any) -> str:
    """A list of records, or one a line: text and bytes as they are."""
    if path.suffix == ".json":
        path.write_text(json.dumps(records))
    else:
        lines = [record if isinstance(record, str | bytes) else json.dumps(record) for record in records]
        path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines))
    return str(path)


def read(recipe: str, files: Any, *options: str) -> list[Any]:
    """Records of a run: prompts, or prompts with responses or images, as its algorithm needs them."""
    judged = [] if any(option.startswith("data.val_files") for option in options) else ["data.val_files=null"]
    given = [f"data.train_files={json.dumps(files, default=str)}", *judged]
    rewards = [] if "algorithm" in str(options) else REWARDS[recipe]  # of which none needs an answer
    return list(assemble(load(recipe, [*given, *rewards, *options])).all_records)


def questions(files: Any, *options: str) -> list[Any]:
    return read(LANGUAGE, files, *options)


def prompts(files: Any, *options: str) -> list[Any]:
    return read(GENERATOR, files, *options)


def refused(recipe: str, files: Any, *options: str) -> list[str]:
    """What is said of records that can't be read, one by one: of prompts as they are shown, of others by a run."""
    words = ["data", "show", str(files), "--recipe", recipe, *options]
    if "algorithm" in str(options):
        judged = [] if any(option.startswith("data.val_files") for option in options) else ["data.val_files=null"]
        path = f"data.train_files={json.dumps(files, default=str)}"
        words = ["train", recipe, path, *judged, *options, "output_dir=not_begun"]
    said = burnish(*words, status=2).err.partition("burnish: error: ")[2]
    first, *rest = said.rstrip("\n").split("\n")
    return [one.strip() for one in rest[:-1]] if first.endswith(" problems") else [first]


def image_file(shade: int = 200, height: int = 6, width: int = 8, form: str = "PNG") -> bytes:
    """An image of one shade, as a file."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), shade, np.uint8)).save(buffer, form)
    return buffer.getvalue()


def shade(media: Any) -> int:
    """Of an image that has one."""
    return int(np.asarray(media.image())[0, 0, 0])
