"""What a GPU alone can show, in under ten minutes on one card; without one, the same on tiny models, where that works.

    make gpu                                                     # or python -m benchmarks.gpu --output gpu.json
    python -m benchmarks.gpu --vllm vllm-env/bin/python          # and sampling with vLLM, asleep during updates
    python -m benchmarks.gpu.table gpu.json                      # writes the figures into benchmarks/README.md

Every part is a process of its own with a deadline: one that fails or runs out of memory leaves the others alone. The
end says what was skipped, and why; the exit code is 1 if a part failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.models import MODELS
from benchmarks.setting import table

Rows = list[dict[str, Any]]
VALIDATED = re.compile(r"val-core/[^/]+/reward/mean@")
TWICE = 2.0  # times the difference of transformers' own forward with a cache and without one
FEW = ("data.train_batch_size=2", "rollout.n=2", "validation.max_prompts=1", "validation.n=1")
SHORT = {
    "quickstart": (
        *FEW, "algorithm.train_timesteps=2", "rollout.num_inference_steps=3", "validation.num_inference_steps=2",
        "optimizer.warmup_steps=0", "steps=1",
    ),
    "vlm_quickstart": (*FEW, "trainer.mini_batch_size=null", "optimizer.warmup_steps=0", "steps=1"),
}  # fmt: skip
COLUMNS = {
    "name": "", "of": "of", "sample per s": "sampled/s", "sample share": "of peak", "update per s": "learned/s",
    "update share": "of peak", "load GiB": "load GiB", "sample GiB": "sample GiB", "update GiB": "update GiB",
    "seconds": "s",
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A check."""

    name: str
    run: Callable[[Suite, Path], Rows]
    seconds: float  # that it may take
    missing: Callable[[Suite], str] = lambda suite: ""  # why it can't run here; "" if it can


