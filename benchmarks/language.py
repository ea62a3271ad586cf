"""GRPO on a tiny Qwen2.5-VL: Burnish beside TRL's GRPOTrainer, step by step in one run.

Both train the same weights on the same questions with the same settings, each in a process of its own; they take turns,
so that both see the same machine. TRL lives in an environment of its own:

    python -m venv build/trl && build/trl/bin/pip install trl==1.16 torch==2.13.0 transformers pillow
    python -m benchmarks.language --trl-python build/trl/bin/python --output language.json

Burnish runs twice: as the class was checked on load (burnish), and with the least that any class can do (lowest), in
which prompts share nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.decoding import build
from benchmarks.language_meter import MARK
from benchmarks.setting import median, options, table, write
from tests.support.tiny_language import noise_image

ROOT = Path(__file__).parents[1]
PROMPTS, GROUP, LR = 4, 8, 1e-5
OURS = ("burnish", "lowest")
COLUMNS = {
    "name": "", "rollout": "rollout", "update": "update", "both": "samples/CPU-s", "ratio": "x TRL",
    "memory_mb": "peak MB", "memory_ratio": "of TRL",
}  # fmt: skip


class Side:
    """A process that trains a step at a time."""

    def __init__(self, python: str, module: str, setting: dict[str, Any], log: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [python, "-m", module, json.dumps(setting)],
                cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
            )  # fmt: skip

    def step(self, word: str) -> dict[str, float]:
        """Figures of one training step."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the log says why
        for line in self.process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise RuntimeError(f"a side ended: {self.log.read_text()[-2000:]}")

    def close(self) -> None:
        """End it after the step that it is in."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def prepare(folder: Path, vocabulary: int, count: int) -> None:
    """A model and questions about images."""
    build(folder / "model", vocabulary)
    lines = []
    for number in range(count):
        noise_image(number, 28, 28).save(folder / f"{number}.png")
        lines.append(json.dumps({"prompt": "<image>Which digit?", "images": [f"{number}.png"]}))
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")


def measure(vocabulary: int, tokens: int, turns: int, trl: str | None) -> list[dict[str, Any]]:
    """Figures of all sides in one setting."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, vocabulary, 4 * PROMPTS)
        setting = {"folder": name, "prompts": PROMPTS, "n": GROUP, "tokens": tokens, "lr": LR}
        pythons = dict.fromkeys(OURS, sys.executable) | ({"trl": trl} if trl else {})
        sides = {
            side: Side(
                python, f"benchmarks.language_{'trl' if side == 'trl' else 'burnish'}", setting | {"side": side},
                folder / f"{side}.log",
            )
            for side, python in pythons.items()
        }  # fmt: skip
        try:
            for side in sides.values():
                side.step("time")  # the first warms up and makes the optimizer's state
            steps = [{side: process.step("time") for side, process in sides.items()} for _ in range(turns)]
            memory = {side: process.step("memory")["memory_mb"] for side, process in sides.items()}
        finally:
            for side in sides.values():
                side.close()
    return [_row(side, vocabulary, tokens, steps, memory) for side in sides]


def _row(
    side: str, vocabulary: int, tokens: int, steps: list[dict[str, dict[str, float]]], memory: dict[str, float]
) -> dict[str, Any]:
    """Samples per CPU-second of a side, the median of the turns, and how they compare with TRL's of the same turn."""
    own = [turn[side] for turn in steps]
    assert all(abs(step["tokens"] - tokens) < 1e-6 for step in own), "responses had another length than was asked for"
    row: dict[str, Any] = {
        "name": f"{side}, vocabulary {vocabulary}, {tokens} tokens",
        "rollout": median([step["samples"] / step["rollout"] for step in own]),
        "update": median([step["samples"] / (step["step"] - step["rollout"]) for step in own]),
        "both": median([step["samples"] / step["step"] for step in own]),
        "memory_mb": memory[side],
    }
    if side != "trl" and "trl" in memory:
        row["ratio"] = median([turn["trl"]["step"] / turn[side]["step"] for turn in steps])
        row["memory_ratio"] = memory[side] / memory["trl"]
    return row


def main() -> None:
    arguments = options(
        __doc__.splitlines()[0],
        **{
            "trl-python": {"help": "Python of an environment with TRL; without it Burnish is measured alone"},
            "vocabularies": {"type": int, "nargs": "+", "default": [263, 32_000]},
            "tokens": {"type": int, "nargs": "+", "default": [32, 128], "help": "lengths of the responses"},
            "turns": {"type": int, "default": 5},
        },
    )
    if arguments.smoke:
        arguments.vocabularies, arguments.tokens, arguments.turns = [263], [4], 1
    rows: list[dict[str, Any]] = []
    for vocabulary in arguments.vocabularies:
        for tokens in arguments.tokens:
            rows += measure(vocabulary, tokens, arguments.turns, arguments.trl_python)
            print(table(rows[-len(OURS) - bool(arguments.trl_python) :], COLUMNS), flush=True)
    write(arguments.output, {"turns": arguments.turns, "rows": rows})


if __name__ == "__main__":
    main()
