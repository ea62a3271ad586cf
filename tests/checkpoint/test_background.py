"""Saving while training goes on: what is written is what was, one at a time, and no failure stays unsaid."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
import torch

from burnish.checkpoint import store as checkpoint
from burnish.checkpoint import tensor_file
from burnish.training.sharding import mesh_of
from burnish.utils import background
from burnish.utils.errors import UserError
from tests.support import rank_runs
from tests.support.checkpoints import IDENTITY, check, leftovers, loaded, make, same, save, state, updates

DEADLINE = 30.0


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


def fail(*args: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_changes_after_save_has_returned_is_not_saved(tmp_path, gate):
    store, given = make(tmp_path, asynchronous=True), state(1)
    before = state(1)
    store.save(1, given, identity=IDENTITY, score=0.5)
    given["roles"]["policy"]["layer.weight"] += 1
    given["groups"]["actor"]["optimizer"]["state"][0]["exp_avg"].zero_()
    given["trainer"]["version"] = 7
    given["roles"]["policy"]["new"] = torch.ones(1)
    gate.opened.set()
    store.wait()
    assert same(loaded(store.latest()), before)
    assert store.latest().score == 0.5


def test_parameters_are_copied_without_their_gradients(tmp_path, gate):
    store, layer = make(tmp_path, asynchronous=True), torch.nn.Linear(3, 3)
    weight = layer.weight.detach().clone()
    store.save(1, {"policy": {"weight": layer.weight, "row": layer.weight[1]}}, identity=IDENTITY, score=None)
    with torch.no_grad():
        layer.weight.add_(1.0)
    gate.opened.set()
    store.wait()
    found = loaded(store.latest())["policy"]
    assert torch.equal(found["weight"], weight)
    assert torch.equal(found["row"], weight[1])
    assert type(found["weight"]) is torch.Tensor


def test_until_it_is_whole_the_earlier_one_is_the_newest(tmp_path, gate):
    gate.opened.set()
    store = make(tmp_path, asynchronous=True)
    save(store, 1)
    store.wait()
    gate.opened.clear()
    gate.reached.clear()
    save(store, 2)
    assert gate.reached.wait(DEADLINE)
    check(store.latest(), 1)
    check(make(tmp_path).latest(), 1)
    assert leftovers(tmp_path), "it is written aside"
    gate.opened.set()
    store.wait()
    check(store.latest(), 2)
    assert leftovers(tmp_path) == []


def test_one_is_written_at_a_time_and_says_what_it_waits_for(tmp_path, gate, caplog, monkeypatch):
    monkeypatch.setattr(background, "QUIET", 0.1)
    store = make(tmp_path, keep_last=3, asynchronous=True)
    save(store, 1)
    threading.Timer(0.3, gate.opened.set).start()
    save(store, 2)
    assert f"waiting until {tmp_path / '00000001'} is written" in caplog.text
    assert 1 in updates(tmp_path)
    store.wait()
    assert updates(tmp_path) == [1, 2]
    assert store.seconds >= 0.3


def test_a_failure_is_raised_at_the_next_save_and_only_once(tmp_path, monkeypatch):
    store = make(tmp_path, asynchronous=True)
    save(store, 1)
    store.wait()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write", fail)
        save(store, 2)
        with pytest.raises(UserError, match=f"no space is left in {tmp_path}.*00000001 is intact"):
            save(store, 3)
    store.wait()
    check(store.latest(), 1)
    save(store, 3)
    store.wait()
    check(store.latest(), 3)
    assert leftovers(tmp_path) == []


def test_a_failure_is_raised_as_soon_as_somebody_asks_and_only_once(tmp_path, monkeypatch):
    store = make(tmp_path, asynchronous=True)
    store.raise_failed()
    with monkeypatch.context() as patch:
        failing, failed = threading.Event(), threading.Event()

        def fail_later(*args: object) -> None:
            failing.wait(DEADLINE)
            fail()

        patch.setattr(checkpoint, "write", fail_later)
        save(store, 1)
        store.raise_failed()  # it has not failed yet
        store._writing._future.add_done_callback(lambda _: failed.set())
        failing.set()
        assert failed.wait(DEADLINE)
        with pytest.raises(UserError, match="no space is left"):
            store.raise_failed()
    store.raise_failed()
    save(store, 2)
    store.wait()
    check(store.latest(), 2)


def test_a_failure_is_raised_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "write", fail)
    with pytest.raises(UserError, match=r"no space is left.*there is no earlier one"), make(
        tmp_path, asynchronous=True
    ) as store:  # fmt: skip
        save(store, 1)


def test_an_error_of_the_run_goes_first_and_the_save_is_finished(tmp_path, gate, monkeypatch, caplog):
    threading.Timer(0.2, gate.opened.set).start()
    with pytest.raises(ZeroDivisionError):
        save_and_raise(tmp_path, 1, ZeroDivisionError)
    check(make(tmp_path).latest(), 1)
    monkeypatch.setattr(checkpoint, "write", fail)
    with pytest.raises(ZeroDivisionError):
        save_and_raise(tmp_path, 2, ZeroDivisionError)
    assert "no space is left" in caplog.text


def test_who_wants_to_be_gone_at_once_does_not_wait(tmp_path, gate):
    with pytest.raises(KeyboardInterrupt):
        save_and_raise(tmp_path, 1, KeyboardInterrupt)
    assert not gate.opened.is_set()
    assert updates(tmp_path) == []


def meanwhile(ranks, folder):
    """Two checkpoints, with sums and changed weights while they are written; then one for which there is no room."""
    from torch.distributed.tensor import Shard, distribute_tensor

    weight = distribute_tensor(torch.arange(5.0), mesh_of(ranks, None, "cpu"), [Shard(0)])
    state = {"roles": {"policy": {"weight": weight}}, "trainer": {"version": 1}}
    store, found = make(folder / "store", ranks=ranks, asynchronous=True, keep_last=3), []
    write = tensor_file.write

    def slowly(*args):
        sums.wait(DEADLINE)
        return write(*args)

    tensor_file.write = slowly
    for update in (1, 2):
        sums = threading.Event()
        store.save(update, state, identity=IDENTITY, score=None)
        weight.add_(10.0)
        found.append(ranks.sum({"a": 1.0})["a"])
        sums.set()
        found += [ranks.sum({"a": 1.0})["a"] for _ in range(100)]
    store.wait()
    if ranks.rank == 1:
        tensor_file.write = fail
    store.save(3, state, identity=IDENTITY, score=None)
    with pytest.raises(UserError) as refused:
        store.wait()
    ranks.max(0)  # both have failed
    saved = [loaded(store.open(folder / "store" / name)) for name in ("00000001", "00000002")]
    return {
        "sums": set(found), "said": str(refused.value), "left": sorted(p.name for p in (folder / "store").iterdir()),
        "loaded": [one["roles"]["policy"]["weight"].tolist() for one in saved],
    }  # fmt: skip


@pytest.mark.cluster
def test_ranks_write_together_while_they_train(tmp_path):
    for found in rank_runs.together(meanwhile, tmp_path, deadline=180):
        assert found["sums"] == {2.0}
        assert found["left"] == ["00000001", "00000002"]
        assert found["loaded"] == [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]]
        assert "no space is left" in found["said"]
        assert "00000002 is intact" in found["said"]
