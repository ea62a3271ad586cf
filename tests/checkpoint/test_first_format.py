"""Checkpoints that earlier versions wrote are read, and those that strangers wrote run nothing."""

from __future__ import annotations

import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch

from burnish.checkpoint.files import read
from burnish.utils.errors import UserError
from tests.support.checkpoints import IDENTITY, loaded, make, same, state
from tests.support.checkpoints import save as save_now
from tests.support.foreign_checkpoints import EXPECTED, Payload, forge, save_first_format

INDEX = "shards/.metadata"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A checkpoint with shards."""
    return save_first_format(tmp_path_factory.mktemp("first"))


@pytest.fixture
def path(saved, tmp_path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(saved, tmp_path / saved.name))


def test_it_comes_back_as_it_was(path):
    assert same(loaded(read(path)), state(1) | {"roles": EXPECTED})


def test_a_run_goes_on_from_it_and_removes_it_in_its_turn(path):
    store = make(path.parent, keep_last=1)
    assert store.latest().update == 1
    store.validated(1, 0.5)
    assert make(path.parent).latest().score == 0.5
    save_now(store, 2, score=0.7)
    assert not path.exists()


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
