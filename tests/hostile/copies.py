"""Checkpoints at an address that were damaged, swapped or forged there: a run resumes from them, or copies to them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from burnish.checkpoint import manifest
from tests.hostile.cases import Case, Place
from tests.hostile.damage import Damage, damages, hurt

NEWEST = "checkpoints/00000002"
FILES = (
    "config.yaml", "metrics.jsonl", "checkpoints", NEWEST, f"{NEWEST}/manifest.json", f"{NEWEST}/state.json",
    f"{NEWEST}/tensors/rank-00000.safetensors",
)  # fmt: skip
STATE, SHARD = "state.json", "tensors/rank-00000.safetensors"


def _forged(change: Callable[[dict[str, Any]], None]) -> Damage:
    """A manifest whose own hash is right."""

    def damage(path: Path, draw: random.Random) -> None:
        content = json.loads(path.read_text())
        del content["sha256"]
        change(content)
        path.write_bytes(manifest.render(content))

    return damage


def _other(path: Path, draw: random.Random) -> None:
    shutil.copyfile(path.parents[1] / "00000001" / path.name, path)


FORGED: dict[str, Damage] = {
    "of another update": _other,
    "a file outside": _forged(lambda one: one["files"].update({"../../../outside.pt": one["files"].pop(STATE)})),
    "a file of the system": _forged(lambda one: one["files"].update({"/etc/passwd": one["files"].pop(STATE)})),
    "without its state": _forged(lambda one: one["files"].pop(STATE)),
    "without its tensors": _forged(lambda one: one["files"].pop(SHARD)),
    "a petabyte": _forged(lambda one: one["files"][SHARD].update(size=10**15)),
    "sizes beyond any number": _forged(lambda one: one["files"][SHARD].update(size=10**300)),
    "a negative size": _forged(lambda one: one["files"][SHARD].update(size=-1)),
    "shorter files": _forged(lambda one: one["files"][SHARD].update(size=8)),
    "files that are not there": _forged(
        lambda one: one["files"].update({f"shards/{i}": one["files"][STATE] for i in range(20_000)})
    ),
    "another model": _forged(lambda one: one["identity"].update(model="\x1b[31mother\n")),
    "a huge score": _forged(lambda one: one.update(score=10**300)),
    "an update without end": _forged(lambda one: one.update(update=10**300)),
}


def cases() -> Iterator[Case]:
    """Every file of a copy in every way, where a run resumes from it, and where one copies to it."""
    for task in ("drawing", "seeing"):
        for verb in ("resume", "copy"):
            for file in FILES:
                forged = FORGED if file.endswith(manifest.NAME) else {}
                for name, damage in (*damages(file), *forged.items()):
                    yield _copies(task, verb, file, name, damage)


def _copies(task: str, verb: str, file: str, name: str, damage: Damage) -> Case:
    def make(place: Place, scratch: Path) -> list[str]:
        shutil.copytree(place.run(task), scratch / "there")
        hurt(scratch / "there" / file, damage, f"{task} {verb} {file} {name}")
        there = f"file://{scratch / 'there'}"
        option = f"resume={there}" if verb == "resume" else f"checkpoint.copy_to={there}"
        return ["train", str(place.recipe(task)), "steps=3", option]

    changes = () if verb == "resume" else ("there/",)
    return Case(kind="copies", name=f"{verb} {task} {file}, {name}", make=make, expect="either", changes=changes)
