"""Checkpoints of strangers run nothing, reach nothing outside, and are read or refused."""

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import MANIFEST, TENSORS, Payload, forge
from tests.support.tiny_run import TinyRun, burnish


@pytest.fixture
def path(copy: TinyRun) -> Path:
    """A checkpoint that may be changed."""
    return copy.output / "checkpoints" / "00000003"


def said(path: Path, status: int = 2) -> str:
    target = path.parents[2] / "exported"
    told = burnish("export", path, "--output", target, status=status)
    assert target.exists() == (status == 0)
    shutil.rmtree(target, ignore_errors=True)
    return told.message


def refused(path: Path, words: str = "use another checkpoint") -> None:
    forge(path)
    assert words in said(path)


@pytest.mark.parametrize("name", [TENSORS, "state.json"])
def test_a_pickle_that_runs_a_command_runs_nothing(path, tmp_path, name):
    (path / name).write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    refused(path)
    assert not (tmp_path / "ran").exists()


def test_a_run_goes_on_without_code_that_the_configuration_there_names(copy):
    own, config = copy.output / "own.py", copy.output / "config.yaml"
    own.write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    config.write_text(config.read_text().replace("  name: grpo", f"  name: {own}:Own"))
    assert f"algorithm.name: {own}:Own -> grpo" in copy.train("steps=4", status=2).message
    assert not own.with_name("ran").exists()


def test_nothing_outside_of_the_folder_is_opened(path):
    secret = path.parent / "secret.pt"
    secret.write_bytes(b"secret")
    content = json.loads((path / MANIFEST).read_text())
    about = {"size": 6, "sha256": hashlib.sha256(b"secret").hexdigest()}
    for name in ("../secret.pt", "/etc/passwd", "shards/../../secret.pt", "a/b.pt", "..", "", "shards/.."):
        changed = content | {"files": content["files"] | {name: about}}
        changed.pop("sha256")
        digest = hashlib.sha256(json.dumps(changed).encode()).hexdigest()
        (path / MANIFEST).write_text(json.dumps({"sha256": digest} | changed, indent=1) + "\n")
        assert "is not a file name of a checkpoint" in said(path), name
    (path / MANIFEST).write_text(json.dumps(content, indent=1) + "\n")
    outside = (path / "state.json").rename(path.parent / "outside.json")
    (path / "state.json").symlink_to(outside)
    assert "links outside the checkpoint" in said(path)
    (path / "state.json").unlink()
    os.mkfifo(path / "state.json")
    assert "no file" in said(path)


def test_a_manifest_of_other_types_or_none_is_refused(path):
    for changes in (
        {"update": "1"}, {"update": True}, {"update": -1}, {"identity": []}, {"identity": {"a": 1}}, {"score": "1"},
        {"format": "1"}, {"format": None}, {"format": [1] * 1000}, {"format": 3}, {"update": 4},
    ):  # fmt: skip
        good = (path / MANIFEST).read_bytes()
        forge(path, **changes)
        assert len(said(path)) < 1000
        (path / MANIFEST).write_bytes(good)
    for raw in (b"[" * 100_000, b"", b"7", b"\xff", b'{"sha256": 1}', b'{"a":' * 50_000):
        (path / MANIFEST).write_bytes(raw)
        assert "damaged" in said(path)


def header(**tensors: Any) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


ROW = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
HEADERS = [
    b"", b"\xff" * 8, (1 << 40).to_bytes(8, "little"), header(a=ROW) + bytes(15),
    header(a=ROW | {"shape": [1 << 40]}) + bytes(16), header(a=ROW | {"data_offsets": [-16, 0]}) + bytes(16),
    header(a=ROW | {"dtype": "O"}) + bytes(16), header(a=[]), header(__metadata__=[]),
    header(__metadata__={"places": '{"a": [[2], [4]]}'}, a=ROW) + bytes(16),
    header(__metadata__={"places": '{"a": 7}'}, a=ROW) + bytes(16),
]  # fmt: skip
STATES = ['{"a": {"$tensor": "unknown"}}', '{"a": {"$pairs": [[[], 1]]}}', "[]", '{"a": {"$number": "many"}}', "[" * 99]


def test_tensors_and_a_state_that_lie_are_refused_before_memory_is_taken(path):
    for name, contents in ((TENSORS, HEADERS), ("state.json", [state.encode() for state in STATES])):
        good = (path / name).read_bytes()
        for content in contents:
            (path / name).write_bytes(content)
            refused(path)
        (path / name).write_bytes(good)
    files = {TENSORS.replace("00000", f"0000{rank}"): {} for rank in range(2)}
    lies = ((0, "F32", "lacks a part"), (4, "I32", "another shape or type"))
    for name, (start, kind, words) in zip(files, lies, strict=True):
        places = {"places": json.dumps({"a": [[start], [8]]})}
        (path / name).write_bytes(header(__metadata__=places, a=ROW | {"dtype": kind}) + bytes(16))
        forge(path, files={one: {} for one in files if (path / one).exists()})
        assert words in said(path)


def test_a_part_that_lacks_is_named_before_a_run_goes_on(copy, path):
    content = json.loads((path / "state.json").read_text())
    content.pop("source")
    (path / "state.json").write_text(json.dumps(content))
    forge(path)
    assert "lacks source" in copy.train("steps=4", status=2).message
