"""What golden runs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.golden.runs import write_files


@pytest.fixture(scope="package")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rewards and records; models join them as they are needed."""
    folder = tmp_path_factory.mktemp("golden")
    write_files(folder)
    return folder


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """How a sum is cut among threads moves its last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
