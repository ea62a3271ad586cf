"""Checkpoints: which are kept, and what a run does about one that is damaged, of another run, or half written."""

import errno
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from tests.support.checkpoints import IDENTITY, MANIFEST, TENSORS, kept, make, run_of
from tests.support.tiny_run import TinyRun


def newest(run: TinyRun) -> Path:
    return run.output / "checkpoints" / "00000003"


def flip(file: Path, position: int, bit: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[position] ^= 1 << bit
    file.write_bytes(raw)


def edit(file: Path) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"score": 99.0}, indent=1))


def cut(part: float) -> Callable[[Path], None]:
    return lambda file: os.truncate(file, int(file.stat().st_size * part))


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "no manifest": (MANIFEST, Path.unlink), "edited manifest": (MANIFEST, edit), "empty manifest": (MANIFEST, cut(0)),
    "half a manifest": (MANIFEST, cut(0.5)), "list as a manifest": (MANIFEST, lambda file: file.write_text("[]")),
    "no text as a manifest": (MANIFEST, lambda file: file.write_bytes(b"\xff\xfe\x00")),
    "half a state": ("state.json", cut(0.5)), "no tensors": (TENSORS, Path.unlink),
    "short tensors": (TENSORS, lambda file: os.truncate(file, file.stat().st_size - 1)),
    "long tensors": (TENSORS, lambda file: os.truncate(file, file.stat().st_size + 1)),
}  # fmt: skip


def goes_on_from_the_one_before(run: TinyRun, whole: TinyRun, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    run.train()
    assert str(file) in caplog.text
    assert run.metrics == whole.metrics
    assert run.tensors.keys() == whole.tensors.keys()
    assert all((run.tensors[name] == value).all() for name, value in whole.tensors.items())


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(case, copy, whole, caplog):
    name, damage = DAMAGES[case]
    damage(newest(copy) / name)
    told = copy.train(f"resume={newest(copy)}", status=2).message
    assert name in told
    goes_on_from_the_one_before(copy, whole, newest(copy) / name, caplog)


def test_any_flipped_bit_is_found(copy, whole, caplog):
    draw = random.Random(0)
    for file in sorted(file for file in newest(copy).rglob("*") if file.is_file()):
        flip(file, draw.randrange(file.stat().st_size), draw.randrange(8))
        goes_on_from_the_one_before(copy, whole, file, caplog)  # and saves the last one anew


def test_the_newest_are_kept_and_the_best(files):
    run = run_of(files, "best", "checkpoint.keep_last=1", "validation.every=1", "rollout.temperature=3", "steps=5")
    run.train()
    scores = {line["training/global_step"]: line for line in run.metrics}
    (reward,) = (name for name in scores[0] if name.startswith("val-core/") and name.endswith("reward/mean@1"))
    best = max(range(1, 6), key=lambda update: (scores[update][reward], update))
    assert kept(run.output) == sorted({best, 5})
    for update in (best, 5):
        manifest = json.loads((run.output / "checkpoints" / f"{update:08d}" / MANIFEST).read_text())
        assert (manifest["score"], manifest["unvalidated"]) == (pytest.approx(scores[update][reward]), None)


KEPT = yaml.safe_load(Path(__file__).with_name("kept.yaml").read_text())


@pytest.mark.parametrize(("options", "saved", "left"), KEPT)
def test_the_last_and_the_best_are_kept_and_what_has_room_beside_them(tmp_path, options, saved, left, caplog):
    store = make(tmp_path, **options)
    for update, score in saved.items():
        store.save(update, {"role": {"weight": torch.zeros(100_000)}}, identity=IDENTITY, score=score)
    store.wait()
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == left
    assert caplog.text.count("max_gb") == (options.get("max_gb") == 0.0005)


def fails(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO), "a file")


def test_what_fails_beside_a_save_is_said_and_the_newest_is_kept(tmp_path, monkeypatch, caplog):
    store = make(tmp_path, asynchronous=True, keep_last=1)

    def save(update: int) -> None:
        store.save(update, {"role": {"weight": torch.zeros(3)}}, identity=IDENTITY, score=None)
        store.wait()

    save(1)
    (tmp_path / "00000001" / MANIFEST).write_text("{")
    save(2)
    assert "damaged checkpoint: " in caplog.text
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", lambda one, to: fails() if "removing" in to.name else os.rename(one, to))
        save(3)
    assert f"checkpoint {tmp_path / '00000002'} can't be removed: " in caplog.text
    with pytest.raises(ValueError, match=r"the validation of checkpoint .*00000004 can't be recorded"):
        store.validated(4, 0.5)
    monkeypatch.setattr("burnish.checkpoint.state_files.write_file", fails)
    store.save(4, {"role": {}}, identity=IDENTITY, score=None)
    store.close(RuntimeError)
    assert f"Input/output error; check its disk; checkpoint {tmp_path / '00000003'} is intact" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000002", "00000003"]


@pytest.mark.parametrize("function", ["files.sha256_of", "files.read_manifest", "state_files.read"])
def test_a_file_that_a_disk_does_not_give_is_named(function, copy, monkeypatch):
    monkeypatch.setattr(f"burnish.checkpoint.{function}", fails)
    told = copy.train(f"resume={newest(copy)}", status=2).message
    assert "a file can't be read: Input/output error" in told


def test_a_checkpoint_of_another_run_is_refused_entry_by_entry(copy, files):
    other = run_of(files, "other", "algorithm=rloo", f"resume={newest(copy)}")
    told = other.train(status=2).message
    assert "algorithm is 'grpo'" in told
    assert "'rloo' here" in told
    renamed = newest(copy).rename(newest(copy).with_name("00000008"))
    assert "is of policy update 3" in run_of(files, "renamed", f"resume={renamed}").train(status=2).message


def test_leftovers_of_a_kill_go_and_nothing_else_does(copy):
    folder = newest(copy).parent
    ours, others = folder / ".saving-00000002-0123abcd", folder / ".saving-mine"
    for one in (ours, others):
        (one / "part").mkdir(parents=True)
    copy.train("steps=4")
    assert not ours.exists()
    assert sorted(path.name for path in folder.iterdir()) == [others.name, *(f"{n:08d}" for n in range(1, 5))]
    assert copy.metrics[-1]["training/global_step"] == 4
