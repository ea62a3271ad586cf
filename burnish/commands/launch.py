"""burnish train, until PyTorch is loaded; and sweeps of runs."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from burnish.hooks import EXIT_STOPPED, StopRequest
from burnish.utils import terminal
from burnish.utils.errors import Cancelled, ConfigError, UserError

CORE = "val-core/"  # of the names of what a validation is judged by


def train(recipe: str, overrides: Sequence[str] = (), *, sweep: bool = False) -> int:
    """Train a model with a recipe.

    A killed run resumes when the same command is run again. With --sweep, every combination of comma-separated values
    is trained, one after another, each in its own folder below output_dir; lists need brackets: [a,b].

    Examples:
        burnish train quickstart
        burnish train quickstart algorithm=flow_grpo output_dir=runs/flow_grpo
        burnish train my_recipe.yaml optimizer.lr=1e-4 rollout.n=16
        burnish train quickstart rewards.jpeg_compressibility.weight=0.1    adds a reward
        burnish train quickstart rewards.border_darkness=null               removes a reward
        burnish train quickstart model.lora=null                            trains all weights
        burnish train qwen25_vl/grpo gpus=8                                 the options that it states for 8 GPUs
        burnish train quickstart --sweep seed=0,1,2 algorithm.beta=0.5,1

    Args:
        recipe: name of a recipe (burnish recipes) or path of a .yaml file
        overrides (OPTION=VALUE): options of the run as section.option=value, with the value in YAML
        sweep: train every combination of comma-separated values
    """
    if sweep:
        with terminal.progress(f"Reading {recipe}"):
            members = combinations(recipe, overrides)
        return train_all(recipe, members)
    parent = os.environ.pop("BURNISH_SWEEP", None)
    if parent is not None:
        from burnish.utils.supervisor import when_parent_ends

        when_parent_ends(int(parent), lambda: os.kill(os.getpid(), signal.SIGTERM))
    with StopRequest() as stop:
        try:
            with stop.cancellable():
                with terminal.progress(f"Reading {recipe}"):
                    from burnish.commands.prepare import prepared
                    from burnish.config import load

                    config = load(recipe, overrides)
                config = prepared(config)
                with terminal.loading_pytorch():
                    from burnish.commands.train import train as run
        except Cancelled:
            print(f"Stopped by {stop.requested} before the run began; the same command starts again")
            return EXIT_STOPPED
        return run(config, stop)


# sweeps

Values = dict[str, str]  # of the varied options


def combinations(recipe: str, overrides: Sequence[str]) -> dict[Path, tuple[Values, list[str]]]:
    """The runs of a sweep, by their folders: what is varied, and all options. The first option varies slowest.

    Raises:
        ConfigError: nothing varies, or something is wrong with some of them.
    """
    from burnish.commands.prepare import prepared
    from burnish.config import load

    varied: dict[str, list[str]] = {}
    fixed: list[str] = []
    base = None
    for option, text in (one.partition("=")[::2] for one in overrides):
        values = split(option, text)
        if len(values) > 1 and (option in ("output_dir", "resume") or len(set(values)) < len(values)):
            raise ConfigError(f"{option} is {text}; a sweep takes different values, and one output_dir")
        if len(values) > 1 and option in varied:
            raise ConfigError(f"--sweep varies {option} twice; give all its values at once")
        if len(values) > 1:
            varied[option] = values
        elif option == "output_dir":
            base = text
        else:
            fixed.append(f"{option}={text}")
    if not varied:
        raise ConfigError("--sweep has nothing to vary; separate values with commas, as in seed=0,1,2")
    fixed = [one for one in fixed if one.partition("=")[0] not in varied]
    members: dict[Path, tuple[Values, list[str]]] = {}
    problems: list[str] = []
    for chosen in itertools.product(*varied.values()):
        values_of = dict(zip(varied, chosen, strict=True))
        own = [f"{option}={value}" for option, value in values_of.items()]
        try:
            base = base or load(recipe, [*fixed, *own]).output_dir
            folder = Path(base) / ",".join(own).replace("/", "_")
            if folder in members:
                raise ConfigError(f"two runs of the sweep would share the folder {folder}; give them other values")
            members[folder] = values_of, [*fixed, *own, f"output_dir={json.dumps(str(folder))}"]
            prepared(load(recipe, members[folder][1]))
        except UserError as error:
            problems += error.complaints if isinstance(error, ConfigError) else [str(error)]
    if problems:
        raise ConfigError(problems)
    return members


def split(option: str, text: str) -> list[str]:
    """Values between commas, but not those inside brackets or quotes."""
    import yaml

    if "," not in text:
        return [text]
    try:
        nodes: Any = yaml.compose(f"[{text}]", Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{option} is {text}, which is not a list of values, as a,b is: {error}") from None
    return [text[node.start_mark.index - 1 : node.end_mark.index - 1] for node in nodes.value]


def train_all(recipe: str, members: Mapping[Path, tuple[Values, list[str]]]) -> int:
    """Run one process after the other; the code of the first that failed, or 75 after a signal."""
    codes: list[int] = []
    with StopRequest() as stop:
        for number, (folder, (_, options)) in enumerate(members.items(), 1):
            print(terminal.printable(f"sweep: run {number} of {len(members)}: {folder}"), flush=True)
            child = subprocess.Popen(
                [sys.executable, "-m", "burnish", "train", recipe, *options],
                process_group=0,  # so that Ctrl-C in a terminal reaches it once
                env=os.environ | {"BURNISH_SWEEP": str(os.getpid())},
            )
            while stop.requested is None and child.poll() is None:
                time.sleep(0.1)
            if stop.requested is not None:
                child.terminate()
            code = child.wait()
            codes.append(code if stop.requested is None else EXIT_STOPPED)
            if codes[-1] == EXIT_STOPPED:
                break
    _show(members, codes)
    return EXIT_STOPPED if EXIT_STOPPED in codes else next((code for code in codes if code), 0)


def _show(members: Mapping[Path, tuple[Values, list[str]]], codes: Sequence[int]) -> None:
    """Print what each run was validated by, first and last, and the mean of the last over the seeds."""
    started = [(values, *_validated(folder), code)
               for (folder, (values, _)), code in zip(members.items(), codes, strict=False)]  # fmt: skip
    names = list(dict.fromkeys(name for _, _, last, _ in started for name in last))
    table = []
    seeds: defaultdict[tuple[str, ...], list[dict[str, float]]] = defaultdict(list)
    for values, first, last, code in started:
        cells = [" → ".join(f"{row[name]:.4g}" for row in (first, last) if name in row) for name in names]
        table.append([*values.values(), *cells, {0: "done", EXIT_STOPPED: "stopped"}.get(code, f"failed ({code})")])
        seeds[tuple("mean ± std" if option == "seed" else value for option, value in values.items())].append(last)
    for same, rows in seeds.items():
        if len(rows) > 1:
            columns = [[row[name] for row in rows if name in row] for name in names]
            cells = [f"{mean(column):.4g} ± {stdev(column):.2g}" if len(column) > 1 else "" for column in columns]
            table.append([*same, *cells, f"{len(rows)} seeds"])
    terminal.table((*started[0][0], *names, "run"), table, "first validation → last" if names else "")


def _validated(folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """What the first and the last validation of a run came to."""
    from burnish.config.run_folder import RunFolder

    rows = [
        {name.removeprefix(CORE): value for name, value in row.items() if name.startswith(CORE) and value is not None}
        for row in RunFolder(folder).read_metrics()
    ]
    validated = [row for row in rows if row] or [{}]
    return validated[0], validated[-1]
