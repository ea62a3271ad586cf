import json
import logging
import math
import os
import random
import re
import shutil
from pathlib import Path

import pytest
import torch

from burnish.checkpoint.files import MANIFEST
from burnish.utils.errors import UserError
from tests.support.checkpoints import IDENTITY, TENSORS, check, leftovers, loaded, make, save, state, updates


def flip(file: Path, position: int, bit: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[position] ^= 1 << bit
    file.write_bytes(raw)


def test_what_is_saved_comes_back(tmp_path):
    store = make(tmp_path / "run" / "checkpoints")
    path = save(store, 3, score=0.5)
    assert path == tmp_path / "run" / "checkpoints" / "00000003"
    check(make(tmp_path / "run" / "checkpoints").latest(), 3)
    check(store.open(str(path)), 3)
    assert store.open(path).score == 0.5


def test_a_folder_without_checkpoints_has_none(tmp_path):
    assert make(tmp_path / "missing").latest() is None
    assert make(tmp_path / "missing").best() is None
    assert not (tmp_path / "missing").exists()


def test_parameters_with_gradients_and_views_are_saved_as_small_plain_tensors(tmp_path):
    layer = torch.nn.Linear(4, 4)
    layer(torch.ones(1, 4)).sum().backward()
    view = torch.arange(1_000_000.0)[10:13]
    given = {"policy": {"weight": layer.weight, "view": view}}
    path = make(tmp_path).save(1, given, identity=IDENTITY, score=None)
    found = loaded(make(tmp_path).latest())["policy"]
    assert type(found["weight"]) is torch.Tensor
    assert not found["weight"].requires_grad
    assert torch.equal(found["weight"], layer.weight)
    assert found["view"].tolist() == [10, 11, 12]
    assert sum(file.stat().st_size for file in path.rglob("*")) < 20_000


def test_what_a_file_cannot_hold_is_named(tmp_path):
    with pytest.raises(AssertionError, match=r"trainer\.list\[1\] is a object"):
        make(tmp_path).save(1, {"trainer": {"list": [1, object()]}}, identity=IDENTITY, score=None)


def test_the_newest_are_kept_and_the_best(tmp_path):
    store = make(tmp_path, keep_last=2)
    scores = [0.1, 0.9, None, 0.3, 0.9, 0.2, float("nan"), 0.4]
    expected = [[1], [1, 2], [2, 3], [2, 3, 4], [4, 5], [5, 6], [5, 6, 7], [5, 7, 8]]
    for update, (score, kept) in enumerate(zip(scores, expected, strict=True), 1):
        save(store, update, score=score)
        assert updates(tmp_path) == kept
    check(store.best(), 5)
    check(store.latest(), 8)
    # a fresh process keeps the same
    save(make(tmp_path, keep_last=1), 9, score=0.0)
    assert updates(tmp_path) == [5, 9]


def test_without_keep_best_only_the_newest_stay(tmp_path):
    store = make(tmp_path, keep_last=1, keep_best=False)
    for update in (1, 2, 3):
        save(store, update, score=-update)
    assert updates(tmp_path) == [3]
    assert store.best().update == 3


def test_fewer_are_kept_where_they_take_too_much_room(tmp_path, caplog):
    size = save(make(tmp_path / "one"), 1, score=0.9).stat() and make(tmp_path / "one").latest().bytes / 1e9
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


def test_a_damaged_best_one_gives_way_to_the_best_whole_one(tmp_path):
    for update, score in [(1, 0.9), (2, 0.5), (3, 0.1)]:
        save(make(tmp_path, keep_last=9), update, score=score)
    flip(tmp_path / "00000001" / TENSORS, 500, 3)
    assert make(tmp_path).best().update == 2
    save(make(tmp_path, keep_last=1), 4, score=0.2)
    assert updates(tmp_path) == [2, 4]


def test_a_damaged_one_does_not_count_among_the_newest(tmp_path):
    for update in (1, 2, 3):
        save(make(tmp_path, keep_last=9), update)
    (tmp_path / "00000003" / MANIFEST).unlink()
    save(make(tmp_path, keep_last=2), 4)
    assert updates(tmp_path) == [2, 4]


def test_going_on_from_an_older_one_leaves_the_newer_alone(tmp_path):
    for update in (1, 2, 3, 4):
        save(make(tmp_path, keep_last=9), update)
    save(make(tmp_path, keep_last=1, keep_best=False), 2, variant=1)
    assert updates(tmp_path) == [2, 3, 4]
    check(make(tmp_path).open(tmp_path / "00000002"), 2, variant=1)


def test_saving_the_same_again_changes_nothing(tmp_path):
    before = save(make(tmp_path), 1, score=0.5).stat()
    after = save(make(tmp_path), 1, score=0.5).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("damaged", [False, True])
def test_saving_an_update_again_replaces_what_differs_or_is_damaged(tmp_path, damaged):
    store = make(tmp_path)
    path = save(store, 1)
    if damaged:
        flip(path / TENSORS, 900, 1)
    save(store, 1, variant=0 if damaged else 7)
    check(store.latest(), 1, variant=0 if damaged else 7)
    assert leftovers(tmp_path) == []


def test_a_checkpoint_of_another_model_is_refused_entry_by_entry(tmp_path):
    save(make(tmp_path), 1)
    here = {"model": "tiny", "algorithm": "flow_grpo", "ema": "0.9"}
    with pytest.raises(UserError) as caught:
        make(tmp_path).latest().load(here)
    message = str(caught.value)
    assert "algorithm is 'diffusion_nft' in the checkpoint and 'flow_grpo' here" in message
    assert "parameters is '0123abcd' in the checkpoint and None here" in message
    assert "ema is None in the checkpoint and '0.9' here" in message
    assert "model is" not in message
    assert "output_dir" in message


# damage: each is found, named, and the checkpoint before it is used


def damages() -> dict:
    def truncate(file, size):
        os.truncate(file, size)

    def edit(file):
        content = json.loads(file.read_text())
        file.write_text(json.dumps(content | {"score": 99.0}, indent=1))

    cases = {"no_manifest": (MANIFEST, Path.unlink), "edited_manifest": (MANIFEST, edit)}
    cases["empty_manifest"] = (MANIFEST, lambda file: truncate(file, 0))
    cases["half_a_manifest"] = (MANIFEST, lambda file: truncate(file, file.stat().st_size // 2))
    cases["manifest_is_a_list"] = (MANIFEST, lambda file: file.write_text("[]"))
    cases["manifest_is_not_text"] = (MANIFEST, lambda file: file.write_bytes(b"\xff\xfe\x00"))
    for name, file in {"state": "state.json", "tensors": TENSORS}.items():
        cases[f"no_{name}"] = (file, Path.unlink)
        cases[f"half_{name}"] = (file, lambda file: truncate(file, file.stat().st_size // 2))
        cases[f"short_{name}"] = (file, lambda file: truncate(file, file.stat().st_size - 1))
        cases[f"longer_{name}"] = (file, lambda file: truncate(file, file.stat().st_size + 1))
    return cases


@pytest.mark.parametrize("case", damages())
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, caplog, case):
    for update in (1, 2):
        path = save(make(tmp_path, keep_last=9), update)
    name, damage = damages()[case]
    damage(path / name)
    with caplog.at_level(logging.WARNING):
        check(make(tmp_path).latest(), 1)
    assert str(path / name) in caplog.text
    with pytest.raises(UserError, match=name) as caught:
        make(tmp_path).open(path)
    if case.startswith(("half_", "short_", "longer_")):
        assert re.search(r"has \d+ bytes of \d+", str(caught.value)) or name == MANIFEST


def test_any_flipped_bit_is_found(tmp_path, caplog):
    for update in (1, 2):
        path = save(make(tmp_path, keep_last=9), update)
    draw = random.Random(0)
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        for _ in range(20):
            position, bit = draw.randrange(file.stat().st_size), draw.randrange(8)
            flip(file, position, bit)
            caplog.clear()
            check(make(tmp_path).latest(), 1)
            assert str(file) in caplog.text, (file, position, bit)
            flip(file, position, bit)
    check(make(tmp_path).latest(), 2)


def test_a_path_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        make(tmp_path).open(tmp_path / "nothing")
    save(make(tmp_path), 7)
    with pytest.raises(UserError, match=r"no such folder.* has 00000007 \(checkpoint.keep_last"):
        make(tmp_path).open(tmp_path / "00000006")
    (tmp_path / "00000007").rename(tmp_path / "00000008")
    with pytest.raises(UserError, match="is of policy update 7"):
        make(tmp_path).open(tmp_path / "00000008")
    assert make(tmp_path).latest() is None


def test_a_checkpoint_of_a_newer_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.checkpoint.manifest.FORMAT", 3)
    path = save(make(tmp_path), 1)
    monkeypatch.undo()
    with pytest.raises(UserError, match="has format 3"):
        make(tmp_path).open(path)


def test_a_checkpoint_that_is_removed_while_it_is_read_says_so(tmp_path):
    found = make(tmp_path).open(save(make(tmp_path), 1))
    shutil.rmtree(found.path)
    with pytest.raises(UserError, match="was removed"):
        found.load(IDENTITY)


def test_leftovers_of_a_kill_go_at_the_first_save_and_nothing_else_does(tmp_path):
    save(make(tmp_path), 1)
    ours, others = tmp_path / ".saving-00000002-0123abcd", tmp_path / ".saving-mine"
    for folder in (ours, others):
        (folder / "part").mkdir(parents=True)
    store = make(tmp_path)
    check(store.latest(), 1)
    assert ours.exists(), "looking at a run that trains must not take its half-written checkpoint away"
    save(store, 2)
    assert leftovers(tmp_path) == [others.name]


def test_killed_while_replacing_the_replaced_one_comes_back(tmp_path):
    save(make(tmp_path), 2).rename(tmp_path / ".replaced-00000002-0123abcd")
    check(make(tmp_path).latest(), 2)
    save(make(tmp_path, keep_last=2), 3)
    assert updates(tmp_path) == [2, 3]
    assert leftovers(tmp_path) == []


def test_a_validation_is_written_down_when_it_is_done(tmp_path):
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
    store.validated(2, 0.9)
    done = make(tmp_path).latest()
    assert (done.update, done.score, done.unvalidated) == (2, 0.9, None)
    check(done, 2)
    assert (updates(store.folder), leftovers(store.folder)) == ([2], [])


def test_a_validation_that_cant_be_written_down_leaves_the_checkpoint_as_it_was(tmp_path, monkeypatch):
    store = make(tmp_path)
    store.save(2, state(2), identity=IDENTITY, score=None, unvalidated={"loss": 1.0})

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(UserError, match=r"validation of checkpoint .*No space left.*is intact"):
            store.validated(2, 0.9)
    assert make(tmp_path).latest().unvalidated == {"loss": 1.0}
    store.validated(2, 0.9)
    assert make(tmp_path).latest().score == 0.9
