"""What a device says is told apart from errors of code."""

import pickle

import pytest
import torch

from burnish.runtime.actor import environment
from burnish.runtime.faults import WorkerTimeout, device_failure
from burnish.training.ranks import RanksLost
from burnish.utils.errors import UserError


class AcceleratorError(RuntimeError):
    """By the name of PyTorch's own."""


@pytest.mark.parametrize(
    "error",
    [
        AcceleratorError("an illegal memory access was encountered"),
        RuntimeError("CUDA error: unspecified launch failure"),
        RuntimeError("AcceleratorError: CUDA error: uncorrectable ECC error encountered"),
        RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled cuda error"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`"),
        torch.distributed.DistBackendError("ncclRemoteError: A call failed possibly due to a network error"),
    ],
    ids=str,
)
def test_a_device_failed(error):
    assert str(error)[:20] in device_failure(error)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Expected all tensors to be on the same device, cuda:0 and cpu"),
        UserError("model.device is cuda, but PyTorch finds no GPU (CUDA error: no device)"),
        RanksLost("rank 0 of 2: a sum failed"),
        KeyError("CUDA"),
    ],
    ids=str,
)
def test_code_or_the_user_is_at_fault(error):
    assert not device_failure(error)


def test_a_timeout_keeps_its_pool_on_its_way():
    error = pickle.loads(pickle.dumps(WorkerTimeout("late", pool="train")))
    assert (str(error), error.pool) == ("late", "train")


def test_a_worker_without_gpus_sees_none():
    assert environment(1.0, 0.0, {})["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in environment(1.0, 0.5, {})
    assert "CUDA_VISIBLE_DEVICES" not in environment(1.0, 0.0, {"env_vars": {"CUDA_VISIBLE_DEVICES": "1"}})
