"""Checkpoints: what is saved comes back, damage is found and named, the newest and the best stay, saving is beside."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from burnish.checkpoint import store as checkpoint
from burnish.checkpoint.files import MANIFEST
from burnish.utils import background
from burnish.utils.errors import UserError
from tests.support.checkpoints import IDENTITY, TENSORS, check, leftovers, loaded, make, same, save, state, updates

DEADLINE = 30.0


def flip(file: Path, position: int, bit: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[position] ^= 1 << bit
    file.write_bytes(raw)


def saved(folder: Path, *scores: float | None) -> Path:
    """Checkpoints of as many updates, all of them kept; where the last one is."""
    for update, score in enumerate(scores, 1):
        path = save(make(folder, keep_last=9), update, score=score)
    return path


def test_what_is_saved_comes_back(tmp_path):
    assert make(tmp_path / "missing").latest() is make(tmp_path / "missing").best() is None
    assert not (tmp_path / "missing").exists()
    store = make(tmp_path / "run" / "checkpoints")
    path = save(store, 3, score=0.5)
    assert path == tmp_path / "run" / "checkpoints" / "00000003"
    check(make(tmp_path / "run" / "checkpoints").latest(), 3)
    check(store.open(str(path)), 3)
    assert store.open(path).score == 0.5
    before = path.stat()
    after = save(make(path.parent), 3, score=0.5).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns), "the same again changes nothing"
    assert leftovers(path.parent) == []


def test_parameters_with_gradients_and_views_are_saved_as_small_plain_tensors(tmp_path):
    layer = torch.nn.Linear(4, 4)
    layer(torch.ones(1, 4)).sum().backward()
    given = {"policy": {"weight": layer.weight, "view": torch.arange(1_000_000.0)[10:13]}}
    path = make(tmp_path).save(1, given, identity=IDENTITY, score=None)
    found = loaded(make(tmp_path).latest())["policy"]
    assert type(found["weight"]) is torch.Tensor
    assert not found["weight"].requires_grad
    assert torch.equal(found["weight"], layer.weight)
    assert found["view"].tolist() == [10, 11, 12]
    assert sum(file.stat().st_size for file in path.rglob("*")) < 20_000
    with pytest.raises(AssertionError, match=r"trainer\.list\[1\]"):  # what a file can't hold
        make(tmp_path).save(1, {"trainer": {"list": [1, object()]}}, identity=IDENTITY, score=None)


def test_the_newest_are_kept_and_the_best(tmp_path):
    store = make(tmp_path / "best", keep_last=2)
    scores = [0.1, 0.9, None, 0.3, 0.9, 0.2, float("nan"), 0.4]
    expected = [[1], [1, 2], [2, 3], [2, 3, 4], [4, 5], [5, 6], [5, 6, 7], [5, 7, 8]]
    for update, (score, kept) in enumerate(zip(scores, expected, strict=True), 1):
        save(store, update, score=score)
        assert updates(store.folder) == kept
    check(store.best(), 5)
    check(store.latest(), 8)
    save(make(tmp_path / "best", keep_last=1), 9, score=0.0)  # a fresh process keeps the same
    assert updates(store.folder) == [5, 9]
    store = make(tmp_path / "newest", keep_last=1, keep_best=False)
    for update in (1, 2, 3):
        save(store, update, score=-update)
    assert updates(store.folder) == [3]
    assert store.best().update == 3


def test_fewer_are_kept_where_they_take_too_much_room(tmp_path, caplog):
    saved(tmp_path / "one", 0.9)
    size = make(tmp_path / "one").latest().bytes / 1e9
    for gigabytes, kept in [(1.5, [1, 5]), (2.5, [1, 5]), (3.5, [1, 4, 5]), (9, [1, 2, 3, 4, 5]), (0.5, [1, 5])]:
        caplog.clear()
        folder = tmp_path / str(gigabytes)
        for update, score in [(1, 0.9), (2, 0.1), (3, 0.3), (4, 0.2), (5, None)]:
            save(make(folder, keep_last=9, max_gb=gigabytes * size), update, score=score)
        assert updates(folder) == kept
        assert ("checkpoint.max_gb is" in caplog.text) == (gigabytes < 2)
    for update in (6, 7):
        save(make(folder, keep_last=9, max_gb=0.5 * size, keep_best=False), update)
    assert updates(folder) == [7]


def test_damaged_ones_count_neither_as_best_nor_as_newest(tmp_path):
    saved(tmp_path, 0.9, 0.5, 0.1)
    flip(tmp_path / "00000001" / TENSORS, 500, 3)
    assert make(tmp_path).best().update == 2
    (tmp_path / "00000003" / MANIFEST).unlink()
    save(make(tmp_path, keep_last=2, keep_best=False), 4, score=0.2)
    assert updates(tmp_path) == [2, 4]


def test_an_update_that_is_saved_again_replaces_what_differs_or_is_damaged(tmp_path):
    saved(tmp_path, None, None, None, None)
    save(make(tmp_path, keep_last=1, keep_best=False), 2, variant=1)
    assert updates(tmp_path) == [2, 3, 4], "newer ones are left alone"
    path = tmp_path / "00000002"
    check(make(tmp_path).open(path), 2, variant=1)
    flip(path / TENSORS, 900, 1)
    save(make(tmp_path, keep_last=9), 2, variant=1)
    check(make(tmp_path).open(path), 2, variant=1)
    assert leftovers(tmp_path) == []


def test_a_checkpoint_of_another_model_is_refused_entry_by_entry(tmp_path):
    saved(tmp_path, None)
    with pytest.raises(UserError) as caught:
        make(tmp_path).latest().load({"model": "tiny", "algorithm": "flow_grpo", "ema": "0.9"})
    message = str(caught.value)
    for said in ("algorithm is 'diffusion_nft'", "'flow_grpo' here", "parameters is '0123abcd'", "ema is None"):
        assert said in message
    assert "model is" not in message


def edit(file: Path) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"score": 99.0}, indent=1))


def cut(part: float) -> Callable[[Path], None]:
    return lambda file: os.truncate(file, int(file.stat().st_size * part))


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "no manifest": (MANIFEST, Path.unlink), "edited manifest": (MANIFEST, edit), "empty manifest": (MANIFEST, cut(0)),
    "half a manifest": (MANIFEST, cut(0.5)), "list as a manifest": (MANIFEST, lambda file: file.write_text("[]")),
    "no text as a manifest": (MANIFEST, lambda file: file.write_bytes(b"\xff\xfe\x00")),
    "no state": ("state.json", Path.unlink), "half a state": ("state.json", cut(0.5)),
    "no tensors": (TENSORS, Path.unlink), "half the tensors": (TENSORS, cut(0.5)),
    "short tensors": (TENSORS, lambda file: os.truncate(file, file.stat().st_size - 1)),
    "long tensors": (TENSORS, lambda file: os.truncate(file, file.stat().st_size + 1)),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, caplog, case):
    path = saved(tmp_path, None, None)
    name, damage = DAMAGES[case]
    damage(path / name)
    with caplog.at_level(logging.WARNING):
        check(make(tmp_path).latest(), 1)
    assert str(path / name) in caplog.text
    with pytest.raises(UserError, match=name) as caught:
        make(tmp_path).open(path)
    if case.startswith(("half the", "short", "long")):
        assert re.search(r"has \d+ bytes of \d+", str(caught.value))


def test_any_flipped_bit_is_found(tmp_path, caplog):
    path = saved(tmp_path, None, None)
    draw = random.Random(0)
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        for _ in range(10):
            position, bit = draw.randrange(file.stat().st_size), draw.randrange(8)
            flip(file, position, bit)
            caplog.clear()
            check(make(tmp_path).latest(), 1)
            assert str(file) in caplog.text, (file, position, bit)
            flip(file, position, bit)
    check(make(tmp_path).latest(), 2)


def test_a_path_that_is_no_checkpoint_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no such folder"):
        make(tmp_path).open(tmp_path / "nothing")
    found = make(tmp_path).open(save(make(tmp_path), 7))
    with pytest.raises(UserError, match=r"no such folder.* has 00000007 \(checkpoint.keep_last"):
        make(tmp_path).open(tmp_path / "00000006")
    (tmp_path / "00000007").rename(tmp_path / "00000008")
    with pytest.raises(UserError, match="is of policy update 7"):
        make(tmp_path).open(tmp_path / "00000008")
    assert make(tmp_path).latest() is None
    with pytest.raises(UserError, match="was removed"):  # while it is read
        found.load(IDENTITY)
    with monkeypatch.context() as patch:
        patch.setattr("burnish.checkpoint.manifest.FORMAT", 3)
        newer = save(make(tmp_path), 1)
    with pytest.raises(UserError, match="has format 3"):
        make(tmp_path).open(newer)


def test_leftovers_of_a_kill_go_at_the_first_save_and_nothing_else_does(tmp_path):
    saved(tmp_path, None)
    ours, others = tmp_path / ".saving-00000002-0123abcd", tmp_path / ".saving-mine"
    for folder in (ours, others):
        (folder / "part").mkdir(parents=True)
    store = make(tmp_path)
    check(store.latest(), 1)
    assert ours.exists(), "looking at a run that trains must not take its half-written checkpoint away"
    save(store, 2).rename(tmp_path / ".replaced-00000002-0123abcd")  # killed while it was replaced
    assert not ours.exists()
    check(make(tmp_path).latest(), 2)
    save(make(tmp_path, keep_last=2), 3)
    assert updates(tmp_path) == [2, 3]
    assert leftovers(tmp_path) == [others.name]


def test_a_validation_is_written_down_when_it_is_done(tmp_path, monkeypatch):
    """What was saved before it knows that it is missing; the better one is kept from when its reward is there."""
    store = make(tmp_path, keep_last=1)
    save(store, 1, score=0.5)
    metrics = {"loss": 0.1 + 0.2, "odd": float("nan")}
    store.save(2, state(2), identity=IDENTITY, score=None, unvalidated=metrics)
    found = make(tmp_path).latest()
    assert found.update == 2
    assert found.unvalidated["loss"] == metrics["loss"]
    assert math.isnan(found.unvalidated["odd"])
    assert make(tmp_path).best().update == 1
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(UserError, match="is intact"):
            store.validated(2, 0.9)
    assert make(tmp_path).latest().unvalidated["loss"] == metrics["loss"]
    store.validated(2, 0.9)
    done = make(tmp_path).latest()
    assert (done.update, done.score, done.unvalidated) == (2, 0.9, None)
    check(done, 2)
    assert (updates(store.folder), leftovers(store.folder)) == ([2], [])


def full(*args: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Gate:
    """Nothing is written until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached, write = threading.Event(), threading.Event(), checkpoint.write

        def waiting(*given: object) -> object:
            self.reached.set()
            assert self.opened.wait(DEADLINE)
            return write(*given)

        patch.setattr(checkpoint, "write", waiting)


