"""Some updates of a recipe on a model of real size with random weights: speed, memory, and what was forecast of it.

    python -m benchmarks.gpu.models SD3.5-M --output sd35.json

The model is described by its published configuration and its weights are drawn where they are used, so that nothing is
downloaded. Its responses and images mean nothing; what they cost does not depend on that. With ``--smoke`` a tiny
model of the same class goes the same way, on whatever device there is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from PIL import Image

from benchmarks.gpu.meter import LOAD, SAMPLE, UPDATE, Meter, peak
from benchmarks.setting import median, write
from burnish.config import load
from burnish.config.hub import with_models
from burnish.loop import run
from burnish.models.tiny import describe
from burnish.plan.forecast import forecast
from burnish.plan.made_up import WORDS, FixedScores
from burnish.plan.published import published
from burnish.tasks import assemble
from burnish.utils.weights import without_weights

FORECAST = 90.0  # seconds that a forecast may take beyond the run
UPDATES = 3  # the first one counts operations and starts what has to start


@dataclass(frozen=True)
class Model:
    """A recipe, and a model for it."""

    name: str
    recipe: str
    published: str  # whose configuration ships with Burnish
    tiny: str  # of the same class
    options: tuple[str, ...]
    sees: bool = False
    image: int = 812  # pixels of a side, of what a prompt shows: with its text nearly data.max_prompt_length
    given: tuple[str, ...] = ()  # options of real and tiny models alike


SMALL = ("data.train_batch_size=2", "rollout.n=2", "trainer.mini_batch_size=null")
UNSCORED = ("rewards.pickscore=null", "rewards.ocr.substring=true")  # nothing is scored: no weights of rewards
DRAWN = (
    "data.train_batch_size=2", "rollout.n=8", "trainer.mini_batch_size=null", "ema=null", "rollout.batch_size=8",
    "trainer.micro_batch_size=4",
)  # fmt: skip
ADAPTED = ("data.system_prompt=null", "model.lora.rank=16", "model.lora.alpha=32", "algorithm.kl=null")
WRITTEN = (
    *ADAPTED, "data.train_batch_size=8", "rollout.n=8", "trainer.mini_batch_size=null", "rollout.max_new_tokens=512",
    "rollout.min_new_tokens=512",
)  # fmt: skip
TINY_DRAWN = (
    *SMALL, "ema=null", "rollout.height=32", "rollout.width=32", "rollout.max_sequence_length=16",
    "rollout.num_inference_steps=3", "model.lora.rank=4",
)  # fmt: skip
TINY_WRITTEN = (*SMALL, *ADAPTED, "rollout.max_new_tokens=8", "rollout.min_new_tokens=8")
MODELS = (
    Model("SD3.5-M", "sd35/flow_grpo", "stabilityai/stable-diffusion-3.5-medium", "stable-diffusion-3", DRAWN),
    Model("FLUX.1-dev", "flux/flow_grpo", "black-forest-labs/FLUX.1-dev", "flux", DRAWN, given=UNSCORED),
    Model(
        "Qwen-Image", "qwen_image/flow_grpo", "Qwen/Qwen-Image", "qwen-image", DRAWN, given=("algorithm.window.stop=2",)
    ),
    Model("Qwen2.5-VL-3B", "qwen25_vl/grpo", "Qwen/Qwen2.5-VL-3B-Instruct", "qwen2_5_vl", WRITTEN, sees=True),
    Model("Qwen2.5-VL-7B", "qwen25_vl/grpo", "Qwen/Qwen2.5-VL-7B-Instruct", "qwen2_5_vl", WRITTEN, sees=True),
    Model(
        "FLUX.1-dev-compiled",
        "flux/flow_grpo",
        "black-forest-labs/FLUX.1-dev",
        "flux",
        DRAWN,
        given=(*UNSCORED, "model.compile=true"),
    ),
    Model(
        "Qwen2.5-VL-3B-compiled",
        "qwen25_vl/grpo",
        "Qwen/Qwen2.5-VL-3B-Instruct",
        "qwen2_5_vl",
        WRITTEN,
        sees=True,
        given=("model.compile=true",),
    ),
)


def measure(model: Model, device: str, *, smoke: bool) -> dict[str, Any]:
    """What some updates take."""
    dtype = "float32" if device == "cpu" else "bfloat16"
    meter = Meter(torch.device(device))
    with tempfile.TemporaryDirectory() as name:
        config = with_models(load(model.recipe, options_of(model, Path(name), device, dtype, smoke=smoke)))
        with meter.watching():
            told = _updates(config, meter, device)
    assert all(one["actor/skipped_updates"] == 0 for one in told), "an update learned nothing"
    seconds = {phase: median(found[1:] or found) for phase, found in meter.seconds.items()}
    best = peak(torch.device(device), getattr(torch, dtype))
    samples = config.data.train_batch_size * config.rollout.n
    made = samples * config.rollout.max_new_tokens if model.sees else samples
    row: dict[str, Any] = {"name": model.name, "recipe": model.recipe, "of": "tokens" if model.sees else "images"}
    for phase in (SAMPLE, UPDATE):
        row[f"{phase} per s"] = made / seconds[phase]
        row[f"{phase} share"] = meter.operations[phase] / seconds[phase] / best
    row |= {f"{phase} s": value for phase, value in seconds.items()}
    row |= {f"{phase} GiB": value / 2**30 for phase, value in meter.peaks.items()}
    return row | {"parameters": told[-1]["parameters"], "peak TFLOP/s": best / 1e12}


def forecast_of(model: Model, *, smoke: bool) -> dict[str, float]:
    """What ``burnish plan`` says that the same run holds, in GiB by phase. No GPU may be visible to this process."""
    dtype = "float32" if smoke else "bfloat16"
    with tempfile.TemporaryDirectory() as name:
        config = with_models(load(model.recipe, options_of(model, Path(name), "cpu", dtype, smoke=smoke)))
        (pool,) = forecast(config).pools
    found: dict[str, float] = {}
    for phase, peak_ in pool.phases.items():
        name = phase.partition(",")[0]  # an update has several
        found[name] = max(found.get(name, 0.0), peak_.total / 2**30)
    return {f"{name} forecast GiB": found[name] for name in (LOAD, SAMPLE, UPDATE)}


@contextmanager
def forecast_beside(model: Model, row: dict[str, Any], *, smoke: bool) -> Iterator[None]:
    """Forecast in another process meanwhile, and add that to the row at the end."""
    command = [sys.executable, "-m", "benchmarks.gpu.models", model.name, "--forecast", *["--smoke"] * smoke]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    ) as process:  # fmt: skip
        try:
            yield
            out, _ = process.communicate(timeout=FORECAST)
        except subprocess.TimeoutExpired:
            out = ""
        finally:
            process.kill()
    if process.returncode or not out:
        row["forecast"] = "failed" if process.returncode else "timed out"
    else:
        row |= json.loads(out.splitlines()[-1])


def _updates(config: Any, meter: Meter, device: str) -> list[dict[str, float]]:
    """Metrics of some updates of the run's own loop."""
    told: list[dict[str, float]] = []
    assembly = assemble(config)
    assembly.scorer = FixedScores(config)
    assembly.watch.mark, assembly.watch.memory = meter.during, nullcontext  # which asks the same counters
    with meter.during("load"), without_weights(), made_on(device):
        count = sum(weight.numel() for weight in {id(w): w for w in _weights(assembly)}.values())
        _ = assembly.workers

    def note(update: int, metrics: dict[str, float]) -> None:
        meter.counts = False
        told.append({**metrics, "parameters": float(count)})

    meter.counts = True
    run(range(1, UPDATES + 1), assembly.source, assembly.workers, [note], watch=assembly.watch, stop=lambda: False)
    return told


