"""Where the members of a channel find each other: nobody reaches it but who is meant to."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import distributed as dist

from burnish.runtime.channel import Channel, device_for, place_of
from burnish.training.rendezvous import open_store
from tests.support.sockets import listening

LIMIT = 20.0  # seconds


def test_a_meeting_listens_where_it_was_told_to_and_nowhere_else():
    before = listening([os.getpid()])
    meeting = open_store("127.0.0.1", 0, LIMIT)
    assert listening([os.getpid()]) - before == {f"127.0.0.1:{meeting.port}"}


def test_a_store_is_not_opened_at_an_address_of_somebody_else():
    with pytest.raises(OSError, match="assign"):
        open_store("192.0.2.1", 0, LIMIT)


@pytest.fixture
def members():
    """Two channels of one group, in this process."""
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        joining = [pool.submit(Channel, store, rank, 2, device="cpu", seconds=LIMIT) for rank in range(2)]
        yield [one.result(LIMIT) for one in joining], pool


@pytest.mark.parametrize("who", [0, 1], ids=["itself", "the other"])
def test_a_member_that_waits_in_vain_ends_when_one_gives_up(members, who):
    channels, pool = members
    waiting = pool.submit(channels[0].broadcast, torch.zeros(3, dtype=torch.uint8))
    waiting = pool.submit(channels[1].broadcast, torch.zeros(3, dtype=torch.uint8))
    waiting.result(LIMIT)
    waiting = pool.submit(channels[1].broadcast, torch.zeros(3, dtype=torch.uint8))
    time.sleep(0.1)
    begun = time.monotonic()
    channels[1 - who].abort()
    with pytest.raises(RuntimeError, match="given up"):
        waiting.result(LIMIT)
    assert time.monotonic() - begun < LIMIT / 2
    with pytest.raises(RuntimeError, match="given up"):
        channels[1].broadcast(torch.zeros(3, dtype=torch.uint8))


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

    def abort(self):
        self.aborted = True


@pytest.fixture
def on_gpus(monkeypatch):
    """A channel over a stand-in for NCCL, whose events are those of its one broadcast."""
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    reached = dist.TCPStore("127.0.0.1", store.port, wait_for_workers=False)
    channel = Channel(reached, 1, 2, device="cuda", seconds=LIMIT)

    class Event:
        def record(self):
            """On the present stream."""

        def query(self):
            return channel._group.aborted

    monkeypatch.setattr(torch.cuda, "Event", Event)
    keepers = [store]
    del store
    return channel, keepers


def is_given_up(channel, happens):
    """A broadcast that waits on a GPU while something happens."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channel.broadcast, torch.zeros(3, dtype=torch.uint8))
        time.sleep(0.05)
        happens()
        with pytest.raises(RuntimeError, match="given up"):
            waiting.result(LIMIT)


def test_what_an_abort_ends_on_a_gpu_has_not_arrived(on_gpus):
    channel, _ = on_gpus
    is_given_up(channel, channel.abort)


def test_a_sender_that_is_gone_with_its_store_leaves_no_broadcast_on_the_gpu(on_gpus):
    channel, keepers = on_gpus
    is_given_up(channel, keepers.clear)
    assert channel._group.aborted


def test_errors_of_nccl_end_no_process(on_gpus):
    channel, _ = on_gpus
    assert channel._group.errors == "0"
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"


def test_processes_that_share_a_gpu_do_not_talk_over_it():
    assert device_for(["gpu-a", "gpu-b", "gpu-c"]) == "cuda"
    assert device_for(["gpu-a", "gpu-b", "gpu-a"]) == "cpu"
    assert device_for(["gpu-a", ""]) == "cpu"
    assert place_of(torch.device("cpu")) == ""