@pytest.fixture
def gate(monkeypatch):
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


def save_and_raise(folder: Path, update: int, error: type[BaseException]) -> None:
    """A run that ends with an error while it saves."""
    with make(folder, asynchronous=True) as store:
        save(store, update)
        raise error


def test_what_changes_after_save_has_returned_is_not_saved(tmp_path, gate):
    store, given, layer = make(tmp_path, asynchronous=True), state(1), torch.nn.Linear(3, 3)
    given["roles"]["policy"] |= {"weight": layer.weight, "row": layer.weight[1]}
    before = state(1)
    before["roles"]["policy"] |= {"weight": layer.weight.detach().clone(), "row": layer.weight.detach()[1].clone()}
    store.save(1, given, identity=IDENTITY, score=0.5)
    given["roles"]["policy"]["layer.weight"] += 1
    given["groups"]["actor"]["optimizer"]["state"][0]["exp_avg"].zero_()
    given["trainer"]["version"] = 7
    given["roles"]["policy"]["new"] = torch.ones(1)
    with torch.no_grad():
        layer.weight.add_(1.0)
    gate.opened.set()
    store.wait()
    assert same(loaded(store.latest()), before)
    assert store.latest().score == 0.5


def test_one_is_written_at_a_time_and_until_it_is_whole_the_earlier_one_is_the_newest(
    tmp_path, gate, caplog, monkeypatch
):
    gate.opened.set()
    store = make(tmp_path, keep_last=3, asynchronous=True)
    save(store, 1)
    store.wait()
    gate.opened.clear()
    gate.reached.clear()
    save(store, 2)
    assert gate.reached.wait(DEADLINE)
    check(store.latest(), 1)
    check(make(tmp_path).latest(), 1)
    assert leftovers(tmp_path), "it is written aside"
    monkeypatch.setattr(background, "QUIET", 0.1)
    threading.Timer(0.3, gate.opened.set).start()
    save(store, 3)
    assert str(tmp_path / "00000002") in caplog.text, "it says what it waits for"
    store.wait()
    assert updates(tmp_path) == [1, 2, 3]
    assert store.seconds >= 0.3
    check(store.latest(), 3)
    assert leftovers(tmp_path) == []


