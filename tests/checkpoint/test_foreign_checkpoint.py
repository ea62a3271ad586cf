"""Checkpoints of strangers: they run nothing, reach nothing outside of their folder, and are refused in words."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import pickle
import random
import shutil
from functools import reduce
from pathlib import Path

import pytest

from burnish.checkpoint import manifest
from burnish.checkpoint.files import MANIFEST, read
from burnish.cli import main
from burnish.utils.errors import UserError
from tests.support.checkpoints import IDENTITY, TENSORS, loaded, same, state
from tests.support.foreign_checkpoints import EXPECTED, Payload, forge, save


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A checkpoint with shards."""
    return save(tmp_path_factory.mktemp("foreign"))


@pytest.fixture
def path(saved, tmp_path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(saved, tmp_path / saved.name))


def test_shards_come_back_as_they_were(path):
    assert same(loaded(read(path))["roles"], EXPECTED)


@pytest.mark.parametrize("name", [TENSORS, "state.json"])
def test_a_pickle_that_runs_a_command_runs_nothing(path, tmp_path, name):
    (path / name).write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    forge(path)
    with pytest.raises(UserError, match=r"is no file of tensors of a run|was not written by Burnish"):
        loaded(read(path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name", ["../secret.pt", "/etc/passwd", "shards/../../secret.pt", "a/b.pt", "..", "", "x.txt", "shards/.."]
)
def test_a_manifest_that_leads_out_of_the_folder_is_refused_before_anything_is_opened(path, name):
    (path.parent / "secret.pt").write_bytes(b"secret")
    content = json.loads((path / MANIFEST).read_text())
    forge(path, files=content["files"] | {name: {"size": 6, "sha256": hashlib.sha256(b"secret").hexdigest()}})
    with pytest.raises(UserError, match="is not a file name of a checkpoint"):
        read(path)


def test_links_out_of_the_folder_and_pipes_are_refused(path):
    outside = path.parent / "outside.json"
    (path / "state.json").rename(outside)
    (path / "state.json").symlink_to(outside)
    with pytest.raises(UserError, match="links outside the checkpoint"):
        read(path)
    (path / "state.json").unlink()
    os.mkfifo(path / "state.json")
    with pytest.raises(UserError, match=r"is a pipe or a device|links outside the checkpoint"):
        read(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"update": "1"}, {"update": True}, {"update": -1}, {"update": None}, {"identity": []}, {"identity": {"a": 1}},
        {"score": "1"}, {"score": [1]}, {"files": []}, {"files": {}}, {"files": {"a.pt": 1}},
        {"files": {"a.pt": {"size": -1, "sha256": "0" * 64}}}, {"files": {"a.pt": {"size": 1, "sha256": 7}}},
        {"format": "1"}, {"format": None}, {"format": [1] * 1000},
    ],
    ids=str,
)  # fmt: skip
def test_a_manifest_of_other_types_is_refused(path, changes):
    content = json.loads((path / MANIFEST).read_text())
    content.pop("sha256")
    (path / MANIFEST).write_bytes(manifest.render(content | changes))
    with pytest.raises(UserError) as refused:
        read(path)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("raw", [b"[" * 100_000, b"", b"7", b"\xff", b'{"sha256": 1}', b'{"a":' * 50_000], ids=range(6))
def test_a_manifest_that_is_no_object_is_refused(path, raw):
    (path / MANIFEST).write_bytes(raw)
    with pytest.raises(UserError, match="damaged"):
        read(path)


def test_a_part_that_is_missing_is_named(path):
    content = json.loads((path / "state.json").read_text())
    del content["source"]
    (path / "state.json").write_text(json.dumps(content))
    forge(path)
    with pytest.raises(UserError, match=r"lacks source"):
        read(path).load(IDENTITY, {"roles": {}, "source": {}})


OTHERS = (None, 7, 0.5, "seven", True, [7], {"seven": 7}, {"$tensor": "roles.weight"})


LITTLE = [
    "rewards.ocr=null", "data.train_batch_size=2", "rollout.n=2", "validation.n=2", "validation.max_prompts=2",
    "scoring.processes=0", "rewards.jpeg_compressibility.weight=1", "optimizer.warmup_steps=0",
    "algorithm.train_timesteps=2", "rollout.num_inference_steps=4",
]  # fmt: skip


def places(value, before=()):
    """Where the parts of a state are, but for entries of lists, which belong to the optimizers."""
    for key, inside in value.items():
        yield (*before, key)
        if isinstance(inside, dict) and "$tensor" not in inside and "$pairs" not in inside:
            yield from places(inside, (*before, key))


