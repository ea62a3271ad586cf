"""Checkpoints of a run at an address: copied there, verified, and fetched from there.

A copy has the layout of a run's folder. Its manifest is written last, when every other file was read back and has the
hash that the manifest states, so that what has a manifest is complete.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from burnish.checkpoint import manifest
from burnish.checkpoint.manifest import VISIBLE
from burnish.utils.disk import sync, write_atomically
from burnish.utils.errors import UserError
from burnish.utils.paths import ALARMS, ALARMS_FIRST, CHECKPOINTS, CONFIG, METRICS
from burnish.utils.reading import check_folder

log = logging.getLogger(__name__)

CHUNK = 8 << 20  # bytes
# a run's other files that go along, and the longest that are read back
RECORDS = {CONFIG: 64 << 20, METRICS: 4 << 30, ALARMS: 64 << 20, ALARMS_FIRST: 64 << 20}
Alive = Callable[[], None]  # is called again and again while something is moved


class Damaged(UserError):
    """What is read is not what its manifest says."""


class Remote:
    """A run's folder at an address, as its checkpoints see it."""

    def __init__(self, address: str, alive: Alive = lambda: None) -> None:
        """Open it; errors of the file system come as they are, mostly from the first use.

        Args:
            address: as ``burnish.utils.addresses`` takes it.
            alive: is called while something is moved.
        """
        from fsspec.core import url_to_fs

        self.fs, self.root = url_to_fs(address.rstrip("/"))
        self.alive = alive
        self._verified: set[tuple[str, str]] = set()  # names and hashes of files that were read back

    def updates(self) -> list[int]:
        """Numbers of the checkpoints with a manifest, the newest first."""
        place = f"{self.root}/{CHECKPOINTS}"
        self.fs.invalidate_cache()
        try:
            names = [str(name).rstrip("/").rpartition("/")[2] for name in self.fs.ls(place, detail=False)]
        except FileNotFoundError:
            return []
        found = sorted((int(name) for name in names if VISIBLE.fullmatch(name)), reverse=True)
        return [update for update in found if self.fs.exists(self._place(update, manifest.NAME))]

    def copy(self, folder: Path) -> None:
        """Copy a complete checkpoint, or what is missing of it.

        Raises:
            Damaged: a file on this machine is not what the manifest says.
            OSError: what was read back is not what was sent; or of the file system.
        """
        content = manifest.read(folder)
        raw, update = manifest.render(content), content["update"]
        there = self._manifest(update)
        if there == raw:
            return
        if there is not None and _files(there) != content["files"]:
            self.fs.rm_file(self._place(update, manifest.NAME))  # that update was trained again: another checkpoint
        for name, about in content["files"].items():
            self._copy_file(folder / name, self._place(update, name), about)
        self._write(self._place(update, manifest.NAME), raw)
        if self._manifest(update) != raw:
            raise OSError(f"{self._place(update, manifest.NAME)} was not kept as it was written")

    def copy_records(self, run: Path) -> None:
        """Copy what else a run has to have to go on, as far as it is written."""
        for name in RECORDS:
            if (run / name).is_file():
                self._write(f"{self.root}/{name}", (run / name).read_bytes())

    def retire(self, keep: int, *, best: bool, update: int) -> None:
        """Remove the oldest copies.

        Args:
            keep: newest copies that stay.
            best: whether the one with the best score stays, too.
            update: newest checkpoint of the run; later ones are of a run that was resumed from an earlier update.
        """
        older = [one for one in self.updates() if one <= update]
        known = [
            (score, one) for one in older if len(older) > keep and best and (score := self._score(one)) is not None
        ]
        for one in older[keep:]:
            if not known or one != max(known)[1]:
                self.fs.rm_file(self._place(one, manifest.NAME))  # first: what is left is no checkpoint
                self.fs.rm(self._place(one, ""), recursive=True)

    def _score(self, update: int) -> float | None:
        try:
            score: float | None = self.content(update)["score"]
        except UserError:  # nothing to go on from
            return None
        return score

    def content(self, update: int) -> dict[str, Any]:
        """The manifest of a copy.

        Raises:
            Damaged: it is missing or damaged, or was not written by a run.
        """
        place = self._place(update, manifest.NAME)
        raw = self._manifest(update)
        if raw is None:
            raise Damaged(f"{place} is missing")
        try:
            found = manifest.parse(raw, place)
        except UserError as error:
            raise Damaged(str(error)) from None
        if found["update"] != update:
            raise Damaged(f"{place} is of policy update {found['update']}, not {update}")
        return found

    def fetch(self, update: int, checkpoints: Path) -> Path:
        """Fetch a copy into a folder of checkpoints; it appears when all of it is there and verified.

        The manifest is checked before anything else is read, and nothing is read beyond the sizes that it states.

        Raises:
            Damaged: a file is not what the manifest says.
            UserError: the disk lacks room.
            OSError: of either file system.
        """
        content = self.content(update)
        need, room = sum(about["size"] for about in content["files"].values()), shutil.disk_usage(checkpoints).free
        if need > room:
            raise UserError(
                f"{self._place(update, '')} has {need / 1e9:.2f} GB, but {checkpoints} has room for {room / 1e9:.2f} "
                "GB; free some, or give another output_dir"
            )
        staged, target = checkpoints / f".saving-{update:08d}-{uuid4().hex[:8]}", checkpoints / f"{update:08d}"
        try:
            for name, about in content["files"].items():
                (staged / name).parent.mkdir(parents=True, exist_ok=True)
                self._fetch_file(self._place(update, name), staged / name, about)
            write_atomically(staged / manifest.NAME, manifest.render(content))
            if target.exists():  # damaged: whoever fetches has looked
                aside = checkpoints / f".removing-{update:08d}-{uuid4().hex[:8]}"
                target.rename(aside)
                shutil.rmtree(aside)
            staged.rename(target)
            sync(checkpoints)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return target

    def fetch_records(self, run: Path) -> None:
        """Fetch what else a run has to have to go on, where this machine doesn't have it."""
        for name, most in RECORDS.items():
            place = f"{self.root}/{name}"
            if not (run / name).exists() and self.fs.exists(place):
                if (size := self.fs.size(place)) > most:
                    raise UserError(f"{place} has {size} bytes, more than {most}: it is not {name} of a run")
                (run / name).parent.mkdir(exist_ok=True)
                write_atomically(run / name, b"".join(self._chunks(place, most)))

    def _place(self, update: int, name: str) -> str:
        return f"{self.root}/{CHECKPOINTS}/{update:08d}/{name}".rstrip("/")

    def _manifest(self, update: int) -> bytes | None:
        place = self._place(update, manifest.NAME)
        if not self.fs.exists(place):
            return None
        self._check_plain(place)
        if (size := self.fs.size(place)) > manifest.LARGEST:
            raise Damaged(f"{place} has {size} bytes, more than a manifest can have")
        return b"".join(self._chunks(place, manifest.LARGEST))

    def _copy_file(self, file: Path, place: str, about: dict[str, Any]) -> None:
        if (place, about["sha256"]) in self._verified:
            return
        there = self.fs.exists(place) and self.fs.size(place) == about["size"]
        if not (there and self._digest(place, about["size"]) == about["sha256"]):
            digest = hashlib.sha256()
            self.fs.makedirs(place.rpartition("/")[0], exist_ok=True)
            if self.fs.lexists(place):
                self._check_plain(place)
            with file.open("rb") as source, self.fs.open(place, "wb") as target:
                while chunk := source.read(CHUNK):
                    digest.update(chunk)
                    target.write(chunk)
                    self.alive()
            if digest.hexdigest() != about["sha256"]:
                raise Damaged(f"{file} is damaged: its sha256 is not the one in {manifest.NAME}")
            if self._digest(place, about["size"]) != about["sha256"]:
                raise OSError(f"{place} was not kept as it was written: its sha256 is another one")
        self._verified.add((place, about["sha256"]))

    def _fetch_file(self, place: str, file: Path, about: dict[str, Any]) -> None:
        digest, found = hashlib.sha256(), 0
        with file.open("xb") as target:
            for chunk in self._chunks(place, about["size"]):
                digest.update(chunk)
                target.write(chunk)
                found += len(chunk)
            target.flush()
            os.fsync(target.fileno())
        if found != about["size"] or digest.hexdigest() != about["sha256"]:
            raise Damaged(f"{place} is damaged: it is not what {manifest.NAME} says")

    def _digest(self, place: str, size: int) -> str:
        digest = hashlib.sha256()
        for chunk in self._chunks(place, size):
            digest.update(chunk)
        return digest.hexdigest()

    def _chunks(self, place: str, most: int) -> Iterator[bytes]:
        """A file's content.

        Raises:
            Damaged: it has more bytes than ``most``, is missing, or is none.
        """
        self.fs.invalidate_cache()
        self._check_plain(place)
        with self.fs.open(place, "rb") as source:
            while chunk := source.read(min(CHUNK, most + 1)):
                if (most := most - len(chunk)) < 0:
                    raise Damaged(f"{place} is damaged: it is longer than its manifest says")
                self.alive()
                yield chunk

    def _check_plain(self, place: str) -> None:
        """Refuse what is no file: a pipe never ends, and a link on a shared disk may lead to somebody's own files.

        Raises:
            Damaged: it is missing, or something else.
        """
        try:
            about = self.fs.info(place)
        except FileNotFoundError:
            raise Damaged(f"{place} is missing") from None
        if about["type"] != "file" or about.get("islink"):
            raise Damaged(f"{place} is a folder, a link, a pipe or a device, but should be a file; remove it")

    def _write(self, place: str, content: bytes) -> None:
        self.fs.makedirs(place.rpartition("/")[0], exist_ok=True)
        if self.fs.lexists(place):
            self._check_plain(place)
        with self.fs.open(place, "wb") as target:
            target.write(content)


def _files(raw: bytes) -> Any:
    """What a manifest lists; None if it is damaged."""
    try:
        return manifest.parse(raw, manifest.NAME)["files"]
    except UserError:
        return None


def intact(folder: Path) -> bool:
    """Whether a checkpoint of this machine is complete and undamaged."""
    try:
        check_folder(folder)
        content = manifest.read(folder)
        for name, about in content["files"].items():
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != about["sha256"]:
                    return False
    except (OSError, UserError):
        return False
    return True
