"""Which alarms five runs with spoiled rewards raise, and eight honest ones; and what becomes of the spoiled ones when
their alarms act.

    python -m benchmarks.alarms --runs runs/alarms
    python -m benchmarks.alarms --only dark one_font
    python -m benchmarks.alarms --replay --runs runs/alarms --record metrics.json
    python -m benchmarks.alarms --act raise_kl pause_reward rewind stop --seeds 0 1 2 --only empty_answers dark

Each run is one of the quickstarts, one after another, and leaves its folder: `burnish board runs/alarms` shows them.
What was interrupted goes on where it was, and runs that are finished are read. ``--replay`` runs nothing: it judges the
metrics that are there by the rules as they are now; ``--record`` keeps what these read. Exit code 1 if a spoiled run
raises none of the alarms that name what it pays for, or an honest one raises any.

``--act`` trains each spoiled run with every action of the alarms that name it, without, and beside the honest reward
alone, from every seed, and prints the honest measure at the end. The honest measure has a tenth of the other one's
advantages there, so that there is something left when that one is paused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from burnish.alarms.actions import read_actions
from burnish.alarms.record import Row, read_alarms
from burnish.cli import main as burnish
from burnish.config import RunConfig, load
from burnish.config.run_folder import STEP, RunFolder
from burnish.hooks import EXIT_STOPPED
from burnish.hooks.alarms import detectors
from burnish.options import AlarmAction

PLACE = Path(__file__).with_name("spoiled_rewards.py")
# two or three minutes of a core each
IMAGES = [
    "rollout.n=8", "algorithm.train_timesteps=4", "steps=40", "validation.every=40",
    "validation.reference_guidance=null", "scoring.processes=0",
]  # fmt: skip
WINDOWED = [option for option in IMAGES if not option.startswith("algorithm.train_timesteps")]
AHEAD = [  # honest learning that moves images far within a few updates
    "steps=16", "rollout.n=6", "validation.every=null", "validation.before=false", "validation.reference_guidance=null",
    "scoring.processes=0", "runtime=ray", "pools.rollout.processes=1", "async_rollout.depth=1",
]  # fmt: skip
WATCHED = ["rewards.ocr.weight=0"]  # so that a table can say what was lost
ANSWERS = ["steps=40", "validation.every=40", "scoring.processes=0"]
READ = ["rewards.format.weight=0", "rewards.exact.weight=0"]
REWARD = "critic/rewards/mean"
ACTED: dict[str, tuple[str, list[str]]] = {  # honest measure and options, by recipe
    "quickstart": (
        "ocr",
        [
            "algorithm.kl_coef=0.01",
            "rollout.n=8",
            "algorithm.train_timesteps=4",
            "validation.reference_guidance=null",
            "steps=32",
        ],
    ),
    "vlm_quickstart": (
        "exact",
        [
            "algorithm.kl={coef: 0.05}",
            "rewards.format.weight=0",
            "data.train_batch_size=16",
            "trainer.mini_batch_size=64",
            "steps=64",
        ],
    ),
}
KEPT = [
    "validation.every=null", "validation.before=false", "scoring.processes=0",
    "checkpoint={every: 2, keep_last: 16}", "optimizer.schedule=constant",
]  # fmt: skip
END = 3  # updates at the end that the honest measure is the mean of
DIGITS = 5  # of a recorded metric


def reward(name: str) -> str:
    """The option that makes a spoiled reward the run's."""
    return f"rewards.{name}={{name: function, path: '{PLACE}:{name}'}}"


@dataclass(frozen=True)
class Run:
    """A run, and which alarms name what is wrong with it: one of these has to be among those it raises."""

    recipe: str
    options: Sequence[str]
    named: Sequence[str] = ()

    def as_it_should_be(self, raised: Iterable[str]) -> bool:
        """Whether a spoiled run is named, and an honest one is not."""
        names = set(raised)
        return bool(names & set(self.named)) if self.named else not names