def test_a_value_of_another_kind_is_named_before_anything_is_loaded(path):
    own, content = state(1) | {"roles": EXPECTED}, json.loads((path / "state.json").read_text())
    refused = 0
    for place in places(content):
        for other in OTHERS:
            changed = copy.deepcopy(content)
            *within, name = place
            reduce(dict.__getitem__, within, changed)[name] = other
            (path / "state.json").write_text(json.dumps(changed))
            forge(path)
            was = reduce(dict.__getitem__, place, content)
            if was is None or type(was) is type(other):
                continue
            with pytest.raises(UserError, match=rf"has a {'.'.join(place)} that is not .*; use another checkpoint"):
                read(path).load(IDENTITY, own)
            refused += 1
    assert refused > 50


@pytest.mark.slow
def test_a_run_resumes_from_no_state_of_other_kinds_and_is_not_evaluated_with_it(tmp_path, capsys):
    recipe = ["train", "quickstart", f"output_dir={tmp_path / 'run'}", *LITTLE]
    assert main([*recipe, "steps=1"]) == 0
    path = tmp_path / "run" / "checkpoints" / "00000001"
    content = json.loads((path / "state.json").read_text())
    content["roles"]["policy"] = dict.fromkeys(content["roles"]["policy"], 3)
    (path / "state.json").write_text(json.dumps(content))
    forge(path)
    for command in ([*recipe, "steps=2", "optimizer.schedule_updates=2"], ["eval", str(tmp_path / "run")]):
        capsys.readouterr()
        assert main(command) == 2
        assert "that is not a tensor: 3; use another checkpoint" in capsys.readouterr().err


def header(**tensors) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


ROW = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\xff" * 8, (1 << 40).to_bytes(8, "little"), header(a=ROW), header(a=ROW) + bytes(15),
        header(a=ROW | {"shape": [1 << 40]}) + bytes(16), header(a=ROW | {"shape": [-4]}) + bytes(16),
        header(a=ROW | {"data_offsets": [-16, 0]}) + bytes(16), header(a=ROW | {"dtype": "O"}) + bytes(16),
        header(a=[]), header(a=ROW | {"shape": 4}), header(__metadata__=[]), header(__metadata__={"places": "{"}),
        header(__metadata__={"places": '{"a": [[2], [4]]}'}, a=ROW) + bytes(16),
        header(__metadata__={"places": '{"a": [[0, 0], [4]]}'}, a=ROW) + bytes(16),
        header(__metadata__={"places": '{"a": [[0], [8]]}'}, a=ROW) + bytes(16),
        header(__metadata__={"places": '{"a": 7}'}, a=ROW) + bytes(16),
    ],
    ids=range(17),
)  # fmt: skip
def test_a_header_that_lies_is_refused_before_memory_is_taken(path, raw):
    (path / TENSORS).write_bytes(raw)
    forge(path)
    with pytest.raises(UserError, match="use another checkpoint"):
        loaded(read(path))


@pytest.mark.parametrize(
    "content", ['{"a": {"$tensor": "unknown"}}', '{"a": {"$tensor": []}}', '{"a": {"$pairs": [[[], 1]]}}', "[]",
                '{"a": {"$number": "many"}}', '{"a": {"$pairs": 3}}', "[" * 1000],
    ids=range(7),
)  # fmt: skip
def test_a_state_that_lies_is_refused(path, content):
    (path / "state.json").write_text(content)
    forge(path)
    with pytest.raises(UserError, match="use another checkpoint"):
        loaded(read(path))


@pytest.mark.parametrize("name", [MANIFEST, TENSORS, "state.json"])
def test_bytes_that_are_changed_at_random_run_nothing_and_are_told_in_words(path, tmp_path, name):
    draw, original = random.Random(0), (path / name).read_bytes()
    files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    refused = 0
    for _ in range(25):
        raw = bytearray(original)
        for _ in range(draw.choice([1, 1, 2, 8])):
            raw[draw.randrange(len(raw))] = draw.choice([draw.randrange(256), *b"\x00\xff(.cRb0123456789"])
        if draw.random() < 0.2:
            del raw[draw.randrange(len(raw)) :]
        (path / name).write_bytes(raw)
        with contextlib.suppress(UserError):
            refused += 1
            if name != MANIFEST:
                forge(path)
            loaded(read(path))
            refused -= 1
        for file, content in files.items():
            file.write_bytes(content)
    assert refused > 5
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name]
