"""Which alarms five runs with spoiled rewards raise, and five honest ones.

    python -m benchmarks.alarms --runs runs/alarms
    python -m benchmarks.alarms --only dark one_font

Each run is one of the quickstarts, one after another, and leaves its folder: `burnish board runs/alarms` shows them.
Runs that are finished are read, not repeated. Exit code 1 if a spoiled run raises none of the alarms that name what it
pays for, or an honest one raises any.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.alarms.record import read_alarms
from burnish.cli import main as burnish
from burnish.config.run_folder import STEP, RunFolder

PLACE = Path(__file__).with_name("spoiled_rewards.py")
PICTURES = ["validation.reference_guidance=null"]
WATCHED = ["rewards.ocr.weight=0"]  # so that a table can say what was lost
SHORT = ["rollout.n=8", "algorithm.train_timesteps=4", "steps=40", "validation.every=40"]
READ = ["rewards.format.weight=0", "rewards.exact.weight=0"]


def reward(name: str) -> str:
    """The option that makes a spoiled reward the run's."""
    return f"rewards.{name}={{name: function, path: '{PLACE}:{name}'}}"


@dataclass(frozen=True)
class Run:
    """A run, and which alarms name what is wrong with it: one of these has to be among those it raises."""

    recipe: str
    options: Sequence[str]
    named: Sequence[str] = ()


RUNS = {
    "dark": Run(
        "quickstart", [*PICTURES, *WATCHED, *SHORT, reward("dark")], ["dark_share", "brightness"]
    ),
    "checkerboard": Run(
        "quickstart", [*PICTURES, *WATCHED, *SHORT, reward("checkerboard")], ["high_frequency", "edge_density"]
    ),
    "one_font": Run(
        "quickstart", [*PICTURES, *WATCHED, *SHORT, reward("one_font")],
        ["distinctness", "variety_collapse"],
    ),
    "empty_answers": Run("vlm_quickstart", [*READ, reward("little_said"), "steps=40"], ["response_length"]),
    "long_answers": Run(
        "vlm_quickstart", [*READ, reward("long"), "rollout.max_new_tokens=24", "steps=40"],
        ["response_length", "response_truncated"],
    ),
    "honest_diffusion_nft": Run("quickstart", PICTURES),
    "honest_awm": Run("quickstart", ["algorithm=awm", *PICTURES]),
    "honest_grpo": Run("vlm_quickstart", []),
    "honest_ppo": Run("vlm_quickstart", ["algorithm=ppo"]),
    "honest_dr_grpo": Run("vlm_quickstart", ["algorithm=dr_grpo", "validation.every=20"]),
}  # fmt: skip


def outcome(name: str, folder: RunFolder) -> dict[str, Any]:
    """What a finished run raised, when, and what became of its reward and of what it should have learned."""
    rows = [row for row in folder.read_metrics() if row[STEP] > 0]
    rewards = [row["critic/rewards/mean"] for row in rows]
    raised = [{"update": one.update, "name": one.name, "text": one.alarm.text} for one in read_alarms(folder.alarms)]
    first = next((one["update"] for one in raised), None)
    gain = rewards[-1] - rewards[0]
    right = [[v for k, v in row.items() if "exact/mean@" in k and v is not None] for row in folder.read_metrics()]
    known = [sum(values) / len(values) for values in right if values]
    return {
        "run": name, "updates": len(rows), "reward": [rewards[0], rewards[-1]],
        "right": [known[0], known[-1]] if known else None, "alarms": raised,
        "gain_at_first": (rewards[first - 1] - rewards[0]) / gain if first and gain else None,
    }  # fmt: skip


def main() -> int:
    """Run what is asked for, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/alarms"))
    parser.add_argument("--only", nargs="*", choices=sorted(RUNS), default=list(RUNS))
    parser.add_argument("--output", type=Path, help="JSON with all figures")
    parser.add_argument("overrides", nargs="*", default=[], help=argparse.SUPPRESS)
    args = parser.parse_args()
    found, wrong = [], []
    for name in args.only:
        run = RUNS[name]
        words = ["train", run.recipe, *run.options, f"output_dir={args.runs / name}", *args.overrides]
        if burnish(words) != 0:
            return 1
        found.append(outcome(name, RunFolder(args.runs / name)))
        names = {one["name"] for one in found[-1]["alarms"]}
        if not (names & set(run.named) if run.named else not names):
            wrong.append(name)
    for one in found:
        raised = ", ".join(f"{alarm['name']} at {alarm['update']}" for alarm in one["alarms"]) or "none"
        begin, end = one["reward"]
        right = "" if one["right"] is None else f", right {one['right'][0]:.3f} -> {one['right'][1]:.3f}"
        print(f"{one['run']:<22} {one['updates']:3d} updates, reward {begin:.3f} -> {end:.3f}{right}; alarms: {raised}")
    if args.output:
        args.output.write_text(json.dumps(found, indent=1))
    print(f"not as they should be: {', '.join(wrong)}" if wrong else "all as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