RUNS = {
    "empty_answers": Run("vlm_quickstart", [*ANSWERS, *READ, reward("little_said")], ["response_length"]),
    "honest_grpo": Run("vlm_quickstart", ANSWERS),
    "dark": Run("quickstart", [*IMAGES, *WATCHED, reward("dark")], ["dark_share", "brightness"]),
    "honest_diffusion_nft": Run("quickstart", IMAGES),
    "long_answers": Run(
        "vlm_quickstart", [*ANSWERS, *READ, reward("long"), "rollout.max_new_tokens=24"],
        ["response_length", "response_truncated"],
    ),
    "honest_ppo": Run("vlm_quickstart", ["algorithm=ppo", *ANSWERS]),
    "checkerboard": Run(
        "quickstart", [*IMAGES, *WATCHED, reward("checkerboard")], ["high_frequency", "edge_density"]
    ),
    "honest_awm": Run("quickstart", ["algorithm=awm", *IMAGES]),
    "one_font": Run(
        "quickstart", [*IMAGES, *WATCHED, reward("one_font")], ["distinctness", "variety_collapse"]
    ),
    "honest_dr_grpo": Run("vlm_quickstart", ["algorithm=dr_grpo", *ANSWERS]),
    "honest_gspo": Run("vlm_quickstart", ["algorithm=gspo", *ANSWERS]),
    "honest_flow_grpo_fast": Run("quickstart", ["algorithm=flow_grpo_fast", *WINDOWED]),
    "honest_mix_grpo_ahead": Run("quickstart", ["algorithm=mix_grpo", *AHEAD]),
}  # fmt: skip


class Read(dict[str, Any]):
    """Metrics of an update that know which of them were asked for."""

    def __init__(self, row: Row, asked: set[str]) -> None:
        super().__init__(row)
        self.asked = asked

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


