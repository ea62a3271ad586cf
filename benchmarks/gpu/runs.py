"""Runs of ``burnish train`` on models of real size with random weights, and on tiny ones of the same classes.

A model is described by its published configuration and gets random weights, so that nothing is downloaded. Its samples
mean nothing; what they cost does not depend on that. The last update is traced; the one before it is measured.

    python -m benchmarks.gpu.runs model Qwen-Image FOLDER           # writes such a model
    python -m benchmarks.gpu.runs plan RUN...                       # what burnish plan says of runs: a line for each
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.trace import PHASES, of_run

SMALL = 0.01  # of a step: shorter phases are left out
TEXT = "a red cube on a blue table beside a window, number "
REWARD = f"{{name: function, path: '{Path(__file__).parent / 'reward.py'}:varied'}}"
COMMON = (
    "ema=null", "validation.before=false", "validation.every=null", "scoring.processes=0", f"rewards.varied={REWARD}",
    "optimizer.warmup_steps=0", "trainer.mini_batch_size=null",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A recipe, a model for it, and what it is run with: CARDS and HALF stand for numbers of cards."""

    name: str
    recipe: str
    model: str  # whose configuration ships with Burnish
    tiny: str  # of the same class
    options: tuple[str, ...] = ()  # of the model at its size
    always: tuple[str, ...] = ()  # of the tiny one, too
    cards: int = 1  # fewest; more than one are all of them
    vllm: bool = False

    @property
    def sees(self) -> bool:
        """Whether it is a language model, which reads images."""
        return self.tiny.startswith("qwen2")

    @property
    def disk(self) -> int:
        """Bytes of its weights in bfloat16; with all of them trained, a checkpoint has seven times as many more."""
        from burnish.plan.published import published

        weights = 2 * sum(published()[self.model].weights.values())
        return int(weights if not self.sees or "model.lora.rank=16" in self.always else 8 * weights)


IMAGES = ("data.train_batch_size=2", "rollout.n=8", "rollout.batch_size=8", "trainer.micro_batch_size=4")
OWN_SIZES = ("data.train_batch_size=CARDS",)  # batches as the recipe has them
TEXTS = ("data.train_batch_size=8", "rollout.n=8", "rollout.max_new_tokens=256", "rollout.min_new_tokens=256")
ALL = ("data.train_batch_size=CARDS", *TEXTS[1:])
ADAPTER = ("model.lora.rank=16", "model.lora.alpha=32", "algorithm.kl=null")
APART = (
    "pools.train.processes=HALF", "pools.rollout.processes=HALF", "pools.rollout.device=DEVICE",
    "async_rollout.depth=1",
)  # fmt: skip
VLLM = ("rollout.engine=vllm", "rollout.vllm.python=VLLM")
TOGETHER = (
    "data.train_batch_size=MANY",
    "rollout.vllm.sleep=true",
    "algorithm.kl=null",
)  # prompts enough for 256 responses on each card
COMPILED, KEPT = ("model.compile=true",), ("model.gradient_checkpointing=false",)
SD35, FLUX = "stabilityai/stable-diffusion-3.5-medium", "black-forest-labs/FLUX.1-dev"
QWEN, WAN = "Qwen/Qwen-Image", "Wan-AI/Wan2.2-T2V-A14B-Diffusers"
VL3, VL7 = "Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct"
EARLY = ("algorithm.window.stop=2",)  # of three steps of the stand-in
FIRST = ("algorithm.window.start=0", "algorithm.window.stop=1")  # which is the first expert's there, too
TINY_IMAGES = (
    "data.train_batch_size=2", "rollout.n=2", "rollout.height=32", "rollout.width=32", "rollout.max_sequence_length=16",
    "rollout.num_inference_steps=3", "model.lora.rank=4",
)  # fmt: skip
TINY_TEXTS = ("data.train_batch_size=2", "rollout.n=2", "rollout.max_new_tokens=8", "rollout.min_new_tokens=8")
# one model after the other: its weights are written once
RUNS = (
    Run("SD3.5-M", "sd35/flow_grpo", SD35, "stable-diffusion-3", IMAGES),
    Run("SD3.5-M, all cards", "sd35/flow_grpo", SD35, "stable-diffusion-3", OWN_SIZES, cards=2),
    Run("FLUX.1-dev", "flux/flow_grpo", FLUX, "flux", IMAGES),
    Run("FLUX.1-dev, compiled", "flux/flow_grpo", FLUX, "flux", IMAGES, COMPILED),
    Run("FLUX.1-dev, all cards", "flux/flow_grpo", FLUX, "flux", OWN_SIZES, cards=2),
    Run("Qwen-Image", "qwen_image/flow_grpo", QWEN, "qwen-image", IMAGES, EARLY),
    Run("Qwen-Image, all cards", "qwen_image/flow_grpo", QWEN, "qwen-image", OWN_SIZES, EARLY, cards=2),
    Run("Wan2.2-A14B", "wan22/flow_grpo", WAN, "wan2.2", ("data.train_batch_size=1", "rollout.n=2"), FIRST),
    Run("Qwen2.5-VL-3B", "qwen25_vl/grpo", VL3, "qwen2_5_vl", TEXTS, ADAPTER),
    Run("Qwen2.5-VL-3B, compiled", "qwen25_vl/grpo", VL3, "qwen2_5_vl", TEXTS, (*ADAPTER, *COMPILED, *KEPT)),
    Run("Qwen2.5-VL-7B", "qwen25_vl/grpo", VL7, "qwen2_5_vl", TEXTS, ADAPTER),
    Run("Qwen2.5-VL-7B, all weights", "qwen25_vl/grpo", VL7, "qwen2_5_vl", ALL, cards=2),
    Run("Qwen2.5-VL-7B, publication", "qwen25_vl/grpo", VL7, "qwen2_5_vl", ALL, APART, cards=2),
    *(
        Run(
            f"Qwen2.5-VL-7B, vLLM {count}", "qwen25_vl/grpo", VL7, "qwen2_5_vl", (*ALL, *TOGETHER),
            (*VLLM, f"rollout.vllm.max_num_seqs={count}"), cards=2, vllm=True,
        )
        for count in (32, 256)
    ),
)  # fmt: skip


