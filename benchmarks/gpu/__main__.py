"""What GPUs alone can show: under an hour on eight cards; without one, the same parts on tiny models and two processes.

    make gpu                                                     # or python -m benchmarks.gpu --output gpu.json
    python -m benchmarks.gpu --vllm vllm-env/bin/python          # and vLLM on all cards
    python -m benchmarks.gpu.table gpu.json                      # writes the figures into benchmarks/README.md

Every part is a process of its own with a deadline: one that fails or runs out of memory leaves the others alone. What
this machine can't run is skipped with its reason, also where the forecast says that it does not fit. At the end a
process forecasts every run from its config.yaml, so that each figure is beside what ``burnish plan`` says. The exit
code is 1 if a part failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
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

from benchmarks.gpu.runs import RUNS, Run, measured, options_of
from benchmarks.gpu.table import figures
from benchmarks.processes import Processes

Rows = list[dict[str, Any]]
HERE = Path(__file__).parents[2]
VALIDATED = re.compile(r"val-core/[^/]+/reward/mean@")
TWICE = 2.0  # times the difference of transformers' own forward with a cache and without one
SHARED = Path("/dev/shm")
FITS = "by forecast"  # begins what a run says that does not fit
# stands for vLLM without a GPU
STAND_IN = f"""#!/bin/sh
FAKE_VLLM= FAKE_VLLM_LOG=/dev/null PYTHONPATH={HERE}/tests/support/fake_vllm:$PYTHONPATH exec {sys.executable} "$@"
"""
FEW = ("data.train_batch_size=2", "rollout.n=2", "validation.max_prompts=1", "validation.n=1")
SHORT = {
    "quickstart": (
        *FEW, "algorithm.train_timesteps=2", "rollout.num_inference_steps=3", "validation.num_inference_steps=2",
        "optimizer.warmup_steps=0", "steps=1",
    ),
    "vlm_quickstart": (*FEW, "trainer.mini_batch_size=null", "optimizer.warmup_steps=0", "steps=1"),
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

    folder: Path  # of models and runs
    vllm: str | None = None
    cards: int = field(default_factory=torch.cuda.device_count)
    deadline: float = 0.0  # of the part that runs
    shared: float = 0.0  # most GB in /dev/shm that its processes have had at once
    cpu: float = 0.0  # seconds that they have used
    plans: dict[str, Path] = field(default_factory=dict)  # of runs that a plan is to be put beside

    @property
    def smoke(self) -> bool:
        """Whether models are tiny: without a card."""
        return not self.cards

    @property
    def device(self) -> str:
        return "cuda" if self.cards else "cpu"

    def command(self, *arguments: str, **environment: str) -> str:
        """Run Python with arguments until the part's deadline: what it printed."""
        shared = _shared()
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, env=os.environ | environment,
        )  # fmt: skip
        family, before = Processes(process.pid), self.cpu
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    out, errors = process.communicate(timeout=1.0)
                    break
                self.shared = max(self.shared, _shared() - shared)
                self.cpu = before + family.cpu_seconds()
                if time.monotonic() > self.deadline:
                    raise PartFailed("timed out")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and what it has started: it may hold the card
            process.wait()
        if process.returncode:
            said = _last_lines(errors or out)
            raise (Skipped if FITS in said else PartFailed)(f"exit code {process.returncode}: {said}")
        return out

    def train(self, recipe: str, folder: Path, *options: str) -> Rows:
        """Metrics of a run of the command line."""
        out = folder / recipe
        self.command("burnish", "train", recipe, f"output_dir={out}", *options)
        return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]

    def model(self, run: Run) -> Path:
        """The directory of a run's model; weights of another one are removed for it.

        Raises:
            Skipped: it does not fit the disk.
        """
        folder = self.folder / (run.tiny if self.smoke else run.model.replace("/", "--"))
        free = shutil.disk_usage(self.folder).free
        if free < run.disk and self.cards:
            raise Skipped(f"it takes {run.disk / 1e9:.0f} GB of {self.folder}, which has {free / 1e9:.0f} (TMPDIR)")
        if folder.is_dir():
            return folder
        for weights in self.folder.glob("*/**/*.safetensors"):
            weights.unlink()
        self.command("benchmarks.gpu.runs", "model", run.name, str(folder))
        return folder


class PartFailed(RuntimeError):
    """A check did not pass."""


class Skipped(RuntimeError):
    """This machine can't run it."""


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


def model(run: Run) -> Callable[[Suite, Path], Rows]:
    """A model of real size, measured by the phases of an update."""

    def rows(suite: Suite, folder: Path) -> Rows:
        path, vllm = suite.model(run), suite.vllm
        if suite.smoke:
            vllm = str(folder / "vllm-python")
            Path(vllm).write_text(STAND_IN)
            Path(vllm).chmod(0o755)
        suite.shared = 0.0
        suite.command("burnish", "train", run.recipe, *options_of(run, folder, path, suite.cards, vllm))
        found = measured(run, folder / "run")
        suite.plans[run.name] = suite.folder / "plans" / f"{len(suite.plans)}"
        suite.plans[run.name].mkdir(parents=True)
        shutil.copy(folder / "run" / "config.yaml", suite.plans[run.name])
        return [
            row | ({"/dev/shm GB": suite.shared} if row["phase"].startswith("update_weights") else {}) for row in found
        ]

    return rows