def replayed(config: RunConfig, folder: RunFolder, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """What the rules of now raise over recorded metrics, in order."""
    assert config.alarms is not None, "no recipe switches them off"
    found, standing = [], set[str]()
    watching = detectors(config, config.alarms, folder)
    for row in rows:
        for one in watching:
            one.add(row[STEP], row)
            if one.alarm is not None and one.name not in standing:
                found.append({"update": row[STEP], "name": one.name, "text": one.alarm.text})
            standing = standing | {one.name} if one.alarm is not None else standing - {one.name}
    return found


def configured(name: str, output: Path, overrides: Sequence[str] = ()) -> tuple[list[str], RunConfig]:
    """The words of a run's command behind ``train``, and its options."""
    run = RUNS[name]
    options = [*run.options, f"output_dir={output}", *overrides]
    return [run.recipe, *options], load(run.recipe, options)


def outcome(name: str, config: RunConfig, folder: RunFolder, *, replay: bool) -> dict[str, Any]:
    """What a finished run raised, when, and what became of its reward and of what it should have learned."""
    rows = [row for row in folder.read_metrics() if row[STEP] > 0]
    rewards = [row[REWARD] for row in rows]
    raised = (
        replayed(config, folder, rows)
        if replay
        else [{"update": one.update, "name": one.name, "text": one.text} for one in read_alarms(folder.alarms)]
    )
    right = [[v for k, v in row.items() if "exact/mean@" in k and v is not None] for row in folder.read_metrics()]
    known = [sum(values) / len(values) for values in right if values]
    return {
        "run": name, "updates": len(rows), "reward": [rewards[0], rewards[-1]],
        "right": [known[0], known[-1]] if known else None, "alarms": raised,
        "fine": len(rows) == config.steps and RUNS[name].as_it_should_be(one["name"] for one in raised),
    }  # fmt: skip


def recorded(config: RunConfig, folder: RunFolder) -> dict[str, list[float | None]]:
    """The columns that the rules read, and the reward."""
    asked = {STEP, REWARD}
    rows = [Read(row, asked) for row in folder.read_metrics() if row[STEP] > 0]
    replayed(config, folder, rows)
    there = sorted(name for name in asked if any(name in row for row in rows))
    return {name: [_short(dict.get(row, name)) for row in rows] for name in there}


def rows_of(columns: Mapping[str, Sequence[float | None]]) -> list[dict[str, Any]]:
    """Columns as metrics of updates."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _short(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def line(one: Mapping[str, Any]) -> str:
    """An outcome in a line."""
    raised = ", ".join(f"{alarm['name']} at {alarm['update']}" for alarm in one["alarms"]) or "none"
    begin, end = one["reward"]
    right = "" if one["right"] is None else f", right {one['right'][0]:.3f} -> {one['right'][1]:.3f}"
    text = f"{one['run']:<22} {one['updates']:3d} updates, reward {begin:.3f} -> {end:.3f}{right}; alarms: {raised}"
    return text if one["fine"] else f"{text}  <- not as it should be"


def acted(name: str, action: str, seed: int, runs: Path, overrides: Sequence[str]) -> tuple[float, str]:
    """The honest measure at the end of a run whose alarms act, or of an honest one, and what they did.

    Args:
        name: of a spoiled run.
        action: of its alarms; "none", or "honest" for the honest reward alone.
        seed: of the run.
        runs: folder of all runs.
        overrides: options that go before all others.
    """
    run = RUNS[name]
    measure, options = ACTED[run.recipe]
    own = [option for option in run.options if option not in (*IMAGES, *WATCHED, *ANSWERS, *READ)]
    spoiled = [option for option in own if str(PLACE) in option]
    shared = action == "honest" and own == spoiled  # an honest run for all of a recipe
    folder = RunFolder(runs / "acting" / f"{run.recipe if shared else name}-{action}-{seed}")
    options = [*options, *(option for option in own if option not in spoiled)]
    if action != "honest":
        options = [*options, *spoiled, f"rewards.{measure}.weight=0.1", "mixing={normalise: {floor: 0.001}}"]
    if action in get_args(AlarmAction):
        options = [*options, f"alarms.on={{{', '.join(f'{alarm}: {action}' for alarm in run.named)}}}"]
    given = {option.partition("=")[0] for option in overrides}
    options = [option for option in (*KEPT, *options) if option.partition("=")[0] not in given]
    words = [run.recipe, *options, f"seed={seed}", f"output_dir={folder.path}", *overrides]
    steps = load(run.recipe, words[1:]).steps
    rows = folder.read_metrics()
    stopped = any(one.kind == "stop" for one in read_actions(folder.alarms_actions))
    if not stopped and not any(row[STEP] >= steps for row in rows):
        code = burnish(["train", *words])
        assert code in (0, EXIT_STOPPED), f"burnish train {' '.join(words)}: exit code {code}"
    rows, actions = folder.read_metrics()[-END:], read_actions(folder.alarms_actions)
    did = ", ".join(f"{one.kind} at {one.update} ({one.alarm})" for one in actions) or "nothing"
    return sum(row[f"critic/{measure}/mean"] for row in rows) / len(rows), did


def act(names: Sequence[str], actions: Sequence[str], seeds: Sequence[int], runs: Path, more: Sequence[str]) -> None:
    """Run them and print a line for each, then a table of means and ranges over the seeds."""
    found: dict[tuple[str, str], list[float]] = {}
    for seed in seeds:
        for name in names:
            for action in ("honest", "none", *actions):
                value, did = acted(name, action, seed, runs, more)
                found.setdefault((name, action), []).append(value)
                print(f"{name:<16} {action:<13} seed {seed}: {value:.3f}; {did}", flush=True)
    for (name, action), values in found.items():
        print(f"| {name} | {action} | {fmean(values):.3f} ({min(values):.3f} to {max(values):.3f}) |")


def main() -> int:
    """Run what is asked for, print a line for each, and keep what is known after every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/alarms"))
    parser.add_argument("--only", nargs="*", choices=sorted(RUNS), default=list(RUNS))
    parser.add_argument("--replay", action="store_true", help="judge metrics that are there, and run nothing")
    parser.add_argument("--record", type=Path, help="JSON with the metrics that the rules read")
    parser.add_argument("--act", nargs="+", choices=get_args(AlarmAction), default=[], help="have alarms act")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of the runs in which alarms act")
    parser.add_argument("--output", type=Path, help="JSON with all figures, written after every run")
    parser.add_argument("overrides", nargs="*", default=[], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.act:
        spoiled = [name for name in args.only if RUNS[name].named]
        act(spoiled, args.act, args.seeds, args.runs, args.overrides)
        return 0
    found: list[dict[str, Any]] = []
    kept: dict[str, Any] = {}
    for name in args.only:
        words, config = configured(name, args.runs / name, args.overrides)
        folder = RunFolder(args.runs / name)
        done = folder.path.is_dir() and any(row[STEP] >= config.steps for row in folder.read_metrics())
        if not args.replay and not done and (code := burnish(["train", *words])) != 0:
            return code
        found.append(outcome(name, config, folder, replay=args.replay))
        print(line(found[-1]), flush=True)
        kept[name] = recorded(config, folder) if args.record else None
        if args.output:
            args.output.write_text(json.dumps(found, indent=1))
    if args.record:
        args.record.write_text(json.dumps(kept, separators=(",", ":")))
    wrong = [one["run"] for one in found if not one["fine"]]
    print(f"not as they should be: {', '.join(wrong)}" if wrong else "all as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