@dataclass
class Suite:
    """All checks on this machine."""

    vllm: str | None = None
    cards: int = field(default_factory=torch.cuda.device_count)
    deadline: float = 0.0  # of the part that runs

    @property
    def smoke(self) -> bool:
        """Whether models are tiny: without a card."""
        return not self.cards

    @property
    def device(self) -> str:
        return "cuda" if self.cards else "cpu"

    def command(self, *arguments: str) -> str:
        """Run Python with arguments until the part's deadline: what it printed."""
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            out, errors = process.communicate(timeout=max(self.deadline - time.monotonic(), 1))
        except subprocess.TimeoutExpired as error:
            raise PartFailed(f"timed out after {error.timeout:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and what it has started: it may hold the card
            process.wait()
        if process.returncode:
            raise PartFailed(f"exit code {process.returncode}: {_last_lines(errors or out)}")
        return out

    def train(self, recipe: str, folder: Path, *options: str) -> Rows:
        """Metrics of a run of the command line."""
        out = folder / recipe
        self.command("burnish", "train", recipe, f"output_dir={out}", *options)
        return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


class PartFailed(RuntimeError):
    """A check did not pass."""


def quickstart(recipe: str) -> Callable[[Suite, Path], Rows]:
    """A quickstart: it trains, and the reward of its samples rises where it ran in full."""

    def run(suite: Suite, folder: Path) -> Rows:
        told = suite.train(recipe, folder, f"model.device={suite.device}", *(SHORT[recipe] if suite.smoke else ()))
        updates = [one for one in told if "actor/loss" in one]
        rewards = [value for one in told for name, value in one.items() if VALIDATED.match(name)]
        if not suite.smoke and not rewards[-1] > rewards[0]:
            raise PartFailed(f"the reward did not rise: {rewards[0]:.3f} to {rewards[-1]:.3f}")
        seconds = sorted(one["timing_s/step"] for one in updates)[len(updates) // 2]
        gain = rewards[-1] - rewards[0]
        return [{"name": recipe, "updates": len(updates), "s an update": seconds, "reward gained": gain}]

    return run


def agreement(suite: Suite, folder: Path) -> Rows:
    """Sampler and trainer in bfloat16."""
    output = folder / "precision.json"
    suite.command("benchmarks.precision", "--device", suite.device, "--output", str(output), *["--smoke"] * suite.smoke)
    rows: Rows = json.loads(output.read_text())["rows"]
    ours = [row for row in rows if "sampler and trainer" in row["name"]]
    theirs = [row for row in rows if "transformers, cached and not" in row["name"]]
    most, allowed = (max(row["mean"] for row in some) for some in (ours, theirs))
    if most > TWICE * allowed:
        raise PartFailed(
            f"sampler and trainer are {most:.2g} apart in log-prob, two forwards of one model {allowed:.2g}"
        )
    return [{name: row[name] for name in ("name", "mean", "largest")} for row in (*ours, *theirs)]


def model(name: str) -> Callable[[Suite, Path], Rows]:
    """A model of real size."""

    def run(suite: Suite, folder: Path) -> Rows:
        output = folder / "model.json"
        suite.command("benchmarks.gpu.models", name, "--output", str(output), *["--smoke"] * suite.smoke)
        rows: Rows = json.loads(output.read_text())["rows"]
        return rows

    return run


def publication(suite: Suite, folder: Path) -> Rows:
    """Weights from one card to another by NCCL, or between processes."""
    told = suite.train(
        "quickstart", folder, "runtime=ray", "pools.rollout.processes=1", f"model.device={suite.device}",
        "model.lora=null", *(SHORT["quickstart"] if suite.smoke else ["steps=3"]),
    )  # fmt: skip
    seconds = [one["timing_s/update_weights"] for one in told if "timing_s/update_weights" in one]
    return [
        {"name": f"publication {'between processes' if suite.smoke else 'by NCCL'}", "s a publication": seconds[-1]}
    ]


def vllm(suite: Suite, folder: Path) -> Rows:
    """vLLM beside the trainer on one card, asleep during updates."""
    told = suite.train(
        "vlm_quickstart", folder, "rollout.engine=vllm", f"rollout.vllm.python={suite.vllm}",
        "rollout.vllm.sleep=true", "steps=3",
    )  # fmt: skip
    updates = [one for one in told if "actor/loss" in one]
    return [{"name": "vLLM that sleeps", "updates": len(updates), "s an update": updates[-1]["timing_s/step"]}]


def _two_cards(suite: Suite) -> str:
    if suite.cards == 1:
        return "it needs two cards, and there is one"
    return "" if find_spec("ray") else "it needs Ray (pip install 'burnish[ray]')"


def _with_vllm(suite: Suite) -> str:
    if not suite.cards:
        return "it needs a card"
    return "" if suite.vllm else "it needs vLLM in an environment of its own: --vllm PYTHON (docs/speed.md)"


PARTS = (
    Part("quickstart", quickstart("quickstart"), 150),
    Part("vlm_quickstart", quickstart("vlm_quickstart"), 150),
    Part("agreement", agreement, 120),
    *(Part(one.name, model(one.name), 150) for one in MODELS),
    Part("publication", publication, 120, _two_cards),
    Part("vllm", vllm, 240, _with_vllm),
)


def run_all(suite: Suite, names: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run parts until the time is up: rows of each, what was skipped and what failed, with reasons."""
    found: dict[str, Any] = {"rows": {}, "skipped": {}, "failed": {}}
    end = time.monotonic() + seconds
    for part in PARTS:
        if part.name not in names:
            continue
        left = end - time.monotonic()
        reason = part.missing(suite) or ("" if left > 0 else f"the {seconds / 60:g} minutes were over (--minutes)")
        if reason:
            found["skipped"][part.name] = reason
            print(f"{part.name}: skipped: {reason}", flush=True)
            continue
        start = time.monotonic()
        suite.deadline = start + min(part.seconds, left)
        try:
            with tempfile.TemporaryDirectory() as folder:
                rows = part.run(suite, Path(folder))
        except PartFailed as error:
            found["failed"][part.name] = str(error)
            print(f"{part.name}: FAILED: {error}", flush=True)
            continue
        took = time.monotonic() - start
        found["rows"][part.name] = [row | {"seconds": took} for row in rows]
        print(f"{part.name}: {took:.0f} s", flush=True)
    return found


def machine(suite: Suite) -> dict[str, Any]:
    """What figures are to be judged by."""
    names = sorted({torch.cuda.get_device_name(card) for card in range(suite.cards)})
    return {
        "cards": suite.cards, "device": ", ".join(names) or platform.machine(), "torch": torch.__version__,
        "python": platform.python_version(),
    }  # fmt: skip


def _last_lines(text: str) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-3:])[-600:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="write the figures here as JSON")
    parser.add_argument("--vllm", default=os.environ.get("BURNISH_VLLM"), help="Python of an environment with vLLM")
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no part after these")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], help="these parts alone")
    given = parser.parse_args()
    suite = Suite(vllm=given.vllm)
    if suite.smoke:
        print("no GPU is visible to PyTorch: models are tiny, and their figures mean nothing", flush=True)
    found = run_all(suite, given.only or [part.name for part in PARTS], 60 * given.minutes)
    for rows in found["rows"].values():
        keys = {key: text for key, text in COLUMNS.items() if any(key in row for row in rows)}
        if "of" not in keys:
            keys |= {key: key for row in rows for key in row if key not in COLUMNS}
        print("\n" + table(rows, keys))
    for kind in ("skipped", "failed"):
        for name, reason in found[kind].items():
            print(f"\n{kind}: {name}: {reason}")
    if given.output is not None:
        given.output.write_text(json.dumps(found | {"machine": machine(suite)}, indent=1) + "\n")
    return int(bool(found["failed"]))


if __name__ == "__main__":
    sys.exit(main())