def links(suite: Suite, folder: Path) -> Rows:
    """What ``burnish doctor`` measures of this machine, beside the constants of ``burnish plan``."""
    rows: Rows = json.loads(suite.command("benchmarks.gpu.links").splitlines()[-1])
    return rows


def _all_cards(suite: Suite) -> str:
    if suite.cards == 1:
        return "it needs two cards, and there is one"
    return "" if find_spec("ray") else "it needs Ray (pip install 'burnish[ray]')"


def _with_vllm(suite: Suite) -> str:
    if suite.smoke or suite.vllm:
        return _all_cards(suite)
    return "it needs vLLM in an environment of its own: --vllm PYTHON (docs/speed.md)"


def _missing(run: Run) -> Callable[[Suite], str]:
    return _with_vllm if run.vllm else _all_cards if run.cards > 1 else lambda suite: ""


PARTS = (
    Part("links", links, 300),
    Part("quickstart", quickstart("quickstart"), 600),
    Part("vlm_quickstart", quickstart("vlm_quickstart"), 600),
    Part("agreement", agreement, 600),
    *(Part(run.name, model(run), 900, _missing(run)) for run in RUNS),
)


def run_all(suite: Suite, names: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run parts until the time is up: rows of each, what was skipped and what failed, with reasons."""
    found: dict[str, Any] = {"rows": {}, "skipped": {}, "failed": {}}
    end = time.monotonic() + seconds
    for part in [part for part in PARTS if part.name in names]:
        start, cpu = time.monotonic(), suite.cpu
        left = end - start
        suite.deadline = start + min(part.seconds, left)
        try:
            reason = part.missing(suite) or ("" if left > 0 else f"the {seconds / 60:g} minutes were over (--minutes)")
            if reason:
                raise Skipped(reason)
            with tempfile.TemporaryDirectory(dir=suite.folder) as folder:
                found["rows"][part.name] = part.run(suite, Path(folder))
            print(f"{part.name}: {time.monotonic() - start:.0f} s, {suite.cpu - cpu:.0f} CPU-s", flush=True)
        except (PartFailed, Skipped, ValueError) as error:
            kind = "skipped" if isinstance(error, Skipped) else "failed"
            found[kind][part.name] = str(error)
            print(f"{part.name}: {kind}: {error}", flush=True)
    return found


def put_beside(suite: Suite, found: dict[str, Any]) -> None:
    """Put what ``burnish plan`` says of every run beside what was measured."""
    if not suite.plans:
        return
    suite.deadline = time.monotonic() + 300 * len(suite.plans)
    print("forecasting the runs", flush=True)
    try:
        said = suite.command("benchmarks.gpu.runs", "plan", *map(str, suite.plans.values()), CUDA_VISIBLE_DEVICES="")
    except PartFailed as error:
        found["failed"]["plan"] = str(error)
        return
    for name, line in zip(suite.plans, said.splitlines(), strict=True):
        plan = json.loads(line)
        if "error" in plan:
            found["failed"][f"plan of {name}"] = plan["error"]
        found["rows"][name] = [row | plan.get(row["phase"], {}) for row in found["rows"][name]]


def machine(suite: Suite) -> dict[str, Any]:
    """What figures are to be judged by."""
    names = sorted({torch.cuda.get_device_name(card) for card in range(suite.cards)})
    memory = torch.cuda.get_device_properties(0).total_memory / 1e9 if suite.cards else 0.0
    return {
        "cards": suite.cards, "device": ", ".join(names) or platform.machine(), "memory": memory,
        "torch": torch.__version__, "python": platform.python_version(),
    }  # fmt: skip


def _shared() -> float:
    return shutil.disk_usage(SHARED).used / 1e9 if SHARED.is_dir() else 0.0


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" ^~|")]
    return " | ".join(lines[-3:])[-600:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="write the figures here as JSON")
    parser.add_argument("--vllm", default=os.environ.get("BURNISH_VLLM"), help="Python of an environment with vLLM")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no part after these")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], help="these parts alone")
    given, begin = parser.parse_args(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="burnish-gpu-") as folder:
        suite = Suite(Path(folder), vllm=given.vllm)
        if suite.smoke:
            print("no GPU is visible to PyTorch: models are tiny, and their figures mean nothing", flush=True)
        found = run_all(suite, given.only or [part.name for part in PARTS], 60 * given.minutes)
        put_beside(suite, found)
    found["machine"] = machine(suite)
    print(f"in all: {time.monotonic() - begin:.0f} s, {suite.cpu + time.process_time():.0f} CPU-s\n\n{figures(found)}")
    if given.output is not None:
        given.output.write_text(json.dumps(found, indent=1) + "\n")
    return int(bool(found["failed"]))


if __name__ == "__main__":
    sys.exit(main())
