"""Paths of options: ``burnish:NAME`` is a file that ships with Burnish, anything else a user's path."""

from __future__ import annotations

from pathlib import Path

from burnish.utils.errors import UserError
from burnish.utils.reading import checked_path

PREFIX = "burnish:"
ASSETS = Path(__file__).parents[1] / "assets"
RECIPES = Path(__file__).parents[1] / "recipes"

METRICS = "metrics.jsonl"
CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"
KEPT = "samples"  # of training, in the folder of a run
VALIDATED = "validation_samples"  # of validations, in the folder of a run
VALIDATION = "validation"  # a folder for each, by its update
SUITES = "suites"  # in the folder of a validation, by the names of suites


def resolve(path: str) -> Path:
    """The path that an option names.

    Raises:
        UserError: it is no path, or a ``burnish:`` path that does not exist or leads outside the shipped files.
    """
    if not path.startswith(PREFIX):
        return checked_path(path)
    found = (ASSETS / path.removeprefix(PREFIX)).resolve()
    if not found.is_relative_to(ASSETS.resolve()):
        raise UserError(f"{path} leads outside the files that ship with Burnish; give it without {PREFIX}")
    if not found.exists():
        shipped = sorted(entry.name for entry in ASSETS.iterdir()) if ASSETS.is_dir() else []
        raise UserError(f"{path} does not ship with Burnish, which has: {', '.join(shipped) or 'nothing'}")
    return found


def holds_run(folder: Path) -> bool:
    """Whether a folder contains files of a run."""
    return any((folder / name).exists() for name in (METRICS, CONFIG, CHECKPOINTS))
