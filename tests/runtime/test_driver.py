"""What the driver of a run on Ray decides without workers: whether pools fit, what goes to whom, who is replaced."""

from __future__ import annotations

import os
import pickle
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist

from burnish.checkpoint.store import CheckpointStore
from burnish.config import load
from burnish.options.cluster import PoolOptions, PoolsOptions, RayOptions
from burnish.rollout.sources import OnlineSource
from burnish.runtime.actor import environment
from burnish.runtime.capacity import Need, Node, lacking, needs
from burnish.runtime.channel import Channel, device_for, place_of
from burnish.runtime.controller import RayController
from burnish.runtime.faults import RestartLimit, Unschedulable, WorkerDied, WorkerTimeout, device_failure
from burnish.runtime.prompt_numbers import PromptNumbers
from burnish.runtime.rollout_pool import RolloutPool
from burnish.training.ranks import RanksLost
from burnish.training.rendezvous import open_store
from burnish.utils.errors import UserError
from tests.support.sockets import listening
from tests.support.toy_source import prompt_schedule

LIMIT = 20.0  # seconds
SMALL = Node("10.0.0.1", cpus=4, gpus=0)
LARGE = Node("10.0.0.2", cpus=16, gpus=8)
CUDA, CPU = {"device": "cuda"}, {"device": "cpu"}


@pytest.mark.parametrize(
    ("pools", "nodes", "words"),
    [
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
    ],
    ids=str,
)
def test_pools_that_never_fit_are_told_with_what_there_is(pools, nodes, words):
    asked = PoolsOptions(**{name: PoolOptions(**given) for name, given in pools.items()})
    complaint = "\n".join(lacking(needs(asked, gpus_there=any(node.gpus for node in nodes)), nodes))
    assert bool(complaint) == bool(words)
    if len(nodes) > 1 and words:
        words = [*words, "pool rollout", "10.0.0.1 with 4 CPUs and 0 GPUs; 10.0.0.2 with 16 CPUs and 8 GPUs"]
    assert [word for word in words if word not in complaint] == []


def test_a_pool_takes_gpus_where_there_are_any_unless_it_is_told_otherwise():
    def device(gpus_there: bool, **options) -> tuple[str, float]:
        need = Need.of("train", PoolOptions(**options), gpus_there=gpus_there)
        return need.device, need.gpus

    assert device(True) == ("cuda", 1.0)
    assert device(False) == ("cpu", 0.0)
    assert device(True, device="cpu") == device(True, gpus=0) == ("cpu", 0.0)
    assert device(False, gpus=0.5) == ("cuda", 0.5)
    assert device(False, device="cuda", gpus=2) == ("cuda", 2.0)
    assert list(PoolsOptions().by_name()) == ["train"]
    assert list(PoolsOptions(reward=PoolOptions()).by_name()) == ["train", "reward"]
    assert PoolOptions(nodes=2, processes=3).size == 6
    assert environment(1.0, 0.0, {})["CUDA_VISIBLE_DEVICES"] == "", "a worker without GPUs sees none"
    assert "CUDA_VISIBLE_DEVICES" not in environment(1.0, 0.5, {})
    assert "CUDA_VISIBLE_DEVICES" not in environment(1.0, 0.0, {"env_vars": {"CUDA_VISIBLE_DEVICES": "1"}})


class AcceleratorError(RuntimeError):
    """By the name of PyTorch's own."""


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (AcceleratorError("an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: unspecified launch failure"), True),
        (RuntimeError("AcceleratorError: CUDA error: uncorrectable ECC error encountered"), True),
        (RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled cuda error"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`"), True),
        (dist.DistBackendError("ncclRemoteError: A call failed possibly due to a network error"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("CUDA error: out of memory"), False),
        (RuntimeError("Expected all tensors to be on the same device, cuda:0 and cpu"), False),
        (UserError("model.device is cuda, but PyTorch finds no GPU (CUDA error: no device)"), False),
        (RanksLost("rank 0 of 2: a sum failed"), False),
        (KeyError("CUDA"), False),
    ],
    ids=str,
)
def test_what_a_device_says_is_told_apart_from_errors_of_code(error, failed):
    assert bool(device_failure(error)) == failed
    assert not failed or str(error)[:20] in device_failure(error)


def test_a_meeting_listens_where_it_was_told_to_and_nowhere_else():
    before = listening([os.getpid()])
    meeting = open_store("127.0.0.1", 0, LIMIT)
    assert listening([os.getpid()]) - before == {f"127.0.0.1:{meeting.port}"}
    with pytest.raises(OSError, match="assign"):
        open_store("192.0.2.1", 0, LIMIT)  # of somebody else
    assert device_for(["gpu-a", "gpu-b", "gpu-c"]) == "cuda"
    assert device_for(["gpu-a", "gpu-b", "gpu-a"]) == device_for(["gpu-a", ""]) == "cpu"  # who share one don't talk
    assert place_of(torch.device("cpu")) == ""


