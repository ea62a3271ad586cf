"""Random streams by their keys, memory, kernels that repeat their numbers, and pictures side by side."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from burnish.config import load
from burnish.tasks import assemble
from burnish.tasks.language.vllm import process
from burnish.utils import random
from burnish.utils.allocator import ON_GPU, SETTINGS, grow_segments
from burnish.utils.images import FRAME, GAP, LARGE, PAPER, RIGHT, SMALL, WRONG, grid
from burnish.utils.lru_cache import LruCache
from burnish.utils.repeatable import WORKSPACE
from burnish.utils.spool import Spool, Spooled


def test_a_row_of_random_numbers_depends_on_its_key_alone():
    rows = [(7, "rollout", update, uid, sample) for update in (0, 1) for uid in ("a", "b") for sample in range(3)]
    whole = random.normal((2, 3), rows)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    torch.manual_seed(5)
    assert torch.equal(random.normal((2, 3), [rows[i] for i in order]), whole[order])
    for i in range(len(rows)):
        assert torch.equal(random.normal((2, 3), rows[i : i + 1])[0], whole[i])
    assert torch.unique(whole.flatten()).numel() == whole.numel()
    random.uniform(4, [(1,)])
    random.permutation(4, 1)
    after = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), after), "the global generator is left alone"


def test_keys_do_not_run_into_each_other_and_their_numbers_never_change():
    """A run can only be repeated by a later version if these stay."""
    keys = [(1, 2), (12,), ("1", 2), (1, "2"), ("12",), ("1", "2"), (1, 2, ""), (2, 1), ("", 1, 2), ("1\x1fs2",)]
    assert len({random.key(*parts) for parts in keys}) == len(keys)
    assert all(0 <= random.key(*parts) < 2**63 for parts in keys)
    assert random.key(0, "rollout", 3, "abc", 1) == 3061033483697161223
    assert random.permutation(6, 1, "order") == [0, 3, 2, 4, 5, 1]
    assert sorted(random.permutation(50, "x")) == list(range(50))
    rows = [(i,) for i in range(200)]
    normal, uniform = random.normal((100,), rows), random.uniform(100, rows)
    assert abs(float(normal.mean())) < 0.02
    assert abs(float(normal.std()) - 1) < 0.02
    assert 0 <= uniform.min() < uniform.max() < 1
    assert abs(float(uniform.mean()) - 0.5) < 0.01


FAULTS = """
import resource, torch
from burnish.utils.allocator import keep_freed_memory
print(keep_freed_memory())
torch.set_num_threads(1)
def learn():
    for number in range(8):
        kept = [torch.ones(2**19) for _ in range(8)]  # 2 MiB each
learn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
learn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries")
@pytest.mark.parametrize(
    ("given", "fewer"),
    [({}, True), pytest.param({"MALLOC_MMAP_THRESHOLD_": "131072"}, False, marks=pytest.mark.thorough)],
)
def test_freed_blocks_are_used_again_unless_the_environment_says_otherwise(given, fewer):
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS} | given
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    was_set, faults = done.stdout.split()
    if fewer and was_set == "False":
        pytest.skip("no glibc")
    assert was_set == str(fewer)
    assert (int(faults) < 0.5 * 8 * 8 * 512) == fewer


def test_segments_grow_on_nvidias_gpus_unless_the_environment_says_otherwise(monkeypatch):
    told = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append, raising=False)
    for name in ON_GPU:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert not grow_segments()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert grow_segments()
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    assert not grow_segments()
    assert told == ["expandable_segments:True"]


def test_what_was_used_last_stays_in_a_cache_and_counts_by_its_size():
    kept = LruCache(3)
    for key in "abc":
        kept.get(key, lambda: 0)
    assert kept.find("a") == 0
    kept.get("d", lambda: 1)
    assert (kept.find("b"), kept.find("a"), kept.get("d", lambda: 2)) == (None, 0, 1)
    sized = LruCache(10, len)
    first = sized.get("a", lambda: [0] * 4)
    first += [0] * 4
    sized.get("b", lambda: [0] * 4)
    assert sized.total == 12, "also where it grows"
    sized.get("c", lambda: [0])
    assert (sized.find("a"), sized.total) == (None, 5)


