"""Kills and full disks at every step of saving: the newest whole checkpoint is always there and right."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.checkpoint import tensor_file
from burnish.checkpoint.store import CheckpointStore
from burnish.training.ranks import Ranks, RanksLost
from burnish.training.sharding import mesh_of
from burnish.utils.errors import UserError
from tests.support.checkpoints import IDENTITY, NEWEST, check, leftovers, loaded, make, save, state, updates
from tests.support.disks import small_disk
from tests.support.rank_runs import together

KINDS = {"new": (3, 0, False), "again": (2, 1, False), "meanwhile": (3, 0, True)}  # update, variant, asynchronous
ONCE_MORE = [pytest.param(kind, marks=pytest.mark.thorough) for kind in ("again", "meanwhile")]


def disk_full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Faults:
    """Counts every step that changes the disk; at step ``at`` the ``fault`` happens instead of its end."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int | None, fault: Callable[[], None]) -> None:
        self.steps, self.at, self.fault = 0, at, fault
        path_open, rmtree = Path.open, shutil.rmtree

        def opened(path: Path, mode: str = "r", *rest: object, **kwargs: object) -> object:
            if "w" not in mode:
                return path_open(path, mode, *rest, **kwargs)
            self.step()
            return Faulty(path_open(path, mode, *rest, **kwargs), self)

        def removed(folder: Path, ignore_errors: bool = False) -> None:
            # what cleans up after a failure has to work
            if folder.is_dir() and not (ignore_errors and fault is disk_full):
                next(folder.iterdir()).unlink()
                self.step()
            rmtree(folder, ignore_errors)

        patch.setattr(Path, "open", opened)
        patch.setattr(shutil, "rmtree", removed)
        for owner, name in [(Path, "mkdir"), (Path, "rename"), (os, "fsync")]:
            patch.setattr(owner, name, self.counted(getattr(owner, name)))

    def step(self) -> None:
        self.steps += 1
        if self.steps - 1 == self.at:
            self.fault()

    def counted(self, call: Callable) -> Callable:
        def stepped(*args: object, **kwargs: object) -> object:
            self.step()
            return call(*args, **kwargs)

        return stepped


class Faulty:
    """A file that writes half of the data and then fails."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self.file, self.faults = file, faults

    def write(self, data) -> int:
        half = len(data) // 2
        self.file.write(data[:half])
        if self.faults.steps == self.faults.at:
            self.file.flush()
        self.faults.step()
        return half + self.file.write(data[half:])

    def flush(self) -> None:
        self.faults.step()
        self.file.flush()

    def fileno(self) -> int:
        return self.file.fileno()

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()


class Bench:
    """Saves again and again from the same beginning: updates 1 and 2 are there."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, (self.update, self.variant, meanwhile) = folder, KINDS[kind]
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

    def check(self, folder: Path, *, saved: bool) -> None:
        """The newest one is what was saved, or what was there before where that was not; the next save cleans up."""
        for update in updates(folder):
            make(folder).open(folder / f"{update:08d}")
        found = make(folder).latest()
        content = int(loaded(found)["roles"]["policy"]["layer.weight"][0].item()) - found.update
        check(found, found.update, content)
        if (found.update, content) == (2, 0):
            assert 1 in updates(folder), "the older one goes only when the new one is there"
        allowed = [(self.update, self.variant)] if saved else [(self.update, self.variant), (2, 0)]
        assert (found.update, content) in allowed
        store = CheckpointStore(folder, NEWEST)
        save(store, 4)
        check(store.latest(), 4)
        assert (updates(folder), leftovers(folder)) == ([4], [])


@pytest.fixture
def bench(tmp_path, monkeypatch, request):
    # two files instead of five: fewer steps that are alike
    small = {"roles", "trainer"}
    monkeypatch.setattr(
        "tests.support.checkpoints.state", lambda *which: {k: v for k, v in state(*which).items() if k in small}
    )
    return Bench(tmp_path, request.param)


@pytest.mark.parametrize("bench", ["new", *ONCE_MORE], indirect=True)
def test_killed_at_any_step_the_newest_whole_one_is_right(bench):
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
        bench.check(folder, saved=False)


