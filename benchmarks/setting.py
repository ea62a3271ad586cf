"""What the benchmarks share: random SD3 models behind Burnish's own interfaces, CPU time, tables."""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

from burnish.diffusion.algorithms.policy_gradient import FlowGRPO
from burnish.diffusion.engine import FlowEngine, FlowJob
from burnish.diffusion.options import ModelOptions, RolloutOptions, TrainerOptions
from burnish.diffusion.pipeline.model import PipelineModel
from burnish.diffusion.pipeline.networks import PixelSpace
from burnish.diffusion.roles import FlowRoles
from burnish.metrics import Stopwatch
from burnish.options import OptimizerOptions
from burnish.options.model import LoraOptions
from burnish.training.optimizer import ParameterGroup
from burnish.training.trainer import Trainer
from burnish.types.rollout import Denoising, Prompt, Scored, Scores
from burnish.utils import random

JOINT, POOLED = 64, 64  # widths of the prompt embeddings


def sd3(layers: int, heads: int, head_width: int) -> SD3Transformer2DModel:
    """A transformer of that size with random weights, for latents [16, 8, 8]: images of 64 x 64 pixels."""
    torch.manual_seed(0)
    return SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=16, out_channels=16, num_layers=layers,
        attention_head_dim=head_width, num_attention_heads=heads, caption_projection_dim=heads * head_width,
        joint_attention_dim=JOINT, pooled_projection_dim=POOLED, pos_embed_max_size=16, qk_norm="rms_norm",
    ).requires_grad_(False)  # fmt: skip


class RandomPipeline(StableDiffusion3Pipeline):
    """Draws the embeddings of a text."""

    def encode_prompt(self, prompt, *_, negative_prompt=None, max_sequence_length=256, **__):
        each = []
        for text in (prompt, negative_prompt or ""):
            each.append(random.normal((max_sequence_length, JOINT), [("tokens", text)]))
            each.append(random.normal((POOLED,), [("pooled", text)]))
        return each[0], each[2], each[1], each[3]


class RandomSD3(PipelineModel):
    """Such a pipeline without a VAE, whose latents are not decoded."""

    def __init__(self, network: SD3Transformer2DModel, text_tokens: int, compute: torch.dtype = torch.float32) -> None:
        encoders = dict.fromkeys([f"{part}{n}" for part in ("text_encoder", "tokenizer") for n in ("", "_2", "_3")])
        scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
        pipeline = RandomPipeline(network, scheduler, PixelSpace(), **encoders)
        rollout = RolloutOptions(batch_size=96, height=8, width=8, max_sequence_length=text_tokens)
        super().__init__(pipeline, ModelOptions(path=""), rollout, compute=compute)

    def decode(self, latents, conditioning=None):
        return []


class Burnish:
    """Burnish's own engine and workers around a random model."""

    def __init__(
        self,
        network: SD3Transformer2DModel | RandomSD3,
        algorithm: FlowGRPO,
        *,
        text_tokens: int,
        guidance: float,
        rollout_batch: int,
        micro_batch: int,
        steps: int = 10,
        merge: bool | str = True,
        lora: LoraOptions | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.needs = algorithm.needs()
        self.roles = FlowRoles(
            network if isinstance(network, RandomSD3) else RandomSD3(network, text_tokens), self.needs, lora,
            guidance=guidance, micro_batch_size=micro_batch, on_policy=True, seed=0,
        )  # fmt: skip
        options = RolloutOptions(
            num_inference_steps=steps, batch_size=rollout_batch, merge_lora=merge, height=8, width=8
        )
        self.engine = FlowEngine(self.roles, options, seed=0)
        actor = ParameterGroup("actor", self.roles.parameters(), OptimizerOptions(lr=1e-5), total_steps=1000)
        self.workers = Trainer(
            self.roles, algorithm, [actor],
            options=TrainerOptions(), ema=None, seed=0, watch=Stopwatch(),
        )  # fmt: skip

    def rollout(self, prompts: int, group: int, update: int) -> Scored:
        """Sample groups; rewards are random."""
        job = FlowJob.groups(
            [Prompt(text=f"prompt {i}") for i in range(prompts)], group,
            purpose="rollout", update=update, recording=self.needs.recording,
        )  # fmt: skip
        trace = Denoising.cat([part for _, part, _ in self.engine.sample(job)])
        reward = random.normal((), [("reward", update, i) for i in range(prompts * group)])
        scores = Scores(
            reward=reward, missing=torch.zeros(len(reward), dtype=torch.bool), components=reward[:, None],
            names=("random",), notes=[""] * len(reward),
        )  # fmt: skip
        return Scored(
            prompts=job.prompts, group=job.group, sample=job.sample, trace=trace, scores=scores,
            update=update, version=update - 1, seed=0,
        )  # fmt: skip

    def update(self, scored: Scored) -> dict[str, float]:
        """What the loop does after sampling."""
        self.workers.sync_weights(scored.update - 1)
        batch, _ = self.algorithm.compute_advantages(self.workers.compute_logprobs(scored))
        return self.workers.update(batch, scored.update)


def cpu_seconds(work: Callable[[], object]) -> tuple[float, object]:
    """CPU time of this process for some work, and what it returned; other programs do not count."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def median(values: list[float]) -> float:
    return statistics.median(values)


def options(description: str, **more: dict) -> argparse.Namespace:
    """The command line that all benchmarks understand."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, help="write the figures here as JSON")
    parser.add_argument("--smoke", action="store_true", help="a few seconds: does it run? Its figures mean nothing")
    for name, kwargs in more.items():
        parser.add_argument(f"--{name}", **kwargs)
    torch.set_num_threads(1)
    return parser.parse_args()


def table(rows: list[dict], columns: dict[str, str]) -> str:
    """Rows as text; ``columns`` maps a key to its heading."""
    cells = [list(columns.values())]
    cells += [[_cell(row.get(key)) for key in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = []
    for line in cells:
        text = [
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("  ".join(text).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def write(path: Path | None, result: dict) -> None:
    """Figures with what is needed to judge them."""
    if path is None:
        return
    machine = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.machine(),
    }
    path.write_text(json.dumps(result | {"machine": machine, "threads": torch.get_num_threads()}, indent=1) + "\n")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
