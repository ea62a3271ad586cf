"""What a run on Ray tells without workers: whether pools fit, what a device says, and where it listens."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import distributed as dist

from burnish.language.vllm.apart.burnish_vllm.channel import Channel, device_for
from burnish.language.vllm.process import VllmDiedError
from burnish.options.cluster import PoolOptions, PoolsOptions
from burnish.runtime.calls import device_failure
from burnish.runtime.cluster import Node, lacking, needs
from burnish.runtime.heartbeat import LONGEST, Heartbeat, Place
from burnish.training.ranks import RanksLost, open_store
from burnish.utils.errors import UserError
from tests.support.sockets import listening

LIMIT = 20.0  # seconds
SMALL = Node("10.0.0.1", cpus=4, gpus=0)
LARGE = Node("10.0.0.2", cpus=16, gpus=8)
CUDA, CPU = {"device": "cuda"}, {"device": "cpu"}


@pytest.mark.parametrize(("pools", "nodes", "words"), [
    ({"train": {"processes": 8}, "rollout": {"processes": 4} | CPU}, [SMALL, LARGE], []),
    ({"rollout": {"nodes": 3} | CPU}, [SMALL, LARGE], ["3 machines, each with 1 CPU", "2 of 2 machines have"]),
    ({"rollout": {"processes": 20} | CPU}, [SMALL, LARGE], ["a machine with 20 CPUs", "0 of 2 machines have"]),
    ({"rollout": {"processes": 9, "cpus": 0.5}}, [SMALL, LARGE], ["a machine with 4.5 CPUs and 9 GPUs"]),
    ({"rollout": {"nodes": 2} | CUDA}, [SMALL, LARGE], ["each with 1 CPU and 1 GPU", "1 of 2 machines has"]),
    (
        {"train": {"processes": 3}, "rollout": {"processes": 2}},
        [SMALL],
        ["5 CPUs together (train 3, rollout 2)", "the cluster has 4"],
    ),
], ids=str)  # fmt: skip
def test_pools_that_never_fit_are_told_with_what_there_is(pools, nodes, words):
    asked = PoolsOptions(**{name: PoolOptions(**given) for name, given in pools.items()})
    complaint = "\n".join(lacking(needs(asked, gpus_there=any(node.gpus for node in nodes)), nodes))
    assert bool(complaint) == bool(words)
    if len(nodes) > 1 and words:
        words = [*words, "pool rollout", "10.0.0.1 with 4 CPUs and 0 GPUs; 10.0.0.2 with 16 CPUs and 8 GPUs"]
    assert [word for word in words if word not in complaint] == []


class AcceleratorError(RuntimeError):
    """By the name of PyTorch's own."""


@pytest.mark.parametrize(("error", "failed"), [
    (AcceleratorError("an illegal memory access was encountered"), True),
    (RuntimeError("CUDA error: unspecified launch failure"), True),
    (RuntimeError("AcceleratorError: CUDA error: uncorrectable ECC error encountered"), True),
    (RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled cuda error"), True),
    (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`"), True),
    (dist.DistBackendError("ncclRemoteError: A call failed possibly due to a network error"), True),
    (VllmDiedError("vLLM ended while it was asked for 4 responses: signal 9, Killed"), True),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
    (RuntimeError("CUDA error: out of memory"), False),
    (RuntimeError("Expected all tensors to be on the same device, cuda:0 and cpu"), False),
    (UserError("model.device is cuda, but PyTorch finds no GPU (CUDA error: no device)"), False),
    (RanksLost("rank 0 of 2: a sum failed"), False),
    (KeyError("CUDA"), False),
], ids=str)  # fmt: skip
def test_what_a_device_says_is_told_apart_from_errors_of_code(error, failed):
    assert bool(device_failure(error)) == failed
    assert not failed or str(error)[:20] in device_failure(error)


def test_ranks_hang_once_none_has_moved_for_long_and_those_that_most_wait_for_come_first():
    known, begun = Heartbeat((0, 1, 2, 3), began=100.0), 200.0
    places = {0: "in loop.py:1", 1: "in loop.py:1", 2: "in data.py:2"}  # and the last one never answers
    assert known.hanging(100 + LONGEST - 1) == {}
    for now in (begun, begun + LONGEST - 1):
        for rank, where in places.items():
            known.hear(rank, Place(1, 7, where), now)
        assert known.hanging(begun + LONGEST - 1) == {}
    found = [("not answering", [3]), ("in data.py:2", [2]), ("in loop.py:1", [0, 1])]
    assert list(known.hanging(begun + LONGEST).items()) == found
    known.hear(0, Place(2, 7, places[0]), begun + LONGEST)
    assert known.hanging(begun + LONGEST) == {}


def test_a_meeting_listens_where_it_was_told_to_and_nowhere_else():
    before = listening([os.getpid()])
    meeting = open_store("127.0.0.1", 0, LIMIT)
    assert listening([os.getpid()]) - before == {f"127.0.0.1:{meeting.port}"}
    with pytest.raises(OSError, match="assign"):
        open_store("192.0.2.1", 0, LIMIT)  # of somebody else
    assert device_for(["gpu-a", "gpu-b", "gpu-c"]) == "cuda"
    assert device_for(["gpu-a", "gpu-b", "gpu-a"]) == device_for(["gpu-a", ""]) == "cpu"  # who share one don't talk


class Nccl:
    """What a channel asks of NCCL: a broadcast that only an abort ends, and then without an error."""

    class Options:
        """Of a group."""

    def __init__(self, store, rank, size, options):
        self.errors, self.aborted = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING"), False
        store.set("there", "1")

    def broadcast(self, tensors, options):
        return self

    def wait(self):
        """By the stream."""

    def is_completed(self):
        return self.aborted

    def abort(self):
        self.aborted = True


@pytest.mark.parametrize("ends", ["an abort", "a sender that is gone with its store"])
def test_a_broadcast_on_a_gpu_that_ends_without_an_error_has_not_arrived(monkeypatch, ends):
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    keepers = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    reached = dist.TCPStore("127.0.0.1", keepers[0].port, wait_for_workers=False)
    channel = Channel(reached, 1, 2, device="cuda", seconds=LIMIT)
    assert channel._group.errors == "0", "errors of NCCL end no process"
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"

    channel.broadcast(torch.zeros(3, dtype=torch.uint8))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channel.finish)
        time.sleep(0.05)
        (channel.abort if ends == "an abort" else keepers.clear)()
        with pytest.raises(RuntimeError, match="given up"):
            waiting.result(LIMIT)
    assert channel._group.aborted