def _weights(assembly: Any) -> Iterator[torch.Tensor]:
    pipeline = getattr(assembly.roles.model, "pipeline", None)
    parts = [assembly.roles.model.network] if pipeline is None else list(pipeline.components.values())
    for part in parts:
        if isinstance(part, torch.nn.Module):
            yield from part.parameters()


@contextmanager
def made_on(device: str) -> Iterator[None]:
    """Networks of diffusers and transformers are made on the device, where drawing their weights takes seconds."""
    from diffusers import ConfigMixin
    from transformers import PreTrainedModel

    def there(make: Any) -> Any:
        def made(kind: Any, *args: Any, **kwargs: Any) -> Any:
            with torch.device(device):
                return make.__func__(kind, *args, **kwargs)

        return classmethod(made)

    with (
        mock.patch.object(ConfigMixin, "from_config", there(ConfigMixin.from_config)),
        mock.patch.object(PreTrainedModel, "_from_config", there(PreTrainedModel._from_config)),
    ):
        yield


def options_of(model: Model, folder: Path, device: str, dtype: str, *, smoke: bool) -> list[str]:
    """Options of the recipe: the model's folder, some prompts, and as little work as shows what it costs."""
    where = folder / "model"
    if smoke:
        _write_tiny(model, where)
    else:
        published()[model.published].write(where)
    prompts = folder / "prompts.jsonl"
    side = 56 if smoke else model.image
    Image.new("RGB", (side, side), "grey").save(folder / "picture.png", "PNG")
    shown: dict[str, Any] = {"images": ["picture.png"]} if model.sees else {}
    mark = "<image>" if model.sees else ""
    words = "Hi" if smoke else WORDS
    lines = [{"prompt": f"{mark}{words} {number}", "answer": str(number), **shown} for number in range(16)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    chosen = (TINY_WRITTEN if model.sees else TINY_DRAWN) if smoke else model.options
    return [
        f"model.path={where}", f"model.device={device}", f"model.dtype={dtype}", f"data.train_files={prompts}",
        f"data.val_files={prompts}", f"output_dir={folder / 'run'}", f"steps={UPDATES}", *chosen, *model.given,
    ]  # fmt: skip


def _write_tiny(model: Model, folder: Path) -> None:
    if model.sees:
        from burnish.models.tiny.language import write as write_language

        write_language(describe(model.tiny), folder, seed=0)
    else:
        from burnish.models.tiny.build import write as write_pipeline

        write_pipeline(describe(model.tiny), folder, seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=[model.name for model in MODELS])
    parser.add_argument("--output", type=Path, help="write the figures here as JSON")
    parser.add_argument("--smoke", action="store_true", help="a tiny model of the same class")
    parser.add_argument("--forecast", action="store_true", help="only say what memory it will take")
    given = parser.parse_args()
    (model,) = (one for one in MODELS if one.name == given.name)
    if given.forecast:
        print(json.dumps(forecast_of(model, smoke=given.smoke)))
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not given.smoke:
        parser.error("there is no GPU; --smoke tries a tiny model on the CPU")
    forecasts: dict[str, Any] = {}
    with forecast_beside(model, forecasts, smoke=given.smoke):
        row = measure(model, device, smoke=given.smoke)
    row |= forecasts
    print(json.dumps(row, indent=1))
    write(given.output, {"rows": [row]})


if __name__ == "__main__":
    main()
