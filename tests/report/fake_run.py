"""A run folder as training leaves it, made in a moment: curves that look like learning, and drawn numbers."""

import json
import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from burnish.config import load
from burnish.folder import STEP, RunFolder
from tests.config import stand_ins

PROMPTS, SAMPLES = 6, 6


def config(*overrides: str):
    stand_ins.register_rewards()
    return load("quickstart", list(overrides))


def judged(progress: float, *, reward: float | None = None, border: float = 0.002) -> dict[str, float]:
    """Validation metrics of a model that has learned a share of what there is to learn."""
    reward = 0.772 + 0.193 * progress if reward is None else reward
    return {
        "val-core/default/reward/mean@6": reward,
        "val-core/default/reward/std@6": 0.1,
        "val-aux/default/ocr/mean@6": reward,
        "val-aux/default/ocr_exact/mean@6": 0.528 + 0.377 * progress,
        "val-aux/default/border_darkness/mean@6": border,
        "val-aux/variety": 0.053 - 0.024 * progress,
        "val-aux/missing": 0.0,
    }


def learned(update: int) -> dict[str, float | None]:
    """What an update leaves behind."""
    progress = 1 - math.exp(-update / 8)
    wobble = 0.02 * math.sin(1.7 * update)
    return {
        "critic/missing_ratio": 0.0,
        "critic/rewards/mean": 0.75 + 0.2 * progress + wobble,
        "critic/rewards/std_mean": 0.2 - 0.1 * progress,
        "critic/ocr_exact/mean": 0.5 + 0.35 * progress + 2 * wobble,
        "critic/border_darkness/mean": 0.003 + 0.002 * progress,
        "actor/loss": 0.4 - 0.1 * progress + wobble,
        "actor/grad_norm": 0.5 + 5 * wobble,
        "actor/lr": 3e-3,
        "actor/skipped_updates": 0.0,
        "timing_s/step": 2.5,
        "timing_s/gen": 0.8,
        "timing_s/reward": 0.4,
        "timing_s/old_log_prob": 0.4,
        "timing_s/update_actor": 0.85,
        "perf/total_num_images": 96.0,
        "perf/throughput": 38.4,
    }


def write(
    path: Path, *, updates: int = 30, overrides: tuple[str, ...] = (), reference: bool = True,
    changed: dict[int, dict[str, float | None]] | None = None,
) -> RunFolder:  # fmt: skip
    """Write a run of so many updates; ``changed`` replaces metrics of some of them."""
    folder = RunFolder(path)
    options = config(f"output_dir={path}", *overrides)
    folder.begin(options, resumed_at=None)
    lines = []
    for update in range(updates + 1):
        row = {STEP: update} | (learned(update) if update else {})
        if update % 10 == 0:
            progress = 1 - math.exp(-update / 8)
            row |= judged(progress, border=0.002 + 0.002 * progress)
            pictures(folder.validation(update), progress)
        lines.append(json.dumps(row | (changed or {}).get(update, {})))
    folder.metrics.write_text("".join(f"{line}\n" for line in lines))
    if reference:
        folder.reference.mkdir()
        guided = {"guidance_scale": 3.0} | judged(1.1, reward=0.978)
        (folder.reference / "metrics.json").write_text(json.dumps(guided))
    return folder


def pictures(target: Path, progress: float, *, size: tuple[int, int] = (32, 16)) -> None:
    """Numbers as a model draws them: the better it is, the less noise."""
    noise = np.random.RandomState(0)
    (target / "pictures").mkdir(parents=True)
    lines = []
    for index in range(PROMPTS):
        answer = f"{(index * 137 + 27) % 1000:03d}"
        for sample in range(SAMPLES):
            image = Image.new("L", size, 255)
            ImageDraw.Draw(image).text((5 + sample % 3, 2), answer, fill=0, font_size=11)
            pixels = np.asarray(image) + (1 - progress) * 60 * noise.randn(size[1], size[0])
            picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert("RGB")
            picture.save(target / "pictures" / f"{index:03d}-{sample:02d}.png")
            right = noise.rand() < 0.5 + 0.4 * progress
            read = answer if right else answer[:2]
            lines.append({
                "prompt": f"the number {answer}", "answer": answer, "index": index, "sample": sample,
                "reward": 1.0 if right else 2 / 3,
                "components": {"ocr": 1.0 if right else 2 / 3, "ocr_exact": float(right), "border_darkness": 0.002},
                "note": read,
            })  # fmt: skip
    (target / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
