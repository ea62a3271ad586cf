"""What the C library does with memory that a process has freed."""

from __future__ import annotations

import ctypes
import os
import sys

MAPPED = 2**25  # bytes from which a block is given back at once: as high as glibc raises it by itself
KEPT = 2**26  # bytes that the heap may end with before they are given back
SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")

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
