"""Workers are killed in the middle of what they do, and the run ends with the numbers of one that was left alone."""

from __future__ import annotations

import pytest

from burnish.runtime.faults import GaveUp
from tests.system import deadly
from tests.system.ray_runs import assert_same, run, saved_updates

pytestmark = pytest.mark.cluster


def test_workers_that_sample_and_judge_are_replaced_and_nothing_changes(options, reference, notes, fate, tmp_path):
    undisturbed = reference("pooled")
    last = deadly.calls(notes) + 7
    deadly.die_at(notes, last)
    fate.plan("rollout", "make", 2, rank=1)
    fate.plan("rollout", "make", 4, rank=0)
    assert run(tmp_path / "run", *options("pooled")) == 0
    assert fate.met()
    assert (notes / f"died-{last}").exists()
    assert_same(tmp_path / "run", undisturbed)


@pytest.mark.parametrize("name", ["ahead", "adapter ahead"])
def test_a_worker_that_samples_ahead_gets_the_older_weights_again(name, options, reference, fate, tmp_path):
    """The trainer has gone on when the worker dies, at work or while it receives weights."""
    undisturbed = reference(name)
    fate.plan("rollout", "make", 3)
    fate.plan("rollout", "receiver.from_broadcast" if name == "ahead" else "receiver.from_store", 5)
    assert run(tmp_path / "run", *options(name)) == 0
    assert fate.met()
    assert_same(tmp_path / "run", undisturbed)


def test_a_trainer_that_loses_a_rank_goes_on_from_its_checkpoint(options, reference, fate, tmp_path):
    undisturbed = reference("colocated")
    # in update 1, before there is a checkpoint; then in update 4, which is asked for the fifth time: back to 2
    fate.plan("train", "update", 1, rank=1)
    fate.plan("train", "update", 5, rank=0)
    assert run(tmp_path / "run", *options("colocated")) == 0
    assert fate.met()
    assert_same(tmp_path / "run", undisturbed)


def test_a_trainer_that_dies_too_often_leaves_its_checkpoint(options, reference, machines, fate, tmp_path):
    fate.plan("train", "update", 3, 4)
    again = [*options("adapter"), *machines.options(max_restarts=1)]
    with pytest.raises(GaveUp, match=r"pool train had to be replaced 2 times \(ray\.max_restarts=1\)"):
        run(tmp_path / "run", *again)
    assert fate.met()
    assert saved_updates(tmp_path / "run") == [2]
    assert run(tmp_path / "run", *again) == 0
    assert_same(tmp_path / "run", reference("adapter"))
