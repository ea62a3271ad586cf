"""Memory of freed tensors is used again, in a process whose environment doesn't say otherwise."""

import os
import subprocess
import sys

import pytest
import torch

from burnish.utils.allocator import ON_GPU, SETTINGS, grow_segments

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


def told(**more):
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS} | more
    found = subprocess.run([sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True)
    was_set, faults = found.stdout.split()
    return was_set == "True", int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries")
def test_freed_blocks_are_used_again_unless_the_environment_says_otherwise():
    was_set, faults = told()
    if not was_set:
        pytest.skip("no glibc")
    assert faults < 0.5 * 8 * 8 * 512
    assert told(MALLOC_MMAP_THRESHOLD_="131072") == (False, pytest.approx(8 * 8 * 512, rel=0.2))


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
