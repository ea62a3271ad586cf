"""What the C library and PyTorch do with memory that a process has freed."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MAPPED = 2**25  # bytes from which a block is given back at once: as high as glibc raises it by itself
KEPT = 2**26  # bytes that the heap may end with before they are given back
SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")
ON_GPU = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")

_TRIM, _MMAP = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h


def keep_freed_memory() -> bool:
    """Have glibc keep blocks of up to 32 MiB for the next tensors, from the start on.

    It comes to that by itself in a process that once frees such a block. Before, tensors of 128 KiB and more are
    returned to the kernel again and again, which clears every page of the next ones. Where the environment says how
    glibc is to allocate, that holds.

    Returns:
        Whether it was set: there are other C libraries.
    """
    if sys.platform != "linux" or any(name in os.environ for name in SETTINGS):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(_MMAP, MAPPED)) and bool(mallopt(_TRIM, KEPT))


def grow_segments() -> bool:
    """Have PyTorch take a GPU's memory in segments that grow, before the first tensor is there.

    Gaps in segments of fixed sizes are lost to tensors of other sizes: sequences and images vary, and the shards of
    many small weights lie between them. Where the environment says how PyTorch is to allocate, that holds.

    Returns:
        Whether it was set: it is for NVIDIA's GPUs.
    """
    return _expandable(True)


def _expandable(grow: bool) -> bool:
    import torch

    if torch.version.cuda is None or any(name in os.environ for name in ON_GPU):
        return False
    told = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # PyTorch before 2.10 has another name for it
    (told or torch.cuda.memory._set_allocator_settings)(f"expandable_segments:{grow}")
    return True


def shareable(size: int, device: torch.device) -> Tensor:
    """Memory of a GPU that other processes can open: uint8 [size], in a segment of its own that does not grow.

    Those that grow are opened by file descriptors, which a container may not let a child take from its parent.
    """
    import torch

    _expandable(False)
    try:
        with torch.cuda.use_mem_pool(_shared_pool(), device):
            return torch.empty(size, dtype=torch.uint8, device=device)
    finally:
        _expandable(True)


@cache
def _shared_pool() -> torch.cuda.MemPool:
    """Where such memory stays, for the next time."""
    import torch

    return torch.cuda.MemPool()


def give_back_cached() -> None:
    """Give back what PyTorch keeps of a GPU's memory for later tensors: another process needs it now."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
