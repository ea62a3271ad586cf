"""Short runs of ``burnish`` with tiny models, by the command line and in this process, and what they leave behind."""

import json
import re
import shutil
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

ROOT = Path(__file__).parents[2]
CLOCK = ("timing_s/", "timing_per_image_ms/", "timing_per_token_ms/", "perf/", "pipeline/idle_share/")
UPDATES = 3
REWARDS = """
import numpy as np


def values(sample):
    return np.asarray(getattr(sample, "frames", getattr(sample, "samples", sample)), dtype=np.float32)


def brightness(images, prompts):
    return [float(values(image).mean()) for image in images]


def left(images, prompts):
    return [float(values(image)[:, : image.shape[1] // 2].mean()) for image in images]


def loud(audios):
    return [float(np.square(sound.samples).mean()) for sound in audios]


def odd(responses, prompts):
    return [sum(map(ord, one.text)) % 11 / 10 for one in responses]


def even(responses, prompts):
    return [len(one.text) % 3 / 2 for one in responses]


def dull(images, prompts):
    return [0.5 if prompt.text == "two dogs" else one for prompt, one in zip(prompts, brightness(images, prompts))]


def same(responses, prompts):
    return [0.5 if prompt.text == "No. 1?" else one for prompt, one in zip(prompts, odd(responses, prompts))]
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
        "task": "image-text-to-text", "rewards": {"odd": {"name": "function", "path": "{files}/rewards.py:odd"}},
        "rollout": {"n": 4, "max_new_tokens": 5},
    },
    "reward_models": COMMON | {"task": "image-text-to-text", "trainer": {"mini_batch_size": 1}},
}  # fmt: skip
CLIPS = {"a cat": range(5), "a dog": [0, 0, 1, 1, 0]}  # frames, by their prompts
PADDED = {"sd3", "flux"}  # to 256 and 512 tokens, most of what they compute
SEEING = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm", "internvl"}
KINDS: dict[str, list[dict[str, Any]]] = {  # records of language models, each with every question
    "prompts": [{}], "responses": [{"response": "yes"}],
    "preferences": [{"chosen": "a", "rejected": "bcd"}, {"chosen": "ab", "rejected": "c", "margin": 0.5}],
    "judged": [{"response": "yes", "label": True}, {"response": "no", "label": False}],
    "scores": [{"response": "yes", "score": 1}, {"response": "no", "score": 0}],
    "steps": [{"steps": ["a", "b"], "labels": [True, False]}],
}  # fmt: skip


def is_time_column(name: str) -> bool:
    """Whether a metric depends on the clock; all others are the same in every run of a configuration."""
    return name.startswith(CLOCK) or "/latency_s/" in name


@dataclass
class Said:
    """What a command printed."""

    out: str
    err: str

    @property
    def message(self) -> str:
        """Its errors, without the ends of lines."""
        return " ".join(self.err.split())


def burnish(*words: object, status: int = 0) -> Said:
    """Do a command in this process, whose exit code has to be that."""
    from burnish.cli import main  # tools that start a Burnish of their own make runs without it

    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    assert code == status, out.getvalue() + err.getvalue()
    return Said(out.getvalue(), err.getvalue())


class TinyRun:
    """A run of three updates with a tiny model, in FILES/NAME.

    Args:
        files: a folder that ``write_files`` filled; the model is made there once, for all runs.
        half: "generators", "language" or "reward_models".
        model: as ``burnish tiny`` knows it.
        options: of the command line, the last where one comes again; ``{files}`` and ``{data}`` (the folder of the
            model's records) are filled in.
        name: of the folder of the run, which is emptied.
    """

    def __init__(self, files: Path, half: str, model: str, *options: str, name: str = "run") -> None:
        for one in (model, *re.findall(r"path: '\{files\}/(\w+)'", " ".join(options))):  # teachers, too
            if not (files / one).exists():
                burnish("tiny", one, files / one)
        draws = half == "generators"
        data = files if draws else files / ("seen" if model in SEEING else "read")
        tree = TREES[half] | {
            "model": {"path": str(files / model), "lora": {"rank": 2}, "device": "cpu"},
            "data": {"train_files": str(data / ("prompts.txt" if draws else "prompts.jsonl")), "train_batch_size": 2},
        }  # fmt: skip
        if model in PADDED:
            tree["rollout"] = tree["rollout"] | {"max_sequence_length": 64}
        self.output = files / name
        shutil.rmtree(self.output, ignore_errors=True)
        self.recipe = files / f"{name}.yaml"
        self.recipe.parent.mkdir(parents=True, exist_ok=True)
        self.recipe.write_text(_filled(json.dumps(tree), files, data))
        # at the rate of adapters, all weights would soon draw nothing but noise
        further = ["optimizer.lr=1e-3"] if "model.lora=null" in options else []
        given = {option.partition("=")[0]: option for option in (*further, *options)}
        self.options = [*(_filled(option, files, data) for option in given.values()), f"output_dir={self.output}"]

    def train(self, *options: str, status: int = 0) -> Said:
        """Begin it, or go on with it."""
        with chdir(ROOT):
            return burnish("train", self.recipe, *self.options, *options, status=status)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Every line of metrics.jsonl without what depends on the clock."""
        lines = [json.loads(line) for line in (self.output / "metrics.jsonl").read_text().splitlines()]
        return [{name: value for name, value in line.items() if not is_time_column(name)} for line in lines]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Of the last checkpoint: weights, and the state of optimizers."""
        newest = max(path for path in (self.output / "checkpoints").iterdir() if path.name.isdecimal())
        (file,) = newest.glob("tensors/*.safetensors")
        return load_file(file)


def write_files(folder: Path) -> None:
    """Rewards, images and records of all runs."""
    (folder / "rewards.py").write_text(REWARDS)
    draw = np.random.default_rng(0)
    for number in range(2):
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\n")
    records: dict[str, list[dict[str, Any]]] = {
        "pictures": [{"prompt": "a cat", "image": "0.png"}, {"prompt": "a dog", "image": "1.png"}],
        "pairs": [{"prompt": "a cat", "chosen": "0.png", "rejected": "1.png"}] * 2,
        "picture_scores": [
            {"prompt": prompt, "image": f"{(i + k) % 2}.png", "score": i - k / 2, "components": {"other": k}}
            for i, prompt in enumerate(("a cat", "a dog"))
            for k in range(2)
        ],
        "clips": [{"prompt": name, "image": [f"{i % 2}.png" for i in order]} for name, order in CLIPS.items()],
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


def _filled(text: str, files: Path, data: Path) -> str:
    return text.replace("{files}", str(files)).replace("{data}", str(data))


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
