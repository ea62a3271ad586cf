"""Short runs of ``burnish train`` with tiny models, and what is kept of each: metrics and a digest of the weights."""

from __future__ import annotations

import json
import math
import shutil
from contextlib import chdir
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open

from burnish.cli import main
from tests.golden import generators, language
from tests.support.time_columns import is_time_column

ROOT = Path(__file__).parents[2]
UPDATES = 3
REWARDS = """
import numpy as np


def values(sample):
    return np.asarray(getattr(sample, "frames", getattr(sample, "samples", sample)), dtype=np.float32)


def brightness(images, prompts):
    return [float(values(image).mean()) for image in images]


def left(images, prompts):
    return [float(values(image)[:, : image.shape[1] // 2].mean()) for image in images]


def odd(responses, prompts):
    return [sum(map(ord, one.text)) % 11 / 10 for one in responses]


def even(responses, prompts):
    return [len(one.text) % 3 / 2 for one in responses]
"""
COMMON: dict[str, Any] = {
    "trainer": {"mini_batch_size": 4, "epochs": 2}, "optimizer": {"lr": 1e-2}, "checkpoint": {"every": UPDATES},
    "steps": UPDATES,
}  # fmt: skip
SAMPLING: dict[str, Any] = COMMON | {"scoring": {"processes": 0}, "validation": {"n": 1}}
TREES: dict[str, dict[str, Any]] = {
    "generators": SAMPLING | {
        "rewards": {"brightness": {"name": "function", "path": "{files}/rewards.py:brightness"}},
        "rollout": {"n": 4, "num_inference_steps": 4, "height": 16, "width": 16},
    },
    "language": SAMPLING | {
        "task": "image-text-to-text",
        "rewards": {"odd": {"name": "function", "path": "{files}/rewards.py:odd"}},
        "rollout": {"n": 4, "max_new_tokens": 5},
    },
    "reward_models": COMMON | {"task": "image-text-to-text", "trainer": {"mini_batch_size": 1}},
}  # fmt: skip
SEEING = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm", "internvl"}
KINDS: dict[str, list[dict[str, Any]]] = {  # records of language models, each with every question
    "prompts": [{}],
    "responses": [{"response": "yes"}],
    "preferences": [{"chosen": "a", "rejected": "bcd"}, {"chosen": "ab", "rejected": "c", "margin": 0.5}],
    "judged": [{"response": "yes", "label": True}, {"response": "no", "label": False}],
    "scores": [{"response": "yes", "score": 1}, {"response": "no", "score": 0}],
    "steps": [{"steps": ["a", "b"], "labels": [True, False]}],
}


@dataclass
class Found:
    """What a run left."""

    metrics: dict[str, list[float | None]]  # of every line of metrics.jsonl, by name; None where a line lacks one
    weights: str  # digest of the weights in the last checkpoint

    @property
    def digest(self) -> str:
        """Of both, to the last bit."""
        return sha256(json.dumps([self.metrics, self.weights], sort_keys=True).encode()).hexdigest()[:16]


HALVES: dict[str, dict[str, tuple[str, list[str]]]] = {
    "generators": generators.RUNS, "language": language.RUNS, "reward_models": language.REWARD_MODELS,
}  # fmt: skip


def write_files(folder: Path) -> None:
    """Rewards, pictures and records of all runs."""
    (folder / "rewards.py").write_text(REWARDS)
    draw = np.random.default_rng(0)
    for number in range(2):
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\n")
    records = {
        "pictures": [{"prompt": "a cat", "image": "0.png"}, {"prompt": "a dog", "image": "1.png"}],
        "pairs": [{"prompt": "a cat", "chosen": "0.png", "rejected": "1.png"}] * 2,
        "edits": [{"prompt": "a cat", "image": "0.png"}, {"prompt": "darker", "image": "1.png"}],
    }
    for name, lines in records.items():
        _write_lines(folder / f"{name}.jsonl", lines)
    for kind, answers in KINDS.items():
        for place, shown in (("seen", [["0.png"], [], ["1.png", "0.png"]]), ("read", [[], [], []])):
            _write_lines(folder / place / f"{kind}.jsonl", [
                {"prompt": "<image>" * len(images) + f"No. {number}?", "answer": str(number)}
                | ({"images": [f"../{image}" for image in images]} if images else {}) | answer
                for number, images in enumerate(shown) for answer in answers
            ])  # fmt: skip


def recipe(folder: Path, half: str, name: str) -> tuple[Path, list[str]]:
    """The recipe of the run of that name, in a folder with the files, and its options. Its model is made if need be."""
    model, options = HALVES[half][name]
    if not (folder / model).exists():
        assert main(["tiny", model, str(folder / model)]) == 0
    draws = half == "generators"
    data = folder if draws else folder / ("seen" if model in SEEING else "read")
    tree = TREES[half] | {
        "model": {"path": str(folder / model), "lora": {"rank": 2}, "device": "cpu"},
        "data": {"train_files": str(data / ("prompts.txt" if draws else "prompts.jsonl")), "train_batch_size": 2},
    }  # fmt: skip
    file = folder / half / f"{name.replace(' ', '-')}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(_filled(json.dumps(tree), folder, data))
    given = [f"algorithm={name.split()[0]}", *(_filled(option, folder, data) for option in options)]
    # at the rate of adapters, all weights would soon draw nothing but noise
    return file, [*given, "optimizer.lr=1e-3"] if "model.lora=null" in options else given


def train(folder: Path, half: str, name: str) -> Found:
    """Do the run of that name with the files of a folder."""
    file, given = recipe(folder, half, name)
    output = file.with_suffix("")
    shutil.rmtree(output, ignore_errors=True)
    with chdir(ROOT):
        assert main(["train", str(file), *given, f"output_dir={output}"]) == 0
    return _found(output)


def _found(output: Path) -> Found:
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [line["training/global_step"] for line in lines if "actor/loss" in line] == list(range(1, UPDATES + 1))
    assert all(line.get("actor/skipped_updates", 0) == 0 for line in lines)
    names = dict.fromkeys(name for line in lines for name in line if not is_time_column(name))
    metrics = {name: [line.get(name) for line in lines] for name in names}
    assert all(math.isfinite(value) for column in metrics.values() for value in column if value is not None)
    (tensors,) = output.glob(f"checkpoints/*{UPDATES}/tensors/*.safetensors")
    digests = []
    with safe_open(tensors, "pt") as file:
        for key in file.keys():  # noqa: SIM118
            if ".optimizer." not in key:
                digests.append(sha256(file.get_tensor(key).view(torch.uint8).numpy().tobytes()).hexdigest())
    return Found(metrics, sha256("".join(sorted(digests)).encode()).hexdigest()[:16])


def _filled(text: str, files: Path, data: Path) -> str:
    return text.replace("{files}", str(files)).replace("{data}", str(data))


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