def test_what_is_too_much_for_memory_is_read_from_the_disk(monkeypatch):
    spool = Spool(in_memory=10)
    given = [b"12345", b"67890", b"abcdef", b"", b"ghi" * 1000]
    kept = [spool.keep(one) for one in given]
    assert [isinstance(one, Spooled) for one in kept] == [False, False, True, False, True]
    assert [one.read() if isinstance(one, Spooled) else one for one in kept] == given
    assert pickle.loads(pickle.dumps(kept)) == given, "another process gets the bytes"

    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", Full)
    with pytest.raises(ValueError, match=r"No space left .*TMPDIR"):
        Spool(in_memory=0).keep(b"1")


def settings():
    return (
        torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic, torch.utils.deterministic.fill_uninitialized_memory,
    )  # fmt: skip


@pytest.mark.parametrize("recipe", ["quickstart", "vlm_quickstart"])
def test_a_run_has_deterministic_kernels_until_it_ends(recipe, monkeypatch):
    monkeypatch.delenv(WORKSPACE, raising=False)
    before = settings()
    assert "VLLM_BATCH_INVARIANT" not in process._environment(None)
    assemble(load(recipe)).close()
    assert WORKSPACE not in os.environ
    assembly = assemble(load(recipe, ["deterministic=true"]))
    assert settings() == (True, True, True, False)
    assert os.environ[WORKSPACE] == ":4096:8"
    assert process._environment(None)["VLLM_BATCH_INVARIANT"] == "1"
    assembly.close()
    assert settings() == before


def flat(value, height=16, width=32):
    return np.full((height, width, 3), value, dtype=np.uint8)


def test_pictures_of_a_grid_are_in_their_places_sharp_framed_and_labelled():
    wide, high = SMALL, SMALL // 2

    def cell(sheet, row, column, left=GAP):
        x, y = left + column * (wide + 2 * FRAME + GAP) + FRAME, GAP + row * (high + 2 * FRAME + GAP) + FRAME
        return np.asarray(sheet)[y : y + high, x : x + wide]

    noise = np.random.default_rng(0).integers(0, 256, (16, 32, 3), dtype=np.uint8)
    gray, square = np.full((16, 32), 7, np.uint8), flat(9, 32, 32)
    bare = grid([noise, flat(50), gray, square, flat(200)], columns=2, verdicts=[True, False, None, None, None])
    assert bare.size == (GAP + 2 * (wide + 2 * FRAME + GAP), GAP + 3 * (high + 2 * FRAME + GAP))
    scale = SMALL // 32
    assert (cell(bare, 0, 0) == noise.repeat(scale, 0).repeat(scale, 1)).all()
    assert (cell(bare, 1, 0) == 7).all()
    columns = (cell(bare, 1, 1)[..., 0] == 9).sum(0) == high
    assert columns.tolist() == [8 * scale <= x < 24 * scale for x in range(wide)], "it is fitted in"
    assert (cell(bare, 2, 0) == 200).all()
    assert (cell(bare, 2, 1) == PAPER).all()
    frames = [bare.getpixel((GAP + i * (wide + 2 * FRAME + GAP), GAP)) for i in (0, 1)]
    assert frames == [RIGHT, WRONG]
    for label in ("the number 472", "word" * 200, "灯台 ünïcödé", "two\nlines\tand tabs"):
        sheet = grid([flat(255)] * 6, columns=2, labels=["", "", label])
        left = sheet.width - bare.width
        assert sheet.height == bare.height
        assert (cell(sheet, 2, 1, left=GAP + left) == 255).all()
        ink = (np.asarray(sheet)[:, :left] != PAPER).any(axis=(1, 2))
        assert not ink[: sheet.height // 2].any()
        assert ink[sheet.height // 2 :].any()
    assert LARGE < grid([flat(9, 1024, 768)] * 4, columns=4).height < LARGE + 50
