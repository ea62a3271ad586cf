"""The folder of a run: its files, and which options may change when it resumes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import socket
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, Self

from burnish.config import RunConfig, batches, changes, dump, load
from burnish.config.checks import may_change
from burnish.config.hardware import read_machine
from burnish.config.load import used_by
from burnish.config.plugins import chosen_by_path, portable, uses
from burnish.config.text import to_dict
from burnish.config.yaml_text import show
from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import UserError, first_line, listed
from burnish.utils.json_text import flattened, parse_json
from burnish.utils.paths import (
    ALARMS,
    ALARMS_ACTIONS,
    ALARMS_FIRST,
    CHECKPOINTS,
    CLAIM,
    CONFIG,
    EARLIER,
    KEPT,
    METRICS,
    VALIDATED,
    VALIDATION,
    check_run_folder,
    holds_run,
)
from burnish.utils.reading import checked_path, read_file
from burnish.utils.records import is_number, leads_out
from burnish.utils.user_code import code_of, names_code

log = logging.getLogger(__name__)

STEP = "training/global_step"  # first in every line of metrics.jsonl
TIME = "perf/total_time"  # seconds of all updates and of the validations between them


PLACES = {  # of files and folders of a run
    "config": CONFIG, "metrics": METRICS, "tensorboard": "tensorboard", "reference": "reference",
    "checkpoints": CHECKPOINTS, "exported": "exported", "profiles": "profiles", "samples": KEPT,
    "validation_samples": VALIDATED, "every_validation": VALIDATION, "report": "report.html",
    "report_text": "report.md", "failures": "failures.jsonl", "groups": "groups.jsonl", "timeline": "timeline.jsonl",
    "alarms": ALARMS, "alarms_first": ALARMS_FIRST, "alarms_actions": ALARMS_ACTIONS, "code": "code.json",
    "trackers": "trackers",
}  # fmt: skip


class RunFolder:
    """Paths of a run's files, its configuration, and its lock."""

    def __init__(self, path: str | Path) -> None:
        self.path = checked_path(str(path))
        self._claim: IO[str] | None = None

    def __getattr__(self, name: str) -> Path:
        """Where one of ``PLACES`` is."""
        if name not in PLACES:
            raise AttributeError(name)
        return self.path / PLACES[name]

    def validation(self, update: int) -> Path:
        """Folder of the validation after ``update`` policy updates."""
        return self.every_validation / f"{update:06d}"

    def alarm_sheet(self, name: str) -> Path:
        """Image of some samples: of the first update, or of one at which an alarm was raised."""
        return self.alarms_first.parent / f"{name}.png"

    def validations(self) -> list[int]:
        """Updates with a validation, in order."""
        return sorted(int(file.parent.name) for file in self.every_validation.glob("[0-9]*/samples.jsonl"))

    @classmethod
    def of_run(cls, path: str) -> Self:
        """The folder of a run, started at least.

        Raises:
            UserError: it is none.
        """
        folder = cls(path)
        if not holds_run(folder.path):
            raise UserError(f"{path} is not the folder of a run; give one that burnish train wrote (output_dir)")
        return folder

    def read_metrics(self) -> list[dict[str, Any]]:
        """All valid lines of metrics.jsonl; one that was truncated when a run was killed is left out."""
        lines = read_file(self.metrics).splitlines() if self.metrics.is_file() else []
        rows = list(map(read_row, lines))
        if damaged := [str(number) for number, row in enumerate(rows, 1) if row is None]:
            log.warning("%s: line %s: truncated or damaged; ignored", self.metrics, listed(damaged, 10))
        return [row for row in rows if row is not None]

    def claim(self) -> None:
        """Lock the folder, if it exists, against other training processes until ``close`` or the end of this one.

        Raises:
            UserError: another process trains here, or the folder holds files that no run wrote.
        """
        if self._claim is not None:
            return
        check_run_folder(str(self.path))
        if not self.path.is_dir():
            return
        places = {CLAIM, EARLIER, *(place.partition("/")[0] for place in PLACES.values())}
        for link in filter(Path.is_symlink, self.path.rglob("*")):  # the folder may come from somebody else
            first, *inner = link.relative_to(self.path).parts
            # this is written to; further inside, libraries of trackers have links of their own
            if first in places and (len(inner) < 2 or (first != PLACES["trackers"] and leads_out(link, self.path))):
                raise UserError(f"{link} is a link; remove it, or put what it leads to in its place")
        import fcntl

        with writing(self.path):
            file = (self.path / CLAIM).open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read().strip() or "unknown"
            file.close()
            raise UserError(
                f"output_dir is {self.path}, which another process is training in ({who}); wait for it or stop it, or "
                "give another output_dir"
            ) from None
        except OSError as error:  # a file system without locks
            log.warning("%s can't be locked against other processes: %s", self.path, error.strerror)
        with writing(self.path):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
        self._claim = file

    def close(self) -> None:
        """Release the lock."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def begin(self, config: RunConfig, *, resumed_at: int | None) -> None:
        """Create and lock the folder, and save the configuration.

        A new run moves the files of an earlier attempt into ``earlier/``; a resumed one removes the validations that
        it will repeat.
        """
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.claim()
        with writing(self.path):
            if resumed_at is None:
                self._archive()
            else:
                for update in self.validations():
                    if update > resumed_at:
                        shutil.rmtree(self.validation(update))
        write_atomically(self.config, dump(config).encode())
        self._record_code(digests(config), resumed=resumed_at is not None)

    def _record_code(self, now: dict[str, str], *, resumed: bool) -> None:
        """Save hashes of the user's code, and warn about code that changed since the run was last active."""
        if resumed and self.code.exists():
            try:
                before = parse_json(self.code.read_bytes())
                changed = [who for who, digest in now.items() if before.get(who, digest) != digest]
            except (ValueError, AttributeError):
                changed = []
                log.warning("%s is damaged; changes of your functions can't be detected", self.code)
            if changed:
                log.warning(
                    "code changed since the run in %s was last active: %s; the run continues with the new code, and "
                    "metrics from here on are not comparable with earlier ones; give another output_dir to start a "
                    "new run",
                    self.path,
                    ", ".join(changed),
                )
        write_atomically(self.code, json.dumps(now, indent=1).encode() + b"\n")

    def refuse_other_configuration(self, config: RunConfig) -> None:
        """Check that this folder's run may resume with ``config``.

        Raises:
            UserError: naming every option that differs and may not.
        """
        if not self.config.exists():
            return
        tree = to_dict(config)
        ours = dict(flattened(tree)) | dict(uses(tree))
        try:
            other = [
                f"{option}: {value} -> {show(ours.get(option))}" for option, value in used_by(str(self.config))
                if names_code(value) and not may_change(config, option)
                and portable(option, value) != portable(option, ours.get(option))
            ]  # fmt: skip
            before = config if other else self._before(config)  # or code that nobody here has named would be imported
        except UserError as error:
            raise UserError(
                f"{self.config}, the options of the run that is to be resumed, can't be read: {first_line(error)}\n"
                "if it is damaged, remove it: the run goes on with the options that are given"
            ) from error
        decaying = [name for name, one in config.optimizers.items() if one.has_length and one.schedule_updates is None]
        options = {line: line.split(":", 1)[0] for line in changes(before, config)}
        differing = other or [
            line for line, option in options.items()
            if not may_change(config, option) or (option == "steps" and decaying)
        ]  # fmt: skip
        if differing:
            # with this length the updates that were made would be the same, if there is such a length
            length = " ".join(f"{name}.schedule_updates={max(before.steps, config.steps)}" for name in decaying)
            hint = f"\nthe learning rate's schedule is of {before.steps} updates; to change steps, also set: {length}"
            raise UserError(
                f"output_dir is {config.output_dir}, whose run was started with other options (then -> now):"
                + "".join(f"\n  {line}" for line in differing)
                + "\ngive the same options to resume it, or another output_dir to start a new run, or to go on from "
                f"this one with resume={self.checkpoints}/NUMBER"
                + (hint if length and before.steps != config.steps else "")
            )

    def with_its_batches(self, config: RunConfig) -> RunConfig:
        """The configuration with this run's sizes of batches in place of auto: others would round otherwise."""
        unsettled = batches.smallest(config) if self.config.exists() else {}
        if not unsettled:
            return config
        before = self._before(config)
        same = before.ranks == config.ranks
        return batches.with_sizes(
            config, {
                option: attrgetter(option)(before) for option in unsettled
                if same or not option.startswith("sharding.")
            },
        )  # fmt: skip

    def _before(self, config: RunConfig) -> RunConfig:
        """The configuration that this folder's run was started with; files of code may have moved since."""
        theirs = dict(used_by(str(self.config)))
        # of a class with the same name in another file ours is taken: theirs may be somebody else's code
        classes = {".".join(place): name for place, _, name in chosen_by_path(to_dict(config))}
        ours = {"plugins": config.plugins} | {option: name for option, name in classes.items() if option in theirs}
        return load(str(self.config), [f"{option}={json.dumps(value)}" for option, value in ours.items()])

    def _archive(self) -> None:
        """Move the files of an attempt without a checkpoint into ``earlier/``."""
        places = {place.partition("/")[0] for name, place in PLACES.items() if name != "checkpoints"}
        files = [self.path / place for place in places if (self.path / place).exists()]
        if not files:
            return
        attempt = 1
        while (archive := self.path / EARLIER / str(attempt)).exists():
            attempt += 1
        archive.mkdir(parents=True)
        for file in files:
            file.rename(archive / file.name)
        log.warning("an earlier attempt in %s saved no checkpoint; its files are now in %s", self.path, archive)


