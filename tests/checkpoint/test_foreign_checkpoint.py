"""Checkpoints of strangers: they run nothing, reach nothing outside of their folder, and are refused in words."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import random
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

from burnish.checkpoint import manifest
from burnish.checkpoint.files import MANIFEST, read
from burnish.utils.errors import UserError
from tests.support.checkpoints import IDENTITY, make, same, state

INDEX = "shards/.metadata"


class Payload:
    """Runs a command where it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def forge(path: Path, **changes) -> None:
    """Make the manifest fit the files as they are now, with ``changes``: a stranger can do that, too."""
    content = json.loads((path / MANIFEST).read_text())
    content.pop("sha256")
    for name, about in content["files"].items():
        raw = (path / name).read_bytes()
        about |= {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    (path / MANIFEST).write_bytes(manifest.render(content | changes))


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A checkpoint with shards."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0])
        weights = {
            "weight": distribute_tensor(torch.arange(12.0).view(4, 3), mesh, [Shard(0)]),
            "half": distribute_tensor(torch.arange(6).to(torch.bfloat16), mesh, [Shard(0)]),
            "number": distribute_tensor(torch.tensor(2.5), mesh),
        }
        folder = tmp_path_factory.mktemp("foreign")
        return make(folder).save(1, {**state(1), "roles": weights}, identity=IDENTITY, score=None)
    finally:
        torch.distributed.destroy_process_group()


@pytest.fixture
def path(saved, tmp_path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(saved, tmp_path / saved.name))


def test_shards_come_back_as_they_were(path):
    found = read(path).load(IDENTITY)["roles"]
    expected = {
        "weight": torch.arange(12.0).view(4, 3),
        "half": torch.arange(6).to(torch.bfloat16),
        "number": torch.tensor(2.5),
    }
    assert same(found, expected)


@pytest.mark.parametrize("name", [INDEX, "shards/__0_0.distcp", "trainer.pt"])
def test_a_pickle_that_runs_a_command_runs_nothing(path, tmp_path, name):
    (path / name).write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    forge(path)
    with pytest.raises(UserError, match=r"nothing of it was executed|can't be read"):
        read(path).load(IDENTITY)
    assert not (tmp_path / "ran").exists()


def test_a_command_in_a_file_of_tensors_runs_nothing(path, tmp_path):
    torch.save({"version": Payload(tmp_path / "ran")}, path / "trainer.pt")
    forge(path)
    with pytest.raises(UserError, match="nothing of it was executed"):
        read(path).load(IDENTITY)
    assert not (tmp_path / "ran").exists()


def test_a_file_that_grows_when_it_is_read_is_refused(path):
    with zipfile.ZipFile(path / "trainer.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("archive/data.pkl", b"0" * 10_000_000)
    forge(path)
    with pytest.raises(UserError, match="it is compressed"):
        read(path).load(IDENTITY)


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
    outside = path.parent / "outside.pt"
    (path / "trainer.pt").rename(outside)
    (path / "trainer.pt").symlink_to(outside)
    with pytest.raises(UserError, match="links outside the checkpoint"):
        read(path)
    (path / "trainer.pt").unlink()
    os.mkfifo(path / "trainer.pt")
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
    content = json.loads((path / MANIFEST).read_text())
    del content["files"]["source.pt"]
    forge(path, files=content["files"])
    with pytest.raises(UserError, match=r"lacks source\.pt"):
        read(path).load(IDENTITY, ("roles", "source"))


def wrong_lists() -> dict:
    """Ways in which a list of shards can be wrong, each as what it says in place of something."""
    return {
        "a file elsewhere": (b"__0_0.distcp", b"../../../etc"),
        "another class": (b"TensorStorageMetadata", b"BytesStorageMetadata_"),
        "no type": (b"bfloat16", b"__name__"),
        "a function": (b"_get_layout", b"load_layout"),
    }


@pytest.mark.parametrize("case", wrong_lists())
def test_a_list_of_shards_that_says_something_else_is_refused_or_harmless(path, case):
    old, new = wrong_lists()[case]
    raw = (path / INDEX).read_bytes()
    assert old in raw
    assert len(old) == len(new)
    (path / INDEX).write_bytes(raw.replace(old, new))
    forge(path)
    if case == "a function":  # of a module that the list may name, and it is not even looked up
        read(path).load(IDENTITY)
        return
    with pytest.raises(UserError, match="is no index of these shards"):
        read(path).load(IDENTITY)


def pickled(*opcodes: bytes) -> bytes:
    return b"".join([pickle.PROTO + b"\x04", *opcodes, pickle.STOP])


@pytest.mark.parametrize(
    "raw",
    [
        pickled(b"cos\nsystem\n", b"(S'true'\ntR"),  # a function of another module, called
        pickled(b"ctorch\nload\n", b"(S'/etc/passwd'\ntR"),
        pickled(pickle.BYTEARRAY8, (1 << 40).to_bytes(8, "little")),
        pickled(b"]", pickle.LONG_BINPUT + (0x7FFFFFFF).to_bytes(4, "little")),
        pickled(b"]", pickle.EXT1 + b"\x01"),
        pickled(b"P1\n"),
        pickled(b"(" * 100_000),
        pickled(b"ctorch.distributed.checkpoint.metadata\nMetadata\n", b"}", b"b"),
        b"", b"\x80", b"garbage",
    ],
    ids=range(11),
)  # fmt: skip
def test_pickles_that_mean_harm_are_refused(path, raw):
    (path / INDEX).write_bytes(raw)
    forge(path)
    with pytest.raises(UserError, match="nothing of it was executed"):
        read(path).load(IDENTITY)


@pytest.mark.parametrize("name", [INDEX, MANIFEST, "shards/__0_0.distcp", "roles.pt"])
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
            read(path).load(IDENTITY)
            refused -= 1
        for file, content in files.items():
            file.write_bytes(content)
    assert refused > 5
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name]
