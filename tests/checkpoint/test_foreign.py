"""Checkpoints of strangers and of earlier versions run nothing, reach nothing outside, and are read or refused."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.cli import main
from tests.checkpoint.conftest import moved
from tests.support.foreign_checkpoints import MANIFEST, Payload, as_earlier_versions_wrote, forge
from tests.support.runs import last_state
from tests.support.tiny_run import TinyRun, burnish

INDEX = "shards/.metadata"  # of the first format
TENSORS = "tensors/rank-00000.safetensors"


@pytest.fixture
def path(run: TinyRun) -> Path:
    """A checkpoint that may be changed."""
    return run.output / "checkpoints" / "00000003"


@pytest.fixture(scope="module")
def first(trained: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The newest checkpoint of a run as earlier versions wrote it."""
    output = Path(shutil.copytree(trained.output, tmp_path_factory.mktemp("first") / "run"))
    as_earlier_versions_wrote(output / "checkpoints" / "00000003")
    return output


@pytest.fixture
def old(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "old")) / "checkpoints" / "00000003"


def said(path: Path, status: int = 2) -> str:
    """What is said of a checkpoint that is to be exported."""
    target = path.parents[2] / "exported"
    told = burnish("export", path, "--output", target, status=status)
    assert target.exists() == (status == 0)
    shutil.rmtree(target, ignore_errors=True)
    return told.message


def refused(path: Path, words: str = "use another checkpoint") -> None:
    forge(path)
    assert words in said(path)


def test_the_first_format_is_gone_on_from_bit_by_bit_and_removed_in_its_turn(trained, run, old, tmp_path):
    run.train("steps=4")
    other = moved(trained, old.parents[1], "checkpoint.keep_last=1", "checkpoint.keep_best=false")
    other.train("steps=4")
    assert last_state(other.output) == last_state(run.output)
    assert other.metrics == run.metrics
    assert not old.exists()


@pytest.mark.parametrize("name", [TENSORS, "state.json", INDEX, "shards/__0_0.distcp", "roles.pt"])
def test_a_pickle_that_runs_a_command_runs_nothing(path, old, tmp_path, name):
    where = path if (path / name).exists() else old
    payload = Payload(tmp_path / "ran")
    (where / name).write_bytes(pickle.dumps(payload))
    forge(where)
    said(where)
    if name == "roles.pt":
        torch.save({"policy": payload}, where / name)
        refused(where, "nothing of it was executed")
        with zipfile.ZipFile(where / name, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("archive/data.pkl", b"0" * 10_000_000)
        refused(where, "compressed")
    assert not (tmp_path / "ran").exists()


def pickled(*opcodes: bytes) -> bytes:
    return b"".join([pickle.PROTO + b"\x04", *opcodes, pickle.STOP])


def test_a_list_of_shards_that_means_harm_is_refused(old):
    good = (old / INDEX).read_bytes()
    for raw in (
        pickled(b"cos\nsystem\n", b"(S'true'\ntR"), pickled(b"ctorch\nload\n", b"(S'/etc/passwd'\ntR"),
        pickled(pickle.BYTEARRAY8, (1 << 40).to_bytes(8, "little")), pickled(b"(" * 100_000),
        pickled(b"]", pickle.LONG_BINPUT + (0x7FFFFFFF).to_bytes(4, "little")), pickled(b"]", pickle.EXT1 + b"\x01"),
        pickled(b"ctorch.distributed.checkpoint.metadata\nMetadata\n", b"}", b"b"), b"", b"garbage",
    ):  # fmt: skip
        (old / INDEX).write_bytes(raw)
        refused(old, "nothing of it was executed")
    for part, instead, words in (
        (b"__0_0.distcp", b"../../../etc", "does not belong to the checkpoint: '../../../etc'"),
        (b"TensorStorageMetadata", b"BytesStorageMetadata_", "is no index of these shards"),
    ):  # fmt: skip
        assert part in good
        (old / INDEX).write_bytes(good.replace(part, instead))
        refused(old, words)


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
    assert "pipe" in said(path)


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


def test_values_of_another_kind_are_named_before_a_run_goes_on_from_them(run, path):
    content = json.loads((path / "state.json").read_text())
    policy = dict.fromkeys(content["roles"]["policy"], 3)
    for changed, words in (
        (content | {"roles": content["roles"] | {"policy": policy}}, "that is not a tensor: 3"),
        (content | {"trainer": 7}, "has a trainer that is not a map: 7"),
        ({name: part for name, part in content.items() if name != "source"}, "lacks source"),
    ):
        (path / "state.json").write_text(json.dumps(changed))
        forge(path)
        assert words in run.train("steps=4", status=2).message
        if changed["roles"] is not content["roles"]:
            assert words in burnish("eval", run.output, status=2).message


def test_bytes_that_are_changed_at_random_run_nothing_and_are_told_in_words(path, tmp_path, capsys):
    draw, files = random.Random(0), {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    for name in (TENSORS, "state.json"):
        for _ in range(5):
            raw = bytearray(files[path / name])
            for _ in range(draw.choice([1, 2, 8])):
                raw[draw.randrange(min(len(raw), 2000))] = draw.choice(
                    [draw.randrange(256), *b"\x00\xff(.cRb0123456789"]
                )
            (path / name).write_bytes(raw)
            assert str(path / name) in said(path)  # its hash is another
            forge(path)
            assert main(["export", str(path), "--output", str(tmp_path / "exported")]) in (0, 2)
            assert "Traceback" not in capsys.readouterr().err
            shutil.rmtree(tmp_path / "exported", ignore_errors=True)
            for file, content in files.items():
                file.write_bytes(content)
    assert {one.name for one in tmp_path.iterdir()} == {"run"}
