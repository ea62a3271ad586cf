"""Recipes for tiny models, and the files that they name: prompts, pictures, responses and rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from burnish.models.tiny.language.build import write
from tests.support.tiny_language import FAMILIES, SEEING, picture, tiny_language
from tests.support.universal import TINY

REWARDS = """
def brightness(images, prompts):
    return [float(image.mean()) for image in images]


def left(images, prompts):
    return [float(image[:, : image.shape[1] // 2].mean()) for image in images]


def odd(responses, prompts):
    return [sum(map(ord, one.text)) % 11 / 10 for one in responses]
"""


def write_rewards(folder: Path) -> None:
    (folder / "rewards.py").write_text(REWARDS)


def reward(folder: Path, name: str) -> dict[str, str]:
    return {"name": "function", "path": f"{folder / 'rewards.py'}:{name}"}


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_recipe(path: Path, tree: dict[str, Any]) -> Path:
    path.write_text(json.dumps(tree))
    return path


def flow_recipe(folder: Path, family: str, *, side: int = 8) -> dict[str, Any]:
    """Of a generator in the folder: the brightness of pictures of two prompts, drawn in three steps."""
    return {
        "model": {"path": str(folder / family / "pipeline"), "lora": {"rank": 2}},
        "data": {"train_files": str(folder / "prompts.txt"), "train_batch_size": 2},
        "rewards": {"brightness": reward(folder, "brightness")},
        "rollout": {"n": 4, "num_inference_steps": 3, "height": side, "width": side, "max_sequence_length": 12},
        "optimizer": {"lr": 1e-2},
        "scoring": {"processes": 0},
        "steps": 2,
        "output_dir": str(folder / "run"),
    }


def language_recipe(folder: Path, family: str) -> dict[str, Any]:
    """Of a language model in the folder: a number that hangs on the letters of responses of five tokens."""
    return {
        "task": "image-text-to-text",
        "model": {"path": str(folder / family), "lora": {"rank": 2}},
        "data": {"train_files": str(folder / f"{family}-prompts.jsonl"), "train_batch_size": 2},
        "rewards": {"odd": reward(folder, "odd")},
        "rollout": {"n": 4, "max_new_tokens": 5},
        "optimizer": {"lr": 1e-2},
        "scoring": {"processes": 0},
        "steps": 2,
        "output_dir": str(folder / "run"),
    }


def write_language_models(folder: Path, families: list[str]) -> None:
    """Models, rewards, and questions with one picture, with none and with two, and responses of every kind."""
    write_rewards(folder)
    for number in range(2):
        picture(number).save(folder / f"{number}.png")
    for family in families:
        if family in FAMILIES:
            tiny_language(folder / family, family)
        else:
            write(TINY[family], folder / family, seed=0)
        _write_records(folder, family)


def _write_records(folder: Path, family: str) -> None:
    sees = family in SEEING or (family not in FAMILIES and "image" in TINY[family].reads)
    shown = [["0.png"], [], ["1.png", "0.png"]] if sees else [[], [], []]
    lines = [
        {"prompt": "<image>" * len(images) + f"No. {number}?", "answer": str(number), "images": images}
        for number, images in enumerate(shown)
    ]
    kinds: dict[str, list[dict[str, Any]]] = {
        "prompts": [{}],
        "demonstrations": [{"response": "yes"}],
        "preferences": [{"chosen": "a", "rejected": "bcd"}],
        "judgements": [{"response": "yes", "label": True}, {"response": "no", "label": False}],
        "comparisons": [{"chosen": "a", "rejected": "bcd", "margin": 0.5}],
        "scores": [{"response": "yes", "score": 1}, {"response": "no", "score": 0}],
        "steps": [{"steps": ["a", "b"], "labels": [True, False]}],
    }
    for kind, more in kinds.items():
        write_lines(folder / f"{family}-{kind}.jsonl", [line | one for line in lines for one in more])