@pytest.mark.parametrize("bench", ["new", *ONCE_MORE], indirect=True)
def test_on_a_disk_that_is_full_at_any_step_the_message_is_clear(bench):
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
        if message is not None:
            for words in (f"no space is left in {folder}", "0.01 MB", f"{make(folder).latest().path} is intact"):
                assert words in message
        bench.check(folder, saved=message is None)
    assert refused > 20


def test_on_a_real_disk_however_much_is_free_the_message_is_clear(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        folder, filler = disk / "checkpoints", disk / ".filler"
        save(CheckpointStore(folder, NEWEST), 1)
        newest, outcomes = 1, []
        free = shutil.disk_usage(disk).free
        for left in range(0, 120_000, 8192):
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
            assert (updates(folder), leftovers(folder)) == ([newest], [])
        assert outcomes == sorted(outcomes)
        assert 2 < sum(outcomes) < len(outcomes) - 2


def saving_together(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Two checkpoints, with sums and changed weights while they are written; then one for which one has no room."""
    from torch.distributed.tensor import Shard, distribute_tensor

    weight = distribute_tensor(torch.arange(5.0), mesh_of(ranks, None, "cpu"), [Shard(0)])
    state = {"roles": {"policy": {"weight": weight}}, "trainer": {"version": 1, "pair": (1, 2.0)}}
    found: dict[str, Any] = {"sums": set()}
    gate, write = threading.Event(), tensor_file.write

    def slowly(*args: Any) -> Any:
        assert gate.wait(30)
        return write(*args)

    for asynchronous in (False, True):
        place = folder / f"{asynchronous}"
        store = make(place, ranks=ranks, asynchronous=asynchronous, keep_last=3)
        for update in (1, 2):
            (gate.clear if asynchronous else gate.set)()
            tensor_file.write = slowly
            store.save(update, state, identity=IDENTITY, score=None)
            weight.add_(10.0)
            found["sums"] |= {ranks.sum({"a": 1.0})["a"] for _ in range(50)}
            gate.set()
            found["sums"] |= {ranks.sum({"a": 1.0})["a"] for _ in range(50)}
            store.wait()
        tensor_file.write = disk_full if ranks.rank == 1 else write
        with pytest.raises(UserError) as refused:  # noqa: PT012
            store.save(3, state, identity=IDENTITY, score=None)
            store.wait()
        ranks.max(0)  # both have failed
        saved = [loaded(store.open(place / f"{update:08d}")) for update in (1, 2)]
        found[place.name] = {
            "said": str(refused.value), "left": sorted(path.name for path in place.iterdir()),
            "weights": [one["roles"]["policy"]["weight"].tolist() for one in saved], "trainer": saved[1]["trainer"],
        }  # fmt: skip
    return found


@pytest.mark.cluster
def test_ranks_save_together_and_a_disk_that_is_full_for_one_fails_the_save_of_all(tmp_path):
    for found in together(saving_together, tmp_path, deadline=120):
        assert found["sums"] == {2.0}
        for name, first in (("False", 0.0), ("True", 20.0)):
            there = found[name]
            assert "no space is left" in there["said"]
            assert "00000002 is intact" in there["said"]
            assert there["left"] == ["00000001", "00000002"]
            assert there["weights"] == [[first + add + n for n in range(5)] for add in (0.0, 10.0)]
            assert there["trainer"] == {"version": 1, "pair": (1, 2.0)}


def lose(ranks: Ranks, folder: Path) -> str | bytes:
    """The second rank ends without a word, once both are there."""
    ranks.max(0)  # the start
    if ranks.rank:
        return "left"
    try:
        ranks.max(0)  # the update
    except RanksLost as error:
        return f"lost: {error}".encode()
    raise AssertionError("nobody was there")


@pytest.mark.cluster
def test_a_rank_that_is_gone_is_not_waited_for_without_end(tmp_path):
    with pytest.raises(AssertionError, match="left"):  # what the second one returned
        together(lose, tmp_path, deadline=200)
    assert "rank 0 of 2" in torch.load(tmp_path / "rank-0.pt", weights_only=False).decode()