def test_a_failure_is_raised_at_the_next_save_when_asked_and_at_the_end_and_only_once(tmp_path, monkeypatch):
    store = make(tmp_path, asynchronous=True)
    save(store, 1)
    store.wait()
    failing, failed = threading.Event(), threading.Event()

    def fail_later(*args: object) -> None:
        failing.wait(DEADLINE)
        full()

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write", full)
        save(store, 2)
        with pytest.raises(UserError, match=f"no space is left in {tmp_path}.*00000001 is intact"):
            save(store, 3)
        store.wait()
        patch.setattr(checkpoint, "write", fail_later)
        save(store, 4)
        store.raise_failed()  # it has not failed yet
        store._writing._future.add_done_callback(lambda _: failed.set())
        failing.set()
        assert failed.wait(DEADLINE)
        with pytest.raises(UserError, match="no space is left"):
            store.raise_failed()
        end = make(tmp_path / "end", asynchronous=True)
        with pytest.raises(UserError, match="there is no earlier one"), end:
            save(end, 1)
    store.raise_failed()
    save(store, 5)
    store.wait()
    check(store.latest(), 5)
    assert leftovers(tmp_path) == []


def test_an_error_of_the_run_goes_first_and_who_wants_to_be_gone_does_not_wait(tmp_path, gate, monkeypatch, caplog):
    with pytest.raises(KeyboardInterrupt):
        save_and_raise(tmp_path / "gone", 1, KeyboardInterrupt)
    assert not gate.opened.is_set()
    assert not list((tmp_path / "gone").glob("0*"))
    threading.Timer(0.2, gate.opened.set).start()
    with pytest.raises(ZeroDivisionError):
        save_and_raise(tmp_path / "run", 1, ZeroDivisionError)
    check(make(tmp_path / "run").latest(), 1)
    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.raises(ZeroDivisionError):
        save_and_raise(tmp_path / "run", 2, ZeroDivisionError)
    assert "no space is left" in caplog.text
