"""burnish reproduce: a run again, and whether what it came to is equal, within the band of seeds, or neither."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

from burnish.checkpoint.files import numbered, read_manifest
from burnish.commands.launch import Values, train_all
from burnish.commands.opening import say_used
from burnish.config.run_folder import STEP, RunFolder
from burnish.report.runs import read_configuration
from burnish.report.statistics import REWARD
from burnish.utils import terminal
from burnish.utils.errors import UserError
from burnish.utils.reading import checked_path

MEASURED = re.compile(r"timing_|perf/|pipeline/idle_share/|.*/latency_s/")  # by a clock, or of the machine


def reproduce(run: str, *, seeds: Annotated[int, 0, 1000] = 0, output: str | None = None) -> int:
    """Train a run again, and say whether it came to the same.

    The run is trained anew with its recorded configuration, in another folder. Every metric of every update, and the
    hashes of the weights, are compared. Where they differ, runs with other seeds say how far chance carries the last
    validation's reward. 0 is returned if all is equal or the reward lies within their band, else 1.

    Examples:
        burnish reproduce runs/quickstart                 equal, to the last bit, or what differs first
        burnish reproduce runs/quickstart --seeds 4       within the band of four more seeds?

    Args:
        run: folder of a run that is finished
        seeds: how many more seeds are trained where the run again is not equal
        output (-o, --output FOLDER): new folder for the runs; RUN_reproduced by default
    """
    folder = RunFolder.of_run(run)
    config = read_configuration(folder.config)
    if not config or not numbered(folder.checkpoints):
        raise UserError(f"{run} has no configuration or no checkpoint to compare with; give a run that is finished")
    target = checked_path(output or f"{folder.path}_reproduced", "--output")
    if target.exists():
        raise UserError(f"{target} exists already; give another --output")
    say_used(folder.config)
    seed = int(config.get("seed") or 0)
    again = target / f"seed={seed}"
    if code := train_all(str(folder.config), _members(target, [seed])):
        return code
    difference = _difference(folder, RunFolder(again))
    if difference is None:
        terminal.say((f"equal: every metric of every update, and the weights, are those of {run}", "bold green"))
        return 0
    terminal.say((f"not equal: {difference}", "bold yellow"))
    if not seeds:
        terminal.say("--seeds 4 trains four more seeds, and says whether the reward lies within their band")
        return 1
    if code := train_all(str(folder.config), _members(target, range(seed + 1, seed + seeds + 1))):
        return code
    last = [_last_reward(RunFolder(path)) for path in sorted(target.iterdir())]
    rewards, own = [one for one in last if one is not None], _last_reward(folder)
    if own is None or not rewards:
        raise UserError(f"{run} was not validated, so there is no reward to compare; see validation.every")
    within = min(rewards) <= own <= max(rewards)
    band = f"{min(rewards):.4g} to {max(rewards):.4g} ({len(rewards)} runs)"
    terminal.say((f"{'within' if within else 'outside'} the band of seeds: {own:.4g}; {band}", "bold"))
    return 0 if within else 1


def _members(target: Path, seeds: list[int] | range) -> dict[Path, tuple[Values, list[str]]]:
    """The runs of some seeds, by their folders."""
    members = {}
    for seed in seeds:
        folder = target / f"seed={seed}"
        members[folder] = {"seed": str(seed)}, [f"seed={seed}", f"output_dir={json.dumps(str(folder))}", "resume=never"]
    return members


def _difference(before: RunFolder, after: RunFolder) -> str | None:
    """What differs first between two runs; None if nothing does."""
    rows = {row[STEP]: row for row in after.read_metrics()}
    for row in before.read_metrics():
        other = rows.get(row[STEP], {})
        for name, value in row.items():
            if not MEASURED.match(name) and other.get(name) != value:
                return f"{name} of update {row[STEP]} was {value} and is {other.get(name)}"
    weights = [_weights(folder) for folder in (before, after)]
    return None if weights[0] == weights[1] else "the weights differ, though no metric does"


def _weights(folder: RunFolder) -> dict[str, str]:
    """Hashes of the files with weights of the last checkpoint."""
    manifest = read_manifest(max(numbered(folder.checkpoints)))
    return {name: entry.sha256 for name, entry in manifest.files.items() if name.startswith("tensors/")}


def _last_reward(folder: RunFolder) -> float | None:
    """The reward of the last validation."""
    rewards = [value for row in folder.read_metrics() if (value := REWARD.of(row)) is not None]
    return rewards[-1] if rewards else None
