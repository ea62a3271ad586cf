"""Small models, data and recipes that nothing is wrong with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from burnish.utils.video import encode_sound
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
KINDS: dict[str, dict[str, Any]] = {
    "prompts": {},
    "demonstrations": {"response": "yes"},
    "preferences": {"chosen": "a", "rejected": "bcd"},
    "comparisons": {"chosen": "a", "rejected": "bcd", "margin": 0.5},
    "scores": {"response": "yes", "score": 0.5},
    "steps": {"steps": ["a", "b"], "labels": [True, 0.5]},
    "judgements": {"response": "yes", "label": True},
    "heads": {"chosen": "a", "rejected": "bcd", "preference": {"truth": "tie", "style": "chosen"}},
}
# a chat template that writes all that a message can hold
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for message in messages %}"
    "<|im_start|>{{ message.role }}{{ ' ' ~ message.name if message.name }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(folder: Path) -> Place:
    """Write everything but the finished runs."""
    for name in ("pictures", "sounds"):
        (folder / name).mkdir(parents=True)
    (folder / "rewards.py").write_text(REWARDS)
    for number in range(2):
        Image.new("RGB", (16, 16), (90 * number, 60, 120)).save(folder / "pictures" / f"{number}.png")
        (folder / "pictures" / f"{number}.txt").write_text("a cat\n")
    (folder / "sounds" / "0.wav").write_bytes(encode_sound(np.zeros((1, 800), np.float32), 8000))
    for family, name in (("sd3", "pipeline"), ("qwen2_vl", "language"), ("qwen2_audio", "hearing")):
        burnish("tiny", family, folder / name)
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\n")
    _lines(folder / "prompts.jsonl", [{"prompt": "a cat", "answer": "cat"}, {"prompt": "two dogs", "answer": "2"}])
    _lines(folder / "captions.jsonl", [{"prompt": "a cat", "image": f"pictures/{i}.png"} for i in range(2)])
    for kind, more in KINDS.items():
        _lines(folder / f"{kind}-seeing.jsonl", [question | more for question in QUESTIONS])
    _lines(folder / "told-seeing.jsonl", [{"prompt": "And this?", "hint": "It is five.", "label": "sums"}])
    pair = {"prompt": "a cat", "chosen": "pictures/0.png", "rejected": "pictures/1.png"}
    _lines(folder / "pairs-seeing.jsonl", [pair])
    (folder / "turns.jinja").write_text(TEMPLATE)
    (folder / "questions.json").write_text(json.dumps(QUESTIONS))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(QUESTIONS), folder / "questions.parquet")
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