@pytest.mark.parametrize("who", [0, 1], ids=["itself", "the other"])
def test_a_member_that_waits_in_vain_ends_when_one_gives_up(who):
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        joining = [pool.submit(Channel, store, rank, 2, device="cpu", seconds=LIMIT) for rank in range(2)]
        channels = [one.result(LIMIT) for one in joining]
        pool.submit(channels[0].broadcast, torch.zeros(3, dtype=torch.uint8))
        pool.submit(channels[1].broadcast, torch.zeros(3, dtype=torch.uint8)).result(LIMIT)
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


@pytest.mark.parametrize("ends", ["an abort", "a sender that is gone with its store"])
def test_a_broadcast_on_a_gpu_that_ends_without_an_error_has_not_arrived(monkeypatch, ends):
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    keepers = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    reached = dist.TCPStore("127.0.0.1", keepers[0].port, wait_for_workers=False)
    channel = Channel(reached, 1, 2, device="cuda", seconds=LIMIT)
    assert channel._group.errors == "0", "errors of NCCL end no process"
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"

    class Event:
        def record(self):
            """On the present stream."""

        def query(self):
            return channel._group.aborted

    monkeypatch.setattr(torch.cuda, "Event", Event)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channel.broadcast, torch.zeros(3, dtype=torch.uint8))
        time.sleep(0.05)
        (channel.abort if ends == "an abort" else keepers.clear)()
        with pytest.raises(RuntimeError, match="given up"):
            waiting.result(LIMIT)
    assert channel._group.aborted


class Trainers:
    """Ranks that answer which prompts are short enough, and are started again."""

    name, ended, rebuilt = "train", None, 0

    def call_one(self, rank, method):
        assert (rank, method) == (0, "learnable")
        return [1, 2]

    def end(self, why):
        self.ended = why

    def rebuild(self):
        self.ended, self.rebuilt = None, self.rebuilt + 1

    def submit(self, *_, **__):
        return self

    def results(self):
        return [7]


def controller_of(recipe: str, folder: Any, *more: str) -> RayController:
    config = load(recipe, ["runtime=ray", f"output_dir={folder}", *more])
    return RayController(config, CheckpointStore(folder / "checkpoints", config.checkpoint))


@pytest.mark.parametrize(
    ("recipe", "loader", "more"),
    [
        ("quickstart", "burnish.tasks.flow.assembly.load_model", []),
        ("vlm_quickstart", "burnish.tasks.language.assembly.load_language_model", []),
        ("vlm_quickstart", "burnish.tasks.language.assembly.load_language_model", ["data.max_prompt_length=64"]),
    ],
    ids=["flow", "language", "lengths"],
)
def test_the_driver_knows_its_prompts_and_loads_no_network(recipe, loader, more, tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("the driver asked for a network")

    monkeypatch.setattr(loader, refuse)
    controller = controller_of(recipe, tmp_path, *more)
    controller.check_data()
    controller.trainers = Trainers()
    source = controller._make_source()
    assert isinstance(source, OnlineSource)
    assert len(source.stream.next_batch()) == controller.config.data.train_batch_size
    assert len(source.stream.items) == (2 if more else len(controller.assembly.train_prompts))
    with pytest.raises(AssertionError, match="asked for a network"):
        _ = controller.assembly.roles


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (WorkerDied("train", 0, "its device failed: CUDA error"), True),
        (WorkerTimeout("timed out (ray.call_timeout)", pool="train"), True),
        (WorkerTimeout("timed out (ray.call_timeout)", pool="rollout"), False),
        (WorkerTimeout("timed out (ray.start_timeout)"), False),
        (RestartLimit("too often"), False),
        (ValueError("of a reward"), False),
    ],
    ids=str,
)
def test_ranks_that_died_or_hang_are_started_again(error, lost, tmp_path):
    controller = controller_of("quickstart", tmp_path)
    controller.trainers, controller.workers = Trainers(), SimpleNamespace(version=0)
    if isinstance(error, WorkerTimeout):
        there = pickle.loads(pickle.dumps(error))
        assert (str(there), there.pool) == (str(error), error.pool)
    if lost:
        controller.recover(error)
        assert (controller.trainers.rebuilt, controller.items) == (1, 7)
    else:
        with pytest.raises(type(error)):
            controller.recover(error)
        assert not controller.trainers.rebuilt


class Workers:
    """Those that sample, as far as they are asked."""

    name = "rollout"

    def __init__(self, size: int) -> None:
        self.size, self.asked, self.restarted, self.refusal = size, [], [], None

    def __len__(self) -> int:
        return self.size

    def submit_one(self, rank, method, *arguments, **more):
        self.asked.append((rank, method, arguments[0].version))

    def restart(self, rank):
        self.restarted.append(rank)
        if self.refusal is not None:
            raise self.refusal

    def dead(self):
        return []


