"""Where everything of a run lies, and what must stay the same when it goes on."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import stat
from pathlib import Path
from typing import IO, Any

from burnish.config import RunConfig, changes, dump, load
from burnish.config.user_code import digests
from burnish.utils.disk import write_whole, writing
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json
from burnish.utils.paths import CHECKPOINTS, CONFIG, METRICS, holds_run
from burnish.utils.reading import checked_path, read_file

log = logging.getLogger(__name__)

STEP = "training/global_step"  # first in every line of metrics.jsonl

# what may change when a run goes on: it decides neither the trained weights nor what is compared over time
_MAY_CHANGE = re.compile(
    r"(steps|output_dir|resume|runtime|plugins|pools\..*|ray\..*|pipeline\.(max_staleness|drop|timeout)|checkpoint\..*|scoring\..*"
    r"|validation\.every|sharding\..*|rollout\.batch_size|trainer\.micro_batch_(size|tokens)"
    r"|(critic\.)?optimizer\.schedule_updates|trainer\.(max_(skipped|empty)_updates|expires_at|expiry_margin)"
    r"|model\.gradient_checkpointing|profiler(\..*)?)$"
)


class RunFolder:
    """The folder of a run: names of its parts, its configuration, and what an earlier attempt left in it."""

    def __init__(self, path: str | Path) -> None:
        self.path = checked_path(str(path))
        self.config = self.path / CONFIG
        self.metrics = self.path / METRICS
        self.tensorboard = self.path / "tensorboard"
        self.reference = self.path / "reference"
        self.checkpoints = self.path / CHECKPOINTS
        self.profiles = self.path / "profiles"
        self.report = self.path / "report.html"
        self.failures = self.path / "failures.jsonl"
        self.code = self.path / "code.json"
        self._claim: IO[str] | None = None

    def validation(self, update: int) -> Path:
        """Pictures and verdicts of the validation after so many policy updates."""
        return self.path / "validation" / f"{update:06d}"

    def validations(self) -> list[int]:
        """Updates whose validation is here, the earliest first."""
        found = (self.path / "validation").glob("[0-9]*/samples.jsonl")
        return sorted(int(file.parent.name) for file in found)

    def has_run(self) -> bool:
        """Whether a run was begun here."""
        return holds_run(self.path)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Every whole line of metrics.jsonl, in order.

        The last one may be torn, where a run was killed while it was written; it is left out.
        """
        if not self.metrics.exists():
            return []
        rows = []
        for number, text in enumerate(read_file(self.metrics).split(b"\n"), start=1):
            if not text.strip():
                continue
            try:
                row = parse_json(text)
            except ValueError:  # of json, or of a character cut in two
                row = None
            if is_row(row) and type(row.get(STEP)) is int:
                rows.append(row)
            else:
                log.warning("line %d of %s is not whole and is left out", number, self.metrics)
        return rows

    def claim(self) -> None:
        """Keep every other process from training here until ``close``, or until this one ends; nothing without folder.

        Raises:
            UserError: another process trains here.
        """
        if self._claim is not None or not self.path.is_dir():
            return
        try:
            import fcntl
        except ImportError:
            raise UserError("burnish train needs Linux or macOS; on Windows run it in WSL") from None
        with writing(self.path):
            # never through a link: what is in a folder may come from somebody else, and is written over below
            number = os.open(self.path / ".claim", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
            if not stat.S_ISREG(os.fstat(number).st_mode):
                os.close(number)
                raise UserError(f"{self.path / '.claim'} is a pipe or a device; remove it")
            file = os.fdopen(number, "a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read().strip() or "which says nothing of itself"
            file.close()
            raise UserError(
                f"output_dir is {self.path}, and another process trains in it right now: {who}; wait for its end or "
                "stop it, or give another output_dir"
            ) from None
        except OSError as error:  # a file system without locks
            log.warning("%s can't be kept from other processes: %s", self.path, error.strerror)
        with writing(self.path):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
        self._claim = file

    def close(self) -> None:
        """Let others train here."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def begin(self, config: RunConfig, *, resumed_at: int | None) -> None:
        """Create the folder, claim it and save the configuration.

        An attempt that starts anew moves what an earlier one left into ``earlier/``; one that goes on
        removes the validations that it will repeat.
        """
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.claim()
        with writing(self.path):
            if resumed_at is None:
                self._put_aside()
            else:
                for update in self.validations():
                    if update > resumed_at:
                        shutil.rmtree(self.validation(update))
        write_whole(self.config, dump(config).encode())
        self._note_code(digests(config), goes_on=resumed_at is not None)

    def _note_code(self, now: dict[str, str], *, goes_on: bool) -> None:
        """Remember what the user's functions are, and say what changed since the run last went on."""
        if goes_on and self.code.exists():
            try:
                before = parse_json(self.code.read_bytes())
                changed = [who for who, digest in now.items() if before.get(who, digest) != digest]
            except (ValueError, AttributeError):
                changed = []
                log.warning("%s is damaged, so that nobody knows whether functions have changed", self.code)
            if changed:
                log.warning(
                    "changed since the run in %s was last at work: the file of %s; it goes on with what is there now, "
                    "and from here on its metrics are not comparable with those before; give another output_dir to "
                    "start a run of its own",
                    self.path,
                    ", ".join(changed),
                )
        write_whole(self.code, json.dumps(now, indent=1).encode() + b"\n")

    def refuse_other_configuration(self, config: RunConfig) -> None:
        """Check that this folder's run may go on with ``config``.

        Raises:
            UserError: naming every option that differs and must not.
        """
        if not self.config.exists():
            return
        # plugins may lie elsewhere by now
        before = load(str(self.config), [f"plugins={json.dumps(config.plugins)}"])
        differing, ways_out = [], ""
        falling = {name: one for name, one in config.optimizers.items() if one.schedule != "constant"}
        for line in changes(before, config):
            option = line.split(":", 1)[0]
            open_ended = [name for name, one in falling.items() if one.schedule_updates is None]
            if option == "steps" and open_ended:
                differing.append(line)
                # the length that leaves the updates that were made as they are, where there is one
                length = " ".join(f"{name}.schedule_updates={max(before.steps, config.steps)}" for name in open_ended)
                ways_out = (
                    f"\nthe learning rate falls over {before.steps} updates; for another number of steps say over how "
                    f"many it is to fall from here on: {length}"
                )
            elif not _MAY_CHANGE.match(option):
                differing.append(line)
            elif option.endswith(".schedule_updates") and option.removesuffix(".schedule_updates") in falling:
                log.warning("the learning rate goes on as that of a run of another length: %s", line)
        if differing:
            raise UserError(
                f"output_dir is {config.output_dir}, whose run was started with other options, then -> now:"
                + "".join(f"\n  {line}" for line in differing)
                + "\ngive the same options to go on with it, or another output_dir to start a new run"
                + ways_out
            )

    def _put_aside(self) -> None:
        """Keep what an attempt without a checkpoint left, but out of the way of the new one."""
        validation = self.path / "validation"
        parts = (
            self.metrics, self.tensorboard, self.reference, validation, self.profiles, self.report, self.failures,
            self.code, self.config,
        )  # fmt: skip
        if not any(part.exists() for part in parts):
            return
        attempt = 1
        while (aside := self.path / "earlier" / str(attempt)).exists():
            attempt += 1
        aside.mkdir(parents=True)
        for part in parts:
            if part.exists():
                part.rename(aside / part.name)
        log.warning("an earlier attempt in %s saved no checkpoint; what it left is in %s", self.path, aside)


def is_row(value: Any) -> bool:
    """Whether something that was read is metrics by their names: numbers, and None for what is missing."""
    return isinstance(value, dict) and all(one is None or type(one) in (int, float) for one in value.values())
