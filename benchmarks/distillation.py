"""How many updates a student needs to become as good as its teacher, by distillation and by GRPO alone.

    python -m benchmarks.distillation

The teacher is vlm_quickstart after 60 updates of GRPO. A student begins where the quickstart begins and learns from the
teacher's distributions at its own responses, as many an update as GRPO has, but to different questions: nobody has to
compare responses. It learns nothing of the rewards. Beside it stands GRPO's own run, which made the teacher. All are
validated every 5 updates on 480 questions about the images that the quickstart holds out: on its own 192, runs that
are equally good differ by as much as there is to see. The questions need scikit-learn, whose digits they are about.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import burnish.commands.export
import burnish.commands.train
from burnish.config import load
from burnish.hooks.checkpoints import validation_reward
from tools.tiny_vlm_data import split, write_questions

ASKED = 160  # questions of each task
STUDENT = ["data.train_batch_size=256", "rollout.n=1", "trainer.mini_batch_size=64", "optimizer.lr=4e-4"]


def curve(folder: Path, overrides: list[str]) -> dict[int, float]:
    """Validation reward by update of a run."""
    burnish.commands.train.train(load("vlm_quickstart", [*overrides, f"output_dir={folder}", "validation.every=5"]))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rewards = {int(row["training/global_step"]): validation_reward(row) for row in rows}
    return {step: reward for step, reward in rewards.items() if reward is not None}


def first(found: dict[int, float], level: float) -> str:
    """The first validated update at a level."""
    return next((str(step) for step, value in sorted(found.items()) if value >= level), f"none of {max(found)}")


def run_seed(place: Path, seed: int, updates: int) -> dict[str, dict[int, float]]:
    """Validation rewards of GRPO, which makes the teacher, and of the students of that teacher."""
    file = write_questions(place, "asked", split(0).heldout, ASKED)
    common = [f"seed={seed}", f"data.val_files={file}", "validation.n=2"]
    lines = {"grpo": curve(place / "grpo", common)}
    burnish.commands.export.export(str(place / "grpo"), output=str(place / "teacher"), what="merged")
    for over in ("full", "sampled"):
        overrides = [
            "algorithm=distill", f"algorithm.over={over}", f"steps={updates}", *common,
            f"algorithm.teachers=[{{path: {place / 'teacher'}}}]", *STUDENT,
        ]  # fmt: skip
        lines[over] = curve(place / over, overrides)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=40, help="of the students")
    given = parser.parse_args()
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as scratch:
            lines = run_seed(Path(scratch), seed, given.updates)
        teacher = lines["grpo"][max(lines["grpo"])]
        print(f"\nseed {seed}: the teacher's reward {teacher:.3f}, before training {lines['grpo'][0]:.3f}")
        print(f"{'':>12} {'0.95 of it':>12} {'all of it':>12} {'last':>7}")
        for name, found in lines.items():
            reached = [first(found, share * teacher) for share in (0.95, 1.0)]
            print(f"{name:>12} {reached[0]:>12} {reached[1]:>12} {found[max(found)]:>7.3f}", flush=True)


if __name__ == "__main__":
    main()
