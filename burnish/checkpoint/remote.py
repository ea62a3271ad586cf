"""Checkpoints of a run at an address: copied there, verified, and fetched from there.

A copy has the layout of a run's folder. Its manifest is written last, when every other file was read back and has the
hash that the manifest states, so that what has a manifest is complete.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from burnish.checkpoint.files import (
    MANIFEST,
    VISIBLE,
    FileEntry,
    Manifest,
    parse,
    read,
    read_manifest,
    reveal,
    sha256_of,
    temporary,
)
from burnish.utils.disk import write_atomically
from burnish.utils.errors import UserError
from burnish.utils.paths import ALARMS, ALARMS_ACTIONS, ALARMS_FIRST, CHECKPOINTS, CONFIG, METRICS

RECORDS = (CONFIG, METRICS, ALARMS, ALARMS_FIRST, ALARMS_ACTIONS)  # a run's other files that go along


class Damaged(UserError):
    """What is read is not what its manifest says."""


class Remote:
    """A run's folder at an address, as its checkpoints see it."""

    def __init__(self, address: str) -> None:
        """Open it; errors of the file system come as they are, mostly from the first use."""
        from fsspec.core import url_to_fs

        self.fs, self.root = url_to_fs(address.rstrip("/"))

    def updates(self) -> list[int]:
        """Numbers of the checkpoints with a manifest, the newest first."""
        self.fs.invalidate_cache()
        try:
            names = [
                str(name).rstrip("/").rpartition("/")[2]
                for name in self.fs.ls(f"{self.root}/{CHECKPOINTS}", detail=False)
            ]
        except FileNotFoundError:
            return []
        found = sorted((int(name) for name in names if VISIBLE.fullmatch(name)), reverse=True)
        return [update for update in found if self.fs.exists(self._place(update, MANIFEST))]

    def copy(self, folder: Path) -> None:
        """Copy a complete checkpoint, or what is missing of it.

        Raises:
            Damaged: a file on this machine is not what the manifest says.
            OSError: what was read back is not what was sent; or of the file system.
        """
        manifest = read_manifest(folder)
        place = self._place(manifest.update, MANIFEST)
        there = self._manifest(manifest.update)
        if there == manifest:
            return
        if there is None or there.files != manifest.files:  # otherwise only its validation is new
            if self.fs.lexists(place):
                self.fs.rm_file(place)  # damaged, or that update was trained again: another checkpoint
            for name, entry in manifest.files.items():
                self._copy_file(folder / name, self._place(manifest.update, name), entry)
        self._write(place, manifest.render())
        if self._manifest(manifest.update) != manifest:
            raise OSError(f"{place} was not kept as it was written")

    def copy_records(self, run: Path) -> None:
        """Copy what else a run has to have to go on, as far as it is written."""
        for name in RECORDS:
            if (run / name).is_file():
                self._write(f"{self.root}/{name}", (run / name).read_bytes())

    def _manifest(self, update: int) -> Manifest | None:
        """The manifest of a copy; None if it is missing or damaged."""
        try:
            return self.manifest(update)
        except Damaged:
            return None

    def manifest(self, update: int) -> Manifest:
        """The manifest of a copy.

        Raises:
            Damaged: it is missing or damaged, or was not written by a run.
        """
        place = self._place(update, MANIFEST)
        try:
            found = parse(self._content(place), place)
        except UserError as error:
            raise Damaged(str(error)) from None
        if found.update != update:
            raise Damaged(f"{place} is of policy update {found.update}, not {update}")
        return found

    def fetch(self, update: int, checkpoints: Path) -> Path:
        """Fetch a copy into a folder of checkpoints; it appears when all of it is there and verified.

        Raises:
            Damaged: a file is not what the manifest says.
            OSError: of either file system.
        """
        manifest = self.manifest(update)
        target = checkpoints / f"{update:08d}"
        staged = temporary("saving", target)
        try:
            for name in manifest.files:
                (staged / name).parent.mkdir(parents=True, exist_ok=True)
                self._check_plain(self._place(update, name))
                self.fs.get_file(self._place(update, name), str(staged / name))
            write_atomically(staged / MANIFEST, manifest.render())
            try:
                read(staged)
            except UserError as error:
                raise Damaged(f"{self._place(update, '')} is damaged: {error}") from None
            reveal(staged, target)  # one that is there is damaged: whoever fetches has looked
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return target

    def fetch_records(self, run: Path) -> None:
        """Fetch what else a run has to have to go on, where this machine doesn't have it."""
        for name in RECORDS:
            place = f"{self.root}/{name}"
            if not (run / name).exists() and self.fs.exists(place):
                (run / name).parent.mkdir(exist_ok=True)
                write_atomically(run / name, self._content(place))

    def _place(self, update: int, name: str) -> str:
        return f"{self.root}/{CHECKPOINTS}/{update:08d}/{name}".rstrip("/")

    def _copy_file(self, file: Path, place: str, entry: FileEntry) -> None:
        if self.fs.exists(place) and self.fs.size(place) == entry.size and self._digest(place) == entry.sha256:
            return
        if sha256_of(file) != entry.sha256:
            raise Damaged(f"{file} is damaged: its sha256 is not the one in {MANIFEST}")
        self._make_way(place)
        self.fs.put_file(str(file), place)
        if self._digest(place) != entry.sha256:
            raise OSError(f"{place} was not kept as it was written: its sha256 is another one")

    def _digest(self, place: str) -> str:
        self._check_plain(place)
        with self.fs.open(place, "rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()

    def _content(self, place: str) -> bytes:
        self._check_plain(place)
        return self.fs.cat_file(place)  # type: ignore[no-any-return]

    def _check_plain(self, place: str) -> None:
        """Refuse what is no file: a pipe never ends, and a link on a shared disk may lead to somebody's own files.

        Raises:
            Damaged: it is missing, or something else.
        """
        self.fs.invalidate_cache()
        try:
            about = self.fs.info(place)
        except FileNotFoundError:
            raise Damaged(f"{place} is missing") from None
        if about["type"] != "file" or about.get("islink"):
            raise Damaged(f"{place} is a folder, a link, a pipe or a device, but should be a file; remove it")

    def _write(self, place: str, content: bytes) -> None:
        self._make_way(place)
        self.fs.pipe_file(place, content)

    def _make_way(self, place: str) -> None:
        self.fs.makedirs(place.rpartition("/")[0], exist_ok=True)
        if self.fs.lexists(place):
            self._check_plain(place)
