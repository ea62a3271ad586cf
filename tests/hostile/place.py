"""Small models, data and recipes that nothing is wrong with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from burnish.models.tiny import describe_language
from burnish.models.tiny.language.build import write
from burnish.utils.video import encode_sound
from tests.hostile.cases import Place
from tests.hostile.dialogues import TEMPLATE
from tests.support.factory import tiny_pipeline
from tests.support.tiny_language import picture, tiny_language

REWARDS = """\
def brightness(images, prompts):
    return [float(image.mean()) / 255 for image in images]


def odd(responses, prompts):
    return [sum(map(ord, one.text)) % 11 / 10 for one in responses]
"""
SHARED: dict[str, Any] = {
    "optimizer": {"lr": 1e-3},
    "scoring": {"processes": 0},
    "validation": {"every": 0, "n": 1, "max_prompts": 1},
    "checkpoint": {"every": 1},
    "steps": 1,
    "output_dir": "run",
}


def build(folder: Path) -> Place:
    """Write everything but the finished runs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "pictures").mkdir()
    for number in range(2):
        picture(number, 8, 8).save(folder / "pictures" / f"{number}.png")
        (folder / "pictures" / f"{number}.txt").write_text("a cat\n")
    (folder / "sounds").mkdir()
    (folder / "sounds" / "0.wav").write_bytes(encode_sound(np.zeros((1, 800), np.float32), 8000))
    _drawing(folder)
    _seeing(folder)
    return Place(folder)


def _drawing(folder: Path) -> None:
    tiny_pipeline(folder, vae=False)
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\n")
    _lines(folder / "prompts.jsonl", [{"prompt": "a cat", "answer": "cat"}, {"prompt": "two dogs", "answer": "2"}])
    _lines(folder / "captions.jsonl", [{"prompt": "a cat", "image": f"pictures/{i}.png"} for i in range(2)])
    recipe = {
        "model": {"path": str(folder / "pipeline"), "device": "cpu", "lora": {"rank": 2}},
        "data": {"train_files": str(folder / "prompts.jsonl"), "train_batch_size": 2},
        "algorithm": {"name": "flow_grpo"},
        "rewards": {"brightness": {"name": "function", "path": f"{folder / 'rewards.py'}:brightness"}},
        "rollout": {"n": 4, "num_inference_steps": 3, "height": 8, "width": 8, "max_sequence_length": 12},
    }
    (folder / "drawing.yaml").write_text(json.dumps(recipe | SHARED, indent=1))


def _seeing(folder: Path) -> None:
    tiny_language(folder / "language", "qwen2_vl")
    write(describe_language("qwen2_audio"), folder / "hearing", 0)
    questions: list[dict[str, Any]] = [
        {"prompt": "<image>What?", "images": ["pictures/0.png"], "answer": "4"},
        {"prompt": "And this?", "answer": "5"},
    ]
    kinds: dict[str, dict[str, Any]] = {
        "prompts": {},
        "demonstrations": {"response": "yes"},
        "preferences": {"chosen": "a", "rejected": "bcd"},
        "comparisons": {"chosen": "a", "rejected": "bcd", "margin": 0.5},
        "scores": {"response": "yes", "score": 0.5},
        "steps": {"steps": ["a", "b"], "labels": [True, 0.5]},
        "judgements": {"response": "yes", "label": True},
        "heads": {"chosen": "a", "rejected": "bcd", "preference": {"truth": "tie", "style": "chosen"}},
    }
    for kind, more in kinds.items():
        _lines(folder / f"{kind}-seeing.jsonl", [question | more for question in questions])
    _lines(folder / "told-seeing.jsonl", [{"prompt": "And this?", "hint": "It is five.", "label": "sums"}])
    _lines(folder / "pairs-seeing.jsonl", [{"prompt": "a cat"} | {
        name: f"pictures/{i}.png" for i, name in enumerate(("chosen", "rejected"))
    }])  # fmt: skip
    (folder / "turns.jinja").write_text(TEMPLATE)
    (folder / "questions.json").write_text(json.dumps(questions))
    _table(folder / "questions.parquet", questions)
    recipe = {
        "task": "image-text-to-text",
        "model": {"path": str(folder / "language"), "device": "cpu"},
        "data": {"train_files": str(folder / "prompts-seeing.jsonl"), "train_batch_size": 2},
        "algorithm": {"name": "grpo"},
        "rewards": {"odd": {"name": "function", "path": f"{folder / 'rewards.py'}:odd"}},
        "rollout": {"n": 2, "max_new_tokens": 3},
    }
    (folder / "seeing.yaml").write_text(json.dumps(recipe | SHARED, indent=1))


def _lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _table(path: Path, records: list[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
