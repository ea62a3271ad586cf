"""GRPO on SmolLM2-135M-Instruct: ``burnish train smollm2_sums`` beside TRL's GRPOTrainer, whole runs.

Both start from the same weights and train LoRA adapters on the same sums with the same reward, sampling and optimizer,
seed by seed, each in a process of its own with one thread. Its CPU time counts from start to end. transformers then
answers the held-out sums greedily with the adapters that each has written.

    python -m venv build/trl && build/trl/bin/pip install trl==1.16 torch==2.13.0 transformers peft
    python -m benchmarks.real_model --trl-python build/trl/bin/python --output real_model.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

import burnish
from benchmarks.language_meter import right
from benchmarks.setting import median, options, table, write
from burnish.utils.hub import model_folder

ROOT = Path(__file__).parents[1]
PROMPTS, GROUP, TOKENS, RANK, LR, WARMUP = 16, 8, 16, 16, 3e-4, 2  # the recipe's
COLUMNS = {
    "name": "", "cpu": "CPU s", "rate": "samples/CPU-s", "memory_mb": "peak MB", "accuracy": "held-out right",
    "ratio": "x TRL",
}  # fmt: skip


def timed(command: list[str], log: Path) -> tuple[float, float]:
    """CPU seconds and peak resident megabytes of a command."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"a side failed: {log.read_text()[-2000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def ours(folder: Path, seed: int, updates: int) -> list[list[str]]:
    """Commands that train and write the adapters."""
    run = folder / "run"
    program = [sys.executable, "-m", "burnish"]
    recipe = [
        "smollm2_sums", "rewards.numeric=null", "rewards.format=null", "scoring.processes=0",
        "rewards.function.path=benchmarks.language_meter:sums", "validation.every=null", "validation.before=false",
        f"optimizer.warmup_steps={min(WARMUP, updates - 1)}", f"checkpoint.every={updates}", f"steps={updates}",
        f"seed={seed}", f"output_dir={run}",
    ]  # fmt: skip
    export = ["export", str(run), "--format=lora", f"--output={folder / 'lora'}"]
    return [[*program, "train", *recipe], [*program, *export]]


def theirs(folder: Path, seed: int, updates: int, python: str, model: Path, files: dict[str, str]) -> list[list[str]]:
    """The command that trains and writes the adapters."""
    setting = {
        "model": str(model), "folder": str(folder), "prompts": PROMPTS, "n": GROUP, "tokens": TOKENS, "rank": RANK,
        "lr": LR, "warmup": min(WARMUP, updates - 1), "updates": updates, "seed": seed, **files,
    }  # fmt: skip
    return [[python, "-m", "benchmarks.real_model_trl", json.dumps(setting)]]


@torch.no_grad()
def accuracy(model: Path, adapter: Path | None, heldout: Path) -> float:
    """The share of held-out sums that greedy answers have right."""
    records = [json.loads(line) for line in heldout.read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapter is not None:
        network = PeftModel.from_pretrained(network, adapter)
    turns = [[{"role": "user", "content": record["prompt"]}] for record in records]
    inputs = tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
    )
    answers = network.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    return sum(map(right, texts, [record["answer"] for record in records])) / len(records)


def main() -> None:
    arguments = options(
        __doc__.splitlines()[0],
        **{
            "trl-python": {"help": "Python of an environment with TRL; without it Burnish is measured alone"},
            "seeds": {"type": int, "nargs": "+", "default": [0, 1, 2]},
            "updates": {"type": int, "default": 30},
        },
    )
    if arguments.smoke:
        arguments.seeds, arguments.updates = [0], 1
    config = burnish.load("smollm2_sums")
    model = model_folder(config.model.path, index="config.json")
    assets = Path(burnish.__file__).parent / "assets" / "sums"
    files = {name: str(assets / f"{name}.jsonl") for name in ("train", "heldout")}
    rows = [{"name": "before", "accuracy": accuracy(model, None, Path(files["heldout"]))}]
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as name:
            sides = {"burnish": ours(Path(name) / "burnish", seed, arguments.updates)}
            if arguments.trl_python:
                folder = Path(name) / "trl"
                sides["trl"] = theirs(folder, seed, arguments.updates, arguments.trl_python, model, files)
            measured: dict[str, dict[str, Any]] = {}
            for side, (training, *export) in sides.items():
                folder = Path(name) / side
                folder.mkdir()
                seconds, memory = timed(training, folder / "log")
                for command in export:
                    timed(command, folder / "log")
                measured[side] = {
                    "name": f"{side}, seed {seed}", "cpu": seconds, "memory_mb": memory,
                    "rate": arguments.updates * PROMPTS * GROUP / seconds,
                    "accuracy": accuracy(model, folder / "lora", Path(files["heldout"])),
                }  # fmt: skip
            if "trl" in measured:
                measured["burnish"]["ratio"] = measured["trl"]["cpu"] / measured["burnish"]["cpu"]
        rows += measured.values()
        print(table(rows, COLUMNS), flush=True)
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    write(arguments.output, {"updates": arguments.updates, "rows": rows, "ratio": median(ratios) if ratios else None})


if __name__ == "__main__":
    main()
