"""Kernels that add in one order, so that the same run gives the same numbers on a GPU as well."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS reads it as it is first used; without it products may differ by stream


@contextmanager
def in_one_order() -> Iterator[None]:
    """Have PyTorch choose kernels that give the same bits each time, in this context; of the process, not the thread.

    An operation that has none computes all the same, and PyTorch warns of it by its name.
    """
    import torch

    cudnn, memory = torch.backends.cudnn, cast(Any, torch.utils.deterministic)
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    of_cudnn, filled = (cudnn.deterministic, cudnn.benchmark), memory.fill_uninitialized_memory
    os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    cudnn.deterministic, cudnn.benchmark = True, False
    memory.fill_uninitialized_memory = False  # nothing is read that was not written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.deterministic, cudnn.benchmark = of_cudnn
        memory.fill_uninitialized_memory = filled