class WeightSync:
    """Tells what was sent; ``trouble`` is met by the next publication."""

    def __init__(self) -> None:
        self.sent, self.trouble = [], None

    def send(self, version, *, full):
        self.sent.append((version, full))
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            trouble()
        return {"transfer": 1.0}

    def send_to(self, rank, version):
        self.sent.append((version, rank))

    def switch(self, rank, version):
        return None


@pytest.fixture
def pool() -> tuple[RolloutPool, Workers, WeightSync]:
    workers, syncs = Workers(2), WeightSync()
    samplers = RolloutPool(
        workers, syncs, RayOptions(call_timeout=5.0), needed=lambda version: True,
        add_phases=lambda seconds, lanes: None, stop=lambda: False, numbers=PromptNumbers(list),
    )  # fmt: skip
    return samplers, workers, syncs


def ask(version: int) -> Any:
    return prompt_schedule().request(version + 1, version, Counter())


def begin(samplers: RolloutPool, versions: int = 1) -> Any:
    for version in range(versions):
        samplers.publish(version)
        asked = samplers.submit(ask(version))
    return asked.orders[0]


def dies(pool_name: str, rank: int):
    def trouble():
        raise WorkerDied(pool_name, rank, "killed")

    return trouble


def test_the_first_sync_brings_everything_and_later_ones_what_is_trained(pool):
    samplers, workers, syncs = pool
    begin(samplers, 3)
    assert syncs.sent == [(0, True), (1, False), (2, False)]
    assert workers.asked == [(rank, "generate", version) for version in range(3) for rank in range(2)]
    samplers.publish(3)
    samplers.reset()  # only what is published again may be asked for
    with pytest.raises(RuntimeError, match="v3 are no longer published"):
        samplers.submit(ask(3))
    samplers.publish(2)
    for version in (1, 3):
        with pytest.raises(RuntimeError, match="no longer published"):
            samplers.submit(ask(version))
    samplers.submit(ask(2))
    assert syncs.sent[-1] == (2, False), "they still have what is not trained"


def test_a_worker_that_dies_in_a_sync_is_replaced_once_and_everybody_gets_everything(pool):
    samplers, workers, syncs = pool
    begin(samplers)
    syncs.trouble = dies("rollout", 1)
    samplers.publish(1)
    assert workers.restarted == [1]
    # the fresh one gets what its unfinished order needs, and then all of what is new
    assert syncs.sent == [(0, True), (1, False), (0, 1), (1, True)]
    assert workers.asked[-1] == (1, "generate", 0)


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed by both", "noticed by the other alone"])
def test_a_worker_that_another_thread_has_replaced_meanwhile(pool, noticed):
    samplers, workers, syncs = pool
    begin(samplers)

    def trouble():
        samplers._replace(1, WorkerDied("rollout", 1, "killed"))  # as whoever waits for its order does
        if noticed:
            raise WorkerDied("rollout", 1, "killed")

    syncs.trouble = trouble
    samplers.publish(1)
    assert workers.restarted == [1]
    assert syncs.sent[-1] == (1, True)
    samplers.submit(ask(1))
    assert syncs.sent[-1] == (1, True), "its second buffer is filled"


class Call:
    """An answer, or an error."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.kept = answer, {0: "kept", 1: "kept"}

    def wait(self, seconds):
        return True

    def result(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("late", [False, True], ids=["in time", "at the end of the time"])
def test_a_worker_that_hangs_is_replaced_as_if_it_had_died(pool, late, monkeypatch):
    samplers, workers, _ = pool
    answers = [Call(WorkerTimeout("timed out after 5 s", pool="rollout")), Call("second")]
    monkeypatch.setattr(workers, "submit_one", lambda rank, *_, **__: answers.pop(0) if rank == 0 else Call("first"))
    order = begin(samplers)
    assert samplers.finished(order, time.monotonic() - 1.0 * late) == ("second", "kept")
    assert workers.restarted == [0]


def test_who_was_too_slow_to_start_or_is_of_the_trainers_is_not_replaced(pool, monkeypatch):
    samplers, workers, syncs = pool
    monkeypatch.setattr(workers, "submit_one", lambda *_, **__: Call(WorkerTimeout("timed out (ray.start_timeout)")))
    order = begin(samplers)
    with pytest.raises(WorkerTimeout):
        samplers.finished(order, time.monotonic())
    syncs.trouble = dies("train", 0)
    with pytest.raises(WorkerDied, match="pool train"):
        samplers.publish(1)
    assert not workers.restarted


@pytest.mark.parametrize("error", [Unschedulable("nowhere"), WorkerTimeout("too slow")])
def test_who_can_not_be_replaced_is_not_tried_again(pool, error):
    samplers, workers, syncs = pool
    begin(samplers)
    workers.refusal, syncs.trouble = error, dies("rollout", 0)
    for attempt in (samplers.publish, lambda version: samplers.submit(ask(0))):
        with pytest.raises(type(error)):
            attempt(1)
    assert workers.restarted == [0]
