"""Small models, data and recipes that nothing is wrong with."""

import json
from pathlib import Path
from typing import Any

from PIL import Image

from tests.hostile.bench import Place
from tests.support.tiny_run import REWARDS, burnish

SHARED: dict[str, Any] = {
    "optimizer": {"lr": 1e-3}, "scoring": {"processes": 0}, "validation": {"every": 0, "n": 1, "max_prompts": 1},
    "checkpoint": {"every": 1}, "steps": 1, "output_dir": "run",
}  # fmt: skip
QUESTIONS: list[dict[str, Any]] = [
    {"prompt": "<image>What?", "images": ["pictures/0.png"], "answer": "4"},
    {"prompt": "And this?", "answer": "5"},
]


def build(folder: Path) -> Place:
    """Write everything but the finished runs."""
    (folder / "pictures").mkdir(parents=True)
    (folder / "rewards.py").write_text(REWARDS)
    for number in range(2):
        Image.new("RGB", (16, 16), (90 * number, 60, 120)).save(folder / "pictures" / f"{number}.png")
    for family, name in (("sd3", "pipeline"), ("qwen2_vl", "language")):
        burnish("tiny", family, folder / name)
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\n")
    _lines(folder / "prompts.jsonl", [{"prompt": "a cat", "answer": "cat"}, {"prompt": "two dogs", "answer": "2"}])
    _lines(folder / "prompts-seeing.jsonl", QUESTIONS)
    _recipe(folder, "drawing", {
        "model": {"path": str(folder / "pipeline"), "lora": {"rank": 2}},
        "data": {"train_files": str(folder / "prompts.jsonl")}, "algorithm": {"name": "flow_grpo"},
        "rewards": {"brightness": {"name": "function", "path": f"{folder / 'rewards.py'}:brightness"}},
        "rollout": {"n": 4, "num_inference_steps": 3, "height": 16, "width": 16, "max_sequence_length": 12},
    })  # fmt: skip
    _recipe(folder, "seeing", {
        "task": "image-text-to-text", "model": {"path": str(folder / "language")},
        "data": {"train_files": str(folder / "prompts-seeing.jsonl")}, "algorithm": {"name": "grpo"},
        "rewards": {"odd": {"name": "function", "path": f"{folder / 'rewards.py'}:odd"}},
        "rollout": {"n": 2, "max_new_tokens": 3},
    })  # fmt: skip
    return Place(folder)


def _recipe(folder: Path, task: str, tree: dict[str, Any]) -> None:
    tree["model"]["device"] = "cpu"
    tree["data"]["train_batch_size"] = 2
    (folder / f"{task}.yaml").write_text(json.dumps(tree | SHARED, indent=1))


def _lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
