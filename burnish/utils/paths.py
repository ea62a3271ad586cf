"""Paths of options: ``burnish:NAME`` ships with Burnish, ``package:NAME/FILE`` with an installed Python package."""

from __future__ import annotations

import re
from importlib.machinery import PathFinder
from itertools import pairwise
from pathlib import Path

from burnish.utils.errors import UserError, listed
from burnish.utils.reading import checked_path

PREFIX = "burnish:"
PACKAGE = "package:"
ASSETS = Path(__file__).parents[1] / "assets"
RECIPES = Path(__file__).parents[1] / "recipes"

METRICS = "metrics.jsonl"
CONFIG = "config.yaml"
ALARMS = "alarms.jsonl"
ALARMS_FIRST = "alarms/first.json"  # what responses of the first updates were like
ALARMS_ACTIONS = "alarms/actions.json"  # what alarms did, and with which options the run goes on
CHECKPOINTS = "checkpoints"
KEPT = "samples"  # of training, in the folder of a run
VALIDATED = "validation_samples"  # of validations, in the folder of a run
RECORDS = "records.jsonl"  # of the samples of a prompt, in a folder of these
VALIDATION = "validation"  # a folder for each, by its update
CLAIM = ".claim"  # in the folder of a run: the lock of the process that trains in it
MARK = ".burnish"  # in a folder that another command wrote: which one
SUITES = "suites"  # in the folder of a validation, by the names of suites


def resolve(path: str) -> Path:
    """The path that an option names.

    Raises:
        UserError: it is no path, or one of a package that does not exist.
    """
    if path.startswith(PACKAGE):
        return _in_package(path)
    if not path.startswith(PREFIX):
        return checked_path(path)
    found = (ASSETS / path.removeprefix(PREFIX)).resolve()
    if not found.exists():
        shipped = sorted(entry.name for entry in ASSETS.iterdir()) if ASSETS.is_dir() else []
        raise UserError(f"{path} does not ship with Burnish, which has: {', '.join(shipped) or 'nothing'}")
    return found


def _in_package(path: str) -> Path:
    name, _, file = path.removeprefix(PACKAGE).partition("/")
    if not name.isidentifier():
        raise UserError(f"{path} names no package; write {PACKAGE}NAME/FILE")
    found = PathFinder.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise UserError(f"{path}: {name} is not installed; pip install --no-deps {name.replace('_', '-')}")
    folder = Path(found.submodule_search_locations[0]).resolve()
    inside = (folder / checked_path(file)).resolve()
    if not inside.exists():
        raise UserError(f"{path} is not there; look into {folder} for the name of the file")
    return inside


def holds_run(folder: Path) -> bool:
    """Whether a folder contains files of a run."""
    return any((folder / name).exists() for name in (METRICS, CONFIG, CHECKPOINTS))


_HARMLESS = re.compile(r"\..*|.*\.(log|out|err|txt)|prompts-\w+\.jsonl|lost\+found")  # may be there before the run

EARLIER = "earlier"  # attempts of a run that have no checkpoint
FOLDERS = (  # in that of a run
    CHECKPOINTS, KEPT, VALIDATED, VALIDATION, EARLIER, "alarms", "exported", "profiles", "reference", "tensorboard",
    "trackers",
)  # fmt: skip


def check_run_folder(output_dir: str) -> None:
    """Refuse to begin a run among files that no run wrote: it would move or replace those with its names.

    Raises:
        UserError: the folder holds such files, or it is inside of one that a run writes.
    """
    folder = checked_path(output_dir, "output_dir").resolve()
    way_out = "give a new folder, such as output_dir=runs/mine"
    for inside, above in pairwise((folder, *folder.parents)):
        if inside.name in FOLDERS and _is_begun(above):
            raise UserError(f"output_dir is {output_dir}, among the {inside.name} of the run {above}; {way_out}")
    if _is_begun(folder) or not folder.is_dir():
        return
    if foreign := sorted(entry.name for entry in folder.iterdir() if not _HARMLESS.fullmatch(entry.name)):
        raise UserError(
            f"output_dir is {output_dir}, which holds {listed(foreign)} and is not the folder of a run; {way_out}"
        )


def _is_begun(folder: Path) -> bool:
    """Whether a run was started in a folder, by what a user's own would not have as well."""
    return (
        (folder / CLAIM).exists()
        or all((folder / name).exists() for name in (CONFIG, METRICS))
        or any(folder.glob(f"{CHECKPOINTS}/*/manifest.json"))
    )


def check_output(folder: Path, command: str, option: str = "--output") -> None:
    """Refuse to write into a folder in which there are files that a command did not write.

    Raises:
        UserError: it is neither new nor empty, and the command has not marked it.
    """
    mark = folder / MARK
    own = mark.is_file() and mark.read_bytes() == command.encode()
    if not folder.is_dir() or (own and not any(map(Path.is_symlink, folder.rglob("*")))):  # it may be somebody else's
        return
    if any(folder.iterdir()):
        raise UserError(
            f"{option} is {folder}, which holds files that burnish {command} did not write; give a new folder"
        )
