"""What a rollout costs a GPU beside its networks: nobody waits in a denoising step, and every network runs as often as
the steps and the branches of guidance need."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from burnish.config import load
from burnish.models.tiny import describe
from burnish.tasks import assemble
from burnish.tasks.flow.engine import FlowJob
from tests.support.optional import seldom
from tests.support.pretend_gpu import PretendGpu
from tests.support.tiny_run import TinyRun

pytestmark = pytest.mark.slow

EDITS = "data.train_files={files}/edits.jsonl"
FEW, MANY, SAMPLES = 4, 10, 2  # denoising steps, and samples of each of two prompts
MODELS = [
    ("qwen-image", []), ("sdxl-controlnet", [EDITS]), ("wan2.2", ["rollout.num_frames=5"]),
    *seldom(
        ("sd3", []), ("flux", []), ("qwen-image-edit", [EDITS]), ("wan2.1", ["rollout.num_frames=5"]),
        ("ltx", ["rollout.num_frames=9"]),
    ),
]  # fmt: skip


class Rows:
    """Counts the rows that networks compute."""

    def __init__(self, pipeline: Any, names: tuple[str, ...]) -> None:
        self.count = Counter[str]()
        for name in names:
            part: nn.Module = getattr(pipeline, name)
            part.register_forward_pre_hook(self._noting(name), with_kwargs=True)

    def _noting(self, name: str) -> Any:
        def note(_: nn.Module, args: Any, kwargs: Any) -> None:
            self.count[name] += len(kwargs["hidden_states"] if "hidden_states" in kwargs else kwargs["sample"])

        return note


@pytest.mark.parametrize(("model", "options"), MODELS)
def test_nobody_waits_in_a_denoising_step(model: str, options: list[str], files: Path) -> None:
    tiny = describe(model)
    size = [f"rollout.height={tiny.height or 'null'}", f"rollout.width={tiny.width or 'null'}"]
    given = [
        "algorithm=flow_grpo",
        "model.family=pipeline",
        "model.device=cuda",
        "model.dtype=bfloat16",
        "forecast=off",
    ]
    run = TinyRun(files, "generators", model, *given, *size, "rollout.guidance_scale=3", *options)
    counts, rows = [], []
    for steps in (FEW, MANY):
        with PretendGpu() as gpu:
            overrides = [*run.options, f"rollout.num_inference_steps={steps}", "rollout.batch_size=96"]
            assembly = assemble(load(str(run.recipe), overrides))
            pipeline: Any = assembly.roles.model.pipeline
            experts = tuple(name for name in ("transformer", "transformer_2", "unet") if getattr(pipeline, name, None))
            job = FlowJob.groups(assembly.train_prompts, SAMPLES, purpose="rollout", update=1)
            list(assembly.engine.sample(job))  # compares, and records
            before, seen = {kind: gpu.count(kind) for kind in ("sync", "to device")}, Rows(pipeline, experts)
            list(assembly.engine.sample(job))
            counts.append({kind: gpu.count(kind) - number for kind, number in before.items()})
            rows.append(seen.count)
    further = MANY - FEW
    assert counts[1]["sync"] == counts[0]["sync"], gpu.lines("sync")
    assert counts[1]["to device"] - counts[0]["to device"] <= further, gpu.lines("to device")
    for steps, found in zip((FEW, MANY), rows, strict=True):
        assert sum(found.values()) == steps * 2 * 2 * SAMPLES, "the rows of a step are its samples with both branches"
