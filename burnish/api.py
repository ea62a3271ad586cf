"""Burnish from Python: ``burnish.load`` makes a configuration, ``burnish.train`` trains it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from burnish import config as configuration
from burnish.commands.launch import CORE
from burnish.commands.prepare import prepared
from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.config.yaml_text import read_overrides
from burnish.utils.disk import write_atomically
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.reading import checked_path
from burnish.utils.user_code import GIVEN, path_of

log = logging.getLogger(__name__)

Records = Sequence[str | Mapping[str, Any]]


@dataclass(frozen=True)
class Run:
    """What became of a run."""

    folder: Path
    finished: bool  # all updates are done; else it was asked to stop, and ``train`` goes on with it
    metrics: list[dict[str, Any]]  # a row for each policy update, by the names of metrics.jsonl

    def __repr__(self) -> str:
        state = "finished" if self.finished else "stopped"
        numbers = "".join(f", {name}={value:.4g}" for name, value in self.validation.items() if CORE in name)
        return f"Run({str(self.folder)!r}, {state}, {len(self.metrics)} updates{numbers})"

    def _repr_html_(self) -> str:
        """The report, as notebooks show it."""
        report = RunFolder(self.folder).report
        if not report.is_file():
            return f"<pre>{escape(repr(self))}</pre>"
        page = escape(report.read_text(encoding="utf-8"))
        return f'<iframe sandbox="allow-scripts" srcdoc="{page}" style="width: 100%; height: 48em; border: 0"></iframe>'

    @property
    def validation(self) -> dict[str, float]:
        """The newest validation."""
        found = ({name: value for name, value in row.items() if name.startswith("val-")} for row in self.metrics)
        return next((row for row in reversed(list(found)) if row), {})


def load(
    recipe: str,
    *overrides: str,
    rewards: Mapping[str, Any] | None = None,
    prompts: Records | None = None,
    val_prompts: Records | None = None,
    **sections: Any,
) -> RunConfig:
    """A checked configuration: a recipe with options laid over it.

    Args:
        recipe: a recipe that ships with Burnish, by name, or the path of a .yaml file.
        overrides: options as on the command line, ``"rollout.n=8"``.
        rewards: by label: options, a function of samples and prompts, a class, or None, which takes one away.
        prompts: to learn on, in the place of ``data.train_files``: texts, or records as in a .jsonl file.
        val_prompts: to judge by, in the place of ``data.val_files``.
        sections: options by section, ``rollout={"n": 8}, steps=30``; classes in the place of names.

    Raises:
        UserError: with everything that is wrong.
    """
    given = [*overrides, *(f"{name}={_text(name, value)}" for name, value in sections.items())]
    objects = []
    for label, reward in (rewards or {}).items():
        if callable(reward) and not isinstance(reward, type):
            objects += [] if importable(reward) else [label]
            reward = {"name": "function", "path": path_of(reward) if importable(reward) else _keep(label, reward)}
        given.append(f"rewards.{label}={_text(f'rewards.{label}', reward)}")
    if objects and "scoring.processes" not in read_overrides(given):
        given.append("scoring.processes=0")
        log.warning(
            "rewards %s are Python objects of this process: they judge in it, between sampling and learning "
            "(scoring.processes=0); functions of a module that others can import judge meanwhile", ", ".join(objects),
        )  # fmt: skip
    files = {"data.train_files": prompts, "data.val_files": val_prompts}
    records = {option: _lines(option, one) for option, one in files.items() if one is not None}
    if records:
        folder = configuration.load(recipe, [*given, *(f"{option}=given.jsonl" for option in records)]).output_dir
        given += [f"{option}={json.dumps(_written(Path(folder), lines))}" for option, lines in records.items()]
    config = configuration.load(recipe, given)
    if objects and (config.runtime != "local" or config.scoring.processes):
        raise ConfigError(
            f"rewards.{objects[0]} is a Python object of this process, which no other process has, but "
            f"runtime is {config.runtime} and scoring.processes is {config.scoring.processes}; define it at the top "
            "level of a module and import it from there, or use runtime=local and scoring.processes=0"
        )
    return config


def train(config: RunConfig) -> Run:
    """Train, or go on with what is in ``output_dir``; Ctrl-C saves and returns.

    Raises:
        UserError: something is missing, or wrong with data, model or rewards.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported: processes share cores
    config = prepared(config, lambda words: f"burnish.load({', '.join(map(repr, words))})")
    from burnish.commands.train import train as run

    code = run(config)
    folder = RunFolder(config.output_dir)
    return Run(folder.path, code == 0, folder.read_metrics())


def importable(thing: Callable[..., Any]) -> bool:
    """Whether another process finds a function by the names of its module and its own."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    name = getattr(thing, "__qualname__", "")
    return module is not None and module.__name__ != "__main__" and getattr(module, name, None) is thing


def _keep(label: str, thing: Any) -> str:
    GIVEN[label] = thing
    return f"object:{label}"


def _text(option: str, value: Any) -> str:
    """A value as a command line has it, classes by where they are."""
    value = {"name": value} if isinstance(value, type) else value
    try:
        return json.dumps(value, default=_plain)
    except (TypeError, ValueError) as error:
        raise UserError(f"{option} is {value!r:.80}, which no recipe can hold: {error}; give plain data") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, type):
        return path_of(value)
    raise TypeError(f"{type(value).__name__} is neither text, a number, a list nor a dictionary")


def _lines(option: str, records: Records) -> bytes:
    if isinstance(records, str) or not records:
        raise UserError(f"{option} is {records!r:.80}; give a list of prompts: texts, or records")
    return "".join(_text(option, {"prompt": r} if isinstance(r, str) else dict(r)) + "\n" for r in records).encode()


def _written(folder: Path, lines: bytes) -> str:
    """The file that holds records, named by what is in it, so that another run's are never written over."""
    name = f"prompts-{hashlib.sha256(lines).hexdigest()[:8]}.jsonl"
    path = checked_path(str(folder)).resolve() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lines)
    return str(path)
