"""Recipes that would run, and beside them files that would not."""

import json
import shutil
from pathlib import Path
from typing import Any

from PIL import Image

from burnish.cli import main

QUESTION = {"prompt": "What?", "answer": "4"}


def generator(folder: Path) -> Path:
    """A recipe of a tiny Stable Diffusion 3."""
    assert main(["tiny", "sd3", str(folder / "sd3")]) == 0
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\n")
    (folder / "empty.txt").write_text("\n\n")
    (folder / "broken.jsonl").write_text('{"prompt": "a cat"}\n{"prompt": "two dogs"}\n{"prompt": "three\n')
    (folder / "keyless.jsonl").write_text('{"prompt": "a cat"}\n{"caption_": "two dogs"}\n')
    (folder / "latin.txt").write_bytes(b"a cat\ncaf\xe9\n")
    (folder / "rewards.py").write_text("redness = 3\n")
    (folder / "wan").mkdir()
    (folder / "wan" / "model_index.json").write_text(json.dumps({"_class_name": "WanPipeline"}))
    shutil.copytree(folder / "sd3", folder / "gutted")
    shutil.rmtree(folder / "gutted" / "transformer")
    return _write(folder, {
        "model": {"path": str(folder / "sd3"), "lora": {"rank": 2}},
        "data": {"train_files": str(folder / "prompts.txt"), "train_batch_size": 2},
        "algorithm": {"name": "flow_grpo"},
        "rewards": {"jpeg_compressibility": {}},
        "rollout": {"n": 2, "num_inference_steps": 4, "height": 16, "width": 16, "max_sequence_length": 16},
    })  # fmt: skip


def language(folder: Path) -> Path:
    """A recipe of a tiny Llama."""
    assert main(["tiny", "llama", str(folder / "llama")]) == 0
    config = folder / "llama" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 2048}))
    Image.new("RGB", (16, 16)).save(folder / "0.png")
    for name, content in (("unheard", {"model_type": "unheard"}), ("nothing", None)):
        (folder / name).mkdir()
        if content is not None:
            (folder / name / "config.json").write_text(json.dumps(content))
    asked = {"role": "user", "content": "What?", "name": "Ann"}
    files: dict[str, list[dict[str, Any]]] = {
        "good": [QUESTION, QUESTION | {"prompt": "And this?"}],
        "keyless": [QUESTION, {"promt": "What?"}],
        "unanswered": [QUESTION, {"prompt": "Why?"}],
        "blind": [QUESTION | {"prompt": "<image>What?", "images": ["nowhere.png"]}],
        "uneven": [QUESTION | {"prompt": "<image><image>What?", "images": ["0.png"]}],
        "seen": [QUESTION, QUESTION | {"prompt": "<image>What?", "images": ["0.png"]}],
        "labelled": [QUESTION | {"label": "sum"}],
        "unpaired": [QUESTION | {"chosen": "4"}],
        "long": [QUESTION | {"prompt": "What " * 100}],
        "told": [
            QUESTION | {"response": "So."}, QUESTION | {"prompt": "Why? " * 100, "response": "So it is. " * 280},
        ],
        "named": [QUESTION, QUESTION | {"prompt": [asked]}],
        "armed": [QUESTION | {"tools": [{"name": "add"}]}],
        "endless": [QUESTION, QUESTION | {"prompt": "What " * 10_000}],
    }  # fmt: skip
    for name, records in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return _write(folder, {
        "task": "image-text-to-text",
        "model": {"path": str(folder / "llama")},
        "data": {"train_files": str(folder / "good.jsonl"), "train_batch_size": 2},
        "algorithm": {"name": "grpo"},
        "rewards": {"exact": {}},
        "rollout": {"n": 2, "max_new_tokens": 4},
    })  # fmt: skip


def _write(folder: Path, tree: dict[str, Any]) -> Path:
    recipe = folder / "recipe.yaml"
    tree["model"]["device"] = "cpu"
    recipe.write_text(json.dumps(tree | {"scoring": {"processes": 0}, "steps": 2}))
    return recipe