def options_of(run: Run, folder: Path, model: Path, cards: int, vllm: str | None) -> list[str]:
    """Options of a run, on prompts that are written to its folder.

    Args:
        run: what to run.
        folder: an empty one.
        model: its directory.
        cards: of this machine; 0 runs the tiny model on two processes of the CPU.
        vllm: Python of its environment.
    """
    side, count, device = (812, 64 * cards, "cuda") if cards else (56, 16, "cpu")
    updates = 3 if cards else 2  # the first of three starts what has to start
    used = 1 if run.cards == 1 else cards or 2
    small = TINY_TEXTS if run.sees else TINY_IMAGES
    chosen = [*(run.options if cards else small), *run.always]
    lines: list[dict[str, Any]] = [{"prompt": f"{TEXT if cards else ''}{i}", "answer": str(i)} for i in range(count)]
    if run.sees:
        from PIL import Image

        Image.new("RGB", (side, side), "grey").save(folder / "grey.png")
        chosen.append("data.system_prompt=null")
        lines = [line | {"prompt": f"<image>{line['prompt']}", "images": ["grey.png"]} for line in lines]
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = {"CARDS": str(used), "HALF": str(used // 2), "MANY": str(32 * used), "DEVICE": device, "VLLM": str(vllm)}
    for word, value in words.items():
        chosen = [option.replace(f"={word}", f"={value}") for option in chosen]
    machine = [f"gpus={used}"] if cards else []
    if used > 1:
        machine += ["runtime=ray", f"pools.train.processes={used}", f"pools.train.device={device}"]
        machine += ["profiler.roles=[trainer]", "profiler.ranks=[0]"]
    every = [
        *machine, *COMMON, *_without_rewards(run), f"model.path={model}", f"model.device={device}",
        f"model.dtype={'bfloat16' if cards else 'float32'}", f"data.train_files={prompts}",
        f"data.val_files={prompts}", f"output_dir={folder / 'run'}", f"steps={updates}", f"profiler.steps=[{updates}]",
        *chosen,
    ]  # fmt: skip
    return list({option.partition("=")[0]: option for option in every}.values())  # the last of equal names


def _without_rewards(run: Run) -> list[str]:
    """The recipe's own rewards have weights to download, or find nothing in what a random model says."""
    from burnish.config import load

    return [f"rewards.{label}=null" for label in load(run.recipe, []).rewards]


def write_model(run: Run, folder: Path, *, smoke: bool) -> None:
    """Write a run's model with random weights, drawn on the GPU where that takes seconds; ``smoke`` is the tiny one."""
    import diffusers
    import transformers

    from burnish.models.tiny import describe
    from burnish.models.tiny.build import write as write_pipeline
    from burnish.models.tiny.language import write as write_language
    from burnish.plan.published import published
    from burnish.utils.weights import from_config

    if smoke:
        (write_language if run.sees else write_pipeline)(describe(run.tiny), folder, seed=0)
    else:
        published()[run.model].write(folder)
    for file in sorted(folder.rglob("config.json")):
        config = json.loads(file.read_text())
        library = diffusers if "_class_name" in config else transformers
        kind = getattr(library, config.get("_class_name") or config["architectures"][0])
        with torch.device("cpu" if smoke else "cuda"):
            network = from_config(kind, file.parent, dtype=torch.float32 if smoke else torch.bfloat16)
        network.save_pretrained(file.parent)
        del network


def planned(folder: Path) -> dict[str, Any]:
    """What ``burnish plan`` says of a run by its phases, for an H100: GB, seconds, and what bounds them."""
    from burnish.config import load
    from burnish.config.hardware import Speed
    from burnish.plan.forecast import forecast, seconds_of
    from burnish.plan.measure import BACKWARD, LOGPROBS, SAMPLE, STEP, SYNC, UPDATE

    of = dict(zip(PHASES, ((SAMPLE,), (LOGPROBS,), (UPDATE, BACKWARD, STEP), (SYNC,)), strict=True))
    found: dict[str, Any] = {}
    for pool in forecast(load(str(folder / "config.yaml"), [])).pools:
        for phase, names in of.items():
            peaks = [pool.phases[name].total / 1e9 for name in names if name in pool.phases]
            times = [seconds_of(pool.work[name], Speed()) for name in names if name in pool.work]
            row = found.setdefault(phase, {})
            if peaks:
                row["GB planned"] = max(*peaks, row.get("GB planned", 0.0))
            if times and "s planned" not in row:
                row |= {"s planned": sum(seconds for seconds, _ in times), "bound planned": max(times)[1]}
        if pool.name == "rollout":
            sent = 2 * sum(pool.weights) / Speed().nvlink / 1e9
            found["update_weights"] |= {"s planned": sent, "bound planned": "network"}
    return found


def measured(run: Run, folder: Path) -> list[dict[str, Any]]:
    """A row for each phase of the run's measured update: speed, seconds, memory, and what a GPU does meanwhile."""
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    updates = [line for line in lines if "actor/loss" in line]
    row, traced, rows = updates[-2], of_run(folder), []
    for phase in (*PHASES, "update_weights_vllm"):  # by ``timing_s/*``; the last is a part of gen
        if row.get(f"timing_s/{phase}", 0.0) < SMALL * row["timing_s/step"]:
            continue
        unit = "token" if run.sees else "image"
        each = row.get(f"timing_per_{unit}_ms/{phase}")
        memory = [row.get(f"perf/{kind}_gb/{phase}") for kind in ("memory_allocated", "cpu_memory")]
        share = traced.get(phase, {}) if not (run.vllm and phase == "gen") else {}  # vLLM is another process
        mfu = {"update_actor": "actor", "old_log_prob": "actor_infer"}.get(phase)
        rows.append(
            {
                "name": run.name, "recipe": run.recipe, "own sizes": run.options == OWN_SIZES, "phase": phase,
                "unit": unit, "per s": each and 1000 / each, "of peak": row.get(f"perf/mfu/{mfu}"),
                "s": row[f"timing_s/{phase}"], "GB": next((value for value in memory if value), None),
                "busy": 1 - share["launches"] if share else None,
                "bound": max(share, key=lambda name: share[name]) if share else None,
            }
        )  # fmt: skip
    if updates[-1].get("actor/skipped_updates"):
        raise ValueError("an update learned nothing")
    return rows


def _plans(folders: list[Path]) -> Iterator[dict[str, Any]]:
    for folder in folders:
        try:
            yield planned(folder)
        except Exception as error:  # of one run; the others have their plans
            yield {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    plan, model = commands.add_parser("plan"), commands.add_parser("model")
    plan.add_argument("folders", nargs="+", type=Path)
    model.add_argument("name", choices=[run.name for run in RUNS])
    model.add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.command == "plan":
        for found in _plans(given.folders):
            print(json.dumps(found), flush=True)
    else:
        (run,) = (run for run in RUNS if run.name == given.name)
        write_model(run, given.folder, smoke=not torch.cuda.is_available())


if __name__ == "__main__":
    main()
