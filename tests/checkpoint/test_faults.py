"""Kills and full disks at every step of saving: the newest whole checkpoint is always there and right."""

import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from burnish.checkpoint.store import CheckpointStore
from burnish.utils.errors import UserError
from tests.support.checkpoints import NEWEST, check, leftovers, loaded, make, save, state, updates
from tests.support.disks import small_disk
from tests.support.faults import Faults, disk_full, killed

SAVES = pytest.mark.parametrize(
    ("update", "variant", "meanwhile"),
    [(3, 0, False), (2, 1, False), (3, 0, True)],
    ids=["new", "again", "meanwhile"],
)


@pytest.fixture
def small_state(monkeypatch):
    """Two files instead of five: fewer steps that are alike."""
    monkeypatch.setattr(
        "tests.support.checkpoints.state",
        lambda *which: {name: state(*which)[name] for name in ("roles", "trainer")},
    )


class Bench:
    """Saves again and again from the same beginning: updates 1 and 2 are there."""

    def __init__(self, folder: Path, update: int, variant: int, meanwhile: bool) -> None:
        self.folder, self.update, self.variant = folder, update, variant
        self.options = replace(NEWEST, asynchronous=meanwhile)
        for earlier in (1, 2):
            save(make(folder / "start", keep_last=9), earlier)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, None, disk_full)
            self.save(self.fresh("counted"))
        self.steps = faults.steps
        assert self.steps > 20

    def fresh(self, name: object) -> Path:
        shutil.copytree(self.folder / "start", self.folder / str(name))
        return self.folder / str(name)

    def save(self, folder: Path) -> None:
        """Only what is saved stays."""
        with CheckpointStore(folder, self.options) as store:
            save(store, self.update, variant=self.variant)

    def check(self, folder: Path, *, saved: bool | None) -> None:
        """The newest one is what was saved, or what was there before, or (None) either."""
        for update in updates(folder):
            make(folder).open(folder / f"{update:08d}")
        found = make(folder).latest()
        content = int(loaded(found)["roles"]["policy"]["layer.weight"][0].item()) - found.update
        check(found, found.update, content)
        allowed = {True: [(self.update, self.variant)], False: [(2, 0)]}
        if (found.update, content) == (2, 0):
            assert 1 in updates(folder), "the older one goes only when the new one is there"
        assert (found.update, content) in allowed.get(saved, allowed[True] + allowed[False])

    def go_on(self, folder: Path) -> None:
        """The next save works, and cleans up."""
        store = CheckpointStore(folder, NEWEST)
        save(store, 4)
        check(store.latest(), 4)
        assert updates(folder) == [4]
        assert leftovers(folder) == []


@SAVES
def test_killed_at_any_step_the_newest_whole_one_is_right(tmp_path, small_state, update, variant, meanwhile):
    bench = Bench(tmp_path, update, variant, meanwhile)
    for at in range(bench.steps):
        folder = bench.fresh(at)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            with pytest.MonkeyPatch.context() as patch:
                Faults(patch, at, killed)
                bench.save(folder)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, at
        bench.check(folder, saved=None)
        bench.go_on(folder)


@SAVES
def test_on_a_disk_that_is_full_at_any_step_the_message_is_clear(tmp_path, small_state, update, variant, meanwhile):
    bench = Bench(tmp_path, update, variant, meanwhile)
    refused = 0
    for at in range(bench.steps):
        folder, message = bench.fresh(at), None
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, at, disk_full)
            try:
                bench.save(folder)
            except UserError as error:
                message, refused = str(error), refused + 1
        assert not [name for name in leftovers(folder) if name.startswith(".saving")]
        bench.check(folder, saved=True if message is None else None)
        if message is not None:
            assert f"no space is left in {folder}" in message
            assert "needs about 0.01 MB" in message
            assert f"checkpoint {make(folder).latest().path} is intact" in message
        bench.go_on(folder)
    assert refused > 20


@pytest.mark.parametrize("meanwhile", [False, True])
def test_killed_at_random_moments_the_newest_whole_one_is_right(tmp_path, meanwhile):
    draw, reached = random.Random(1), 0
    for _ in range(12):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            store = CheckpointStore(tmp_path, replace(NEWEST, asynchronous=meanwhile))
            for update in range(reached + 1, reached + 10_000):
                save(store, update)
            os._exit(0)
        deadline = time.monotonic() + 50
        while max(updates(tmp_path), default=0) <= reached and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        found = make(tmp_path).latest()
        check(found, found.update)
        assert found.update > reached
        reached = found.update


@pytest.fixture
def disk(tmp_path):
    """A file system of one megabyte."""
    with small_disk(tmp_path / "disk") as folder:
        yield folder


def test_on_a_real_disk_however_much_is_free_the_message_is_clear(disk):
    folder, filler = disk / "checkpoints", disk / ".filler"
    save(CheckpointStore(folder, NEWEST), 1)
    newest, outcomes = 1, []
    free = shutil.disk_usage(disk).free
    for left in range(0, 120_000, 4096):
        filler.write_bytes(b"0" * (free - left))
        message = ""
        try:
            save(CheckpointStore(folder, NEWEST), newest + 1)
            newest += 1
        except UserError as error:
            message = str(error)
        outcomes.append(not message)
        filler.unlink()
        if message:
            assert f"no space is left in {folder}" in message
            assert f"{folder / f'{newest:08d}'} is intact" in message
        check(make(folder).latest(), newest)
        assert updates(folder) == [newest]
        assert leftovers(folder) == []
    assert outcomes == sorted(outcomes)
    assert 5 < sum(outcomes) < len(outcomes) - 5
