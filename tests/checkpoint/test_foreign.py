"""Checkpoints of strangers and of earlier versions run nothing, reach nothing outside, and are read or refused."""

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
from typing import Any

import pytest
import torch

from burnish.checkpoint.files import MANIFEST, read
from burnish.utils.errors import UserError
from tests.support.checkpoints import IDENTITY, TENSORS, loaded, make, same, state
from tests.support.checkpoints import save as save_now
from tests.support.foreign_checkpoints import EXPECTED, Payload, forge, save, save_first_format
from tests.support.tiny_run import TinyRun, burnish

INDEX = "shards/.metadata"  # of the first format


@pytest.fixture(scope="module")
def now(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("foreign"))


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    return save_first_format(tmp_path_factory.mktemp("first"))


@pytest.fixture
def path(now, tmp_path) -> Path:
    """A copy of a checkpoint with shards."""
    return Path(shutil.copytree(now, tmp_path / now.name))


@pytest.fixture
def old(first, tmp_path) -> Path:
    """The same as earlier versions wrote it."""
    return Path(shutil.copytree(first, tmp_path / "old" / first.name))


def refused(path: Path, words: str = "use another checkpoint") -> None:
    forge(path)
    with pytest.raises(UserError, match=words):
        loaded(read(path))


def test_both_formats_come_back_as_they_were_and_a_run_removes_the_older_in_its_turn(path, old):
    assert same(loaded(read(path))["roles"], EXPECTED)
    assert same(loaded(read(old)), state(1) | {"roles": EXPECTED})
    store = make(old.parent, keep_last=1)
    assert store.latest().update == 1
    store.validated(1, 0.5)
    assert make(old.parent).latest().score == 0.5
    save_now(store, 2, score=0.7)
    assert not old.exists()


@pytest.mark.parametrize("name", [TENSORS, "state.json", INDEX, "shards/__0_0.distcp", "trainer.pt"])
def test_a_pickle_that_runs_a_command_runs_nothing(path, old, tmp_path, name):
    where = path if (path / name).exists() else old
    (where / name).write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    refused(where, r"no file of tensors of a run|not written by Burnish|nothing of it was executed|can't be read")
    if name == "trainer.pt":
        torch.save({"version": Payload(tmp_path / "ran")}, where / name)
        refused(where, "nothing of it was executed")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        (b"__0_0.distcp", b"../../../etc"),
        (b"TensorStorageMetadata", b"BytesStorageMetadata_"),
        (b"bfloat16", b"__name__"),
        (b"_get_layout", b"load_layout"),
    ],
)
def test_a_list_of_shards_that_says_something_else_is_refused_or_harmless(old, said, instead):
    raw = (old / INDEX).read_bytes()
    assert said in raw
    (old / INDEX).write_bytes(raw.replace(said, instead))
    if said == b"_get_layout":  # of a module that the list may name, and it is not even looked up
        forge(old)
        read(old).load(IDENTITY)
        return
    refused(old, "is no index of these shards")


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
def test_pickles_that_mean_harm_are_refused(old, raw):
    (old / INDEX).write_bytes(raw)
    refused(old, "nothing of it was executed")


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
    outside = (path / "state.json").rename(path.parent / "outside.json")
    (path / "state.json").symlink_to(outside)
    with pytest.raises(UserError, match="links outside the checkpoint"):
        read(path)
    (path / "state.json").unlink()
    os.mkfifo(path / "state.json")
    with pytest.raises(UserError, match=r"is a pipe or a device|links outside the checkpoint"):
        read(path)


@pytest.mark.parametrize("raw", [b"[" * 100_000, b"", b"7", b"\xff", b'{"sha256": 1}', b'{"a":' * 50_000], ids=range(6))
def test_a_manifest_that_is_no_object_is_refused(path, raw):
    (path / MANIFEST).write_bytes(raw)
    with pytest.raises(UserError, match="damaged"):
        read(path)


OTHERS = (None, 7, 0.5, "seven", True, [7], {"seven": 7}, {"$tensor": "roles.weight"})


def places(value: dict[str, Any], before: tuple[str, ...] = ()):
    """Where the parts of a state are, but for entries of lists, which belong to the optimizers."""
    for key, inside in value.items():
        yield (*before, key)
        if isinstance(inside, dict) and "$tensor" not in inside and "$pairs" not in inside:
            yield from places(inside, (*before, key))


def test_a_value_of_another_kind_or_missing_is_named_before_anything_is_loaded(path):
    own, content = state(1) | {"roles": EXPECTED}, json.loads((path / "state.json").read_text())
    tried = 0
    for place in places(content):
        was = reduce(dict.__getitem__, place, content)
        for other in OTHERS:
            if was is None or type(was) is type(other):
                continue
            changed = copy.deepcopy(content)
            *within, name = place
            reduce(dict.__getitem__, within, changed)[name] = other
            (path / "state.json").write_text(json.dumps(changed))
            forge(path)
            with pytest.raises(UserError, match=rf"has a {'.'.join(place)} that is not .*; use another checkpoint"):
                read(path).load(IDENTITY, own)
            tried += 1
    assert tried > 50
    (path / "state.json").write_text(json.dumps({name: part for name, part in content.items() if name != "source"}))
    forge(path)
    with pytest.raises(UserError, match=r"lacks source"):
        read(path).load(IDENTITY, {"roles": {}, "source": {}})


def test_a_run_resumes_from_no_state_of_other_kinds_and_is_not_evaluated_with_it(files):
    run = TinyRun(files, "language", "llama", "algorithm=grpo", "checkpoint.every=1", name="foreign")
    run.train("steps=1")
    path = run.output / "checkpoints" / "00000001"
    content = json.loads((path / "state.json").read_text())
    content["roles"]["policy"] = dict.fromkeys(content["roles"]["policy"], 3)
    (path / "state.json").write_text(json.dumps(content))
    forge(path)
    for said in (run.train("steps=2", status=2), burnish("eval", run.output, status=2)):
        assert "that is not a tensor: 3" in said.message


def header(**tensors: Any) -> bytes:
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
    refused(path)


@pytest.mark.parametrize(
    "content", ['{"a": {"$tensor": "unknown"}}', '{"a": {"$tensor": []}}', '{"a": {"$pairs": [[[], 1]]}}', "[]",
                '{"a": {"$number": "many"}}', '{"a": {"$pairs": 3}}', "[" * 1000],
    ids=range(7),
)  # fmt: skip
def test_a_state_that_lies_is_refused(path, content):
    (path / "state.json").write_text(content)
    refused(path)


@pytest.mark.parametrize("name", [MANIFEST, TENSORS, "state.json"])
def test_bytes_that_are_changed_at_random_run_nothing_and_are_told_in_words(path, tmp_path, name):
    draw, original = random.Random(0), (path / name).read_bytes()
    files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    tried = 0
    for _ in range(25):
        raw = bytearray(original)
        for _ in range(draw.choice([1, 1, 2, 8])):
            raw[draw.randrange(len(raw))] = draw.choice([draw.randrange(256), *b"\x00\xff(.cRb0123456789"])
        if draw.random() < 0.2:
            del raw[draw.randrange(len(raw)) :]
        (path / name).write_bytes(raw)
        with contextlib.suppress(UserError):
            tried += 1
            if name != MANIFEST:
                forge(path)
            loaded(read(path))
            tried -= 1
        for file, content in files.items():
            file.write_bytes(content)
    assert tried > 5
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name]