def check_place(config: RunConfig) -> None:
    """Refuse the configuration of a run that would train elsewhere than in that run's folder, without being told to.

    Raises:
        UserError: the folder has been moved, or its relative path means another one from here.
    """
    path, (_, given) = Path(config.origin.recipe), read_machine(config.origin.overrides)
    if path.name != CONFIG or not (path.parent / METRICS).exists() or "output_dir" in given:
        return
    if Path(config.output_dir).resolve() != path.parent.resolve():
        raise UserError(
            f"{path} is of the run in {path.parent}, but its output_dir is {config.output_dir}, another folder from "
            f"here; give output_dir={path.parent} to go on with that run, or a new one to start over with its options"
        )


def read_row(line: bytes) -> dict[str, Any] | None:
    """The metrics in a line of metrics.jsonl; None where it is truncated or damaged."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    is_row = isinstance(row, dict) and all(one is None or is_number(one) for one in row.values())
    return row if is_row and type(row.get(STEP)) is int else None


def digests(config: RunConfig) -> dict[str, str]:
    """Hash of the file of each function and plugin by the option that names it; imports of it are not followed."""
    paths = {f"{caller} ({path})": path for caller, named in config.user_code().items() for path in named}
    paths |= {f"plugins ({Path(where).name})": where for where in config.plugins}
    for place, _, name in chosen_by_path(to_dict(config)):
        option = ".".join(place)
        paths[f"{option} ({portable(option, name)})"] = name
    found = {who: code_of(path) for who, path in paths.items()}
    return {who: hashlib.sha256(code).hexdigest()[:16] for who, code in found.items() if code is not None}
