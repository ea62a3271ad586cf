"""Checkpoints of a run: damage is found and named, the newest and the best stay, saving is beside."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from burnish.checkpoint import store as checkpoint
from tests.checkpoint.conftest import moved
from tests.checkpoint.test_foreign import MANIFEST, TENSORS, said
from tests.support.checkpoints import IDENTITY, check, leftovers, loaded, make, same, save, state, updates
from tests.support.foreign_checkpoints import forge
from tests.support.runs import last_state
from tests.support.tiny_run import burnish

DEADLINE = 30.0


def scores(run) -> dict[int, float]:
    """Of validations, by update."""
    lines = run.metrics
    (name,) = {name for line in lines for name in line if name.startswith("val-core/") and "/mean" in name}
    return {line["training/global_step"]: line[name] for line in lines}


@pytest.mark.parametrize(
    ("options", "last"),
    [
        ("checkpoint.keep_last=2", {4, 5}), ("checkpoint={keep_last: 1, keep_best: false, every: 1}", {5}),
        ("checkpoint.max_gb=1e-6", {5}),
    ],
)  # fmt: skip
def test_the_newest_are_kept_and_the_best(trained, tmp_path, options, last):
    run = moved(trained, Path(shutil.copytree(trained.output, tmp_path / "run")), options)
    if options.startswith("checkpoint="):
        run.options = [option for option in run.options if not option.startswith("checkpoint.")]
    run.train("steps=5")
    found = scores(run)
    best = max(range(1, 6), key=lambda update: (found[update], update))
    assert updates(run.output / "checkpoints") == sorted(last if "keep_best" in options else {*last, best})


def edit(file: Path) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"score": 99.0}, indent=1))


def cut(part: float) -> Callable[[Path], None]:
    return lambda file: os.truncate(file, int(file.stat().st_size * part))


DAMAGES: list[tuple[str, Callable[[Path], object]]] = [
    (MANIFEST, Path.unlink), (MANIFEST, edit), (MANIFEST, cut(0.5)), ("state.json", Path.unlink),
    ("state.json", cut(0.5)), (TENSORS, Path.unlink), (TENSORS, cut(0.5)),
    (TENSORS, lambda file: os.truncate(file, file.stat().st_size + 1)),
]  # fmt: skip


def test_damage_to_any_file_and_any_flipped_bit_are_found_and_named(run):
    path, draw = run.output / "checkpoints" / "00000003", random.Random(0)
    for name, damage in DAMAGES:
        content = (path / name).read_bytes()
        damage(path / name)
        told = said(path)
        assert str(path / name) in told
        if damage is not Path.unlink and name != MANIFEST:
            assert re.search(r"has \d+ bytes of \d+", told)
        (path / name).write_bytes(content)
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        content = file.read_bytes()
        for _ in range(8):
            raw = bytearray(content)
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
            file.write_bytes(raw)
            assert str(file) in said(path)
        file.write_bytes(content)


def test_a_run_goes_on_from_the_newest_that_is_whole_and_trains_what_was_lost_again(run, trained, caplog):
    path, expected = run.output / "checkpoints" / "00000003", last_state(run.output)
    (path / TENSORS).write_bytes(b"damaged")
    ours, others = path.parent / ".saving-00000002-0123abcd", path.parent / ".saving-mine"
    for folder in (ours, others):
        (folder / "part").mkdir(parents=True)
    told = burnish("eval", run.output)
    assert "checkpoint skipped" in told.message + caplog.text
    assert ours.exists(), "looking at a run that trains must not take its half-written checkpoint away"
    run.train()
    assert last_state(run.output) == expected
    assert run.metrics == trained.metrics
    assert leftovers(path.parent) == [others.name]
    path.rename(path.parent / ".replaced-00000003-0123abcd")  # killed while it was replaced
    run.train("steps=4")
    assert updates(path.parent) == [1, 2, 3, 4]
    assert leftovers(path.parent) == [others.name]


def test_what_is_no_checkpoint_of_this_run_is_refused_with_what_differs(run):
    folder = run.output / "checkpoints"
    assert "no such folder" in said(folder / "nothing")
    assert "has 00000001, 00000002, 00000003 (checkpoint.keep_last" in said(folder / "00000006")
    (folder / "00000003").rename(folder / "00000008")
    assert "is of policy update 3" in said(folder / "00000008")
    forge(folder / "00000002", format=3)
    assert "has format 3" in said(folder / "00000002")
    branch = moved(run, run.output.with_name("branch"), "algorithm=grpo", "model.lora={rank: 4}")
    told = branch.train(f"resume={folder / '00000001'}", status=2).message
    for words in ("algorithm is 'sft", "'grpo", "in the checkpoint"):
        assert words in told


def test_what_changes_while_it_is_written_is_not_saved_and_until_then_the_earlier_one_is_the_newest(
    tmp_path, monkeypatch
):
    opened, reached, write = threading.Event(), threading.Event(), checkpoint.write

    def waiting(*given: object) -> object:
        reached.set()
        assert opened.wait(DEADLINE)
        return write(*given)

    store = make(tmp_path, keep_last=3, asynchronous=True)
    save(store, 1)
    store.wait()
    monkeypatch.setattr(checkpoint, "write", waiting)
    given, before = state(2), state(2)
    store.save(2, given, identity=IDENTITY, score=0.5)
    given["roles"]["policy"]["layer.weight"] += 1
    given["groups"]["actor"]["optimizer"]["state"][0]["exp_avg"].zero_()
    given["trainer"]["version"] = 7
    given["roles"]["policy"]["new"] = torch.ones(1)
    assert reached.wait(DEADLINE)
    check(make(tmp_path).latest(), 1)
    assert leftovers(tmp_path), "it is written aside"
    opened.set()
    save(store, 3)
    store.wait()
    assert same(loaded(store.open(tmp_path / "00000002")), before)
    check(store.latest(), 3)
    assert leftovers(tmp_path) == []
