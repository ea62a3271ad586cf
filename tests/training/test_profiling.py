"""Recordings exist for the updates and processes that were named, are whole, and know the phases."""

import contextlib
import gzip
import json

import pytest
import torch

from burnish.options.profiler import ProfilerOptions
from burnish.training.profiling import LOCAL, Profiler, controller_command, nsight
from burnish.utils.errors import UserError
from burnish.utils.timer import Stopwatch


def recorded(folder, options, *, role=LOCAL, rank=0, updates=(1, 2, 3)):
    """What a process leaves behind that multiplies in two phases."""
    watch = Stopwatch()
    profiler = Profiler(options, role=role, rank=rank, folder=folder, watch=watch)
    for update in updates:
        with profiler.during(update), watch("step"):
            with watch("gen"):
                weight = torch.ones(8, 8, requires_grad=True)
            with watch("update_actor"):
                (weight @ weight).sum().backward()
    assert set(watch.drain()) == {"step", "gen", "update_actor"}
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def events(file):
    with gzip.open(file, "rt") as opened:
        return json.load(opened)["traceEvents"]


def test_a_trace_for_each_named_update_with_its_phases(tmp_path):
    found = recorded(tmp_path, ProfilerOptions(steps=[1, 3]))
    assert found == ["update-00000001/local-0.json.gz", "update-00000003/local-0.json.gz"]
    trace = {event["name"]: event for event in events(tmp_path / found[1]) if event.get("ph") == "X"}
    assert {"update 3", "step", "gen", "update_actor", "aten::mm"} <= trace.keys()
    inner, outer = trace["aten::mm"], trace["update_actor"]
    assert outer["ts"] <= inner["ts"] <= inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


@pytest.mark.parametrize(
    ("option", "name"),
    [("record_shapes", "Input Dims"), ("profile_memory", "Bytes"), ("with_stack", "Python id")],
)
def test_what_a_trace_tells_beside(tmp_path, option, name):
    def told(folder, **given):
        (file,) = recorded(folder, ProfilerOptions(steps=[2], **given))
        return any(name in event.get("args", {}) for event in events(folder / file))

    assert told(tmp_path / "with", **{option: True})
    assert not told(tmp_path / "without")


@pytest.mark.parametrize(
    ("role", "rank", "wanted"),
    [("trainer", 1, True), ("trainer", 0, False), ("rollout", 1, False), ("reward", 1, True), (LOCAL, 0, True)],
)
def test_only_the_named_processes_are_recorded(tmp_path, role, rank, wanted):
    options = ProfilerOptions(steps=[2], roles=["trainer", "reward"], ranks=[1])
    found = recorded(tmp_path, options, role=role, rank=rank)
    assert found == ([f"update-00000002/{role}-{rank}.json.gz"] if wanted else [])


def test_without_options_nothing_is_recorded(tmp_path):
    assert recorded(tmp_path, None) == []


def test_an_update_that_fails_leaves_nothing_and_the_watch_as_it_was(tmp_path):
    watch = Stopwatch()
    profiler = Profiler(ProfilerOptions(steps=[1]), role=LOCAL, rank=0, folder=tmp_path, watch=watch)
    with pytest.raises(ZeroDivisionError), profiler.during(1):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    assert watch.mark is contextlib.nullcontext


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("tool", ["memory", "nsys"])
def test_what_looks_at_a_gpu_needs_one(tmp_path, tool):
    with pytest.raises(UserError, match=f"profiler.tool is {tool}, which needs a GPU, but trainer-0 has none"):
        recorded(tmp_path, ProfilerOptions(steps=[1], tool=tool), role="trainer")


class Gpu:
    """Notes what a GPU would be told."""

    def __init__(self, patch):
        self.told = []
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda.memory, "_record_memory_history", lambda **given: self.told.append(given))
        patch.setattr(torch.cuda.memory, "_dump_snapshot", self.dump)
        patch.setattr(torch.cuda.profiler, "start", lambda: self.told.append("start"))
        patch.setattr(torch.cuda.profiler, "stop", lambda: self.told.append("stop"))
        patch.setattr(torch.cuda.nvtx, "range", self.range)

    def dump(self, file):
        self.told.append("dump")
        with open(file, "wb") as opened:
            opened.write(b"snapshot")

    @contextlib.contextmanager
    def range(self, name):
        self.told.append(name)
        yield
        self.told.append(f"end of {name}")


def test_a_snapshot_of_memory_holds_what_happened_in_the_update(tmp_path, monkeypatch):
    gpu = Gpu(monkeypatch)
    found = recorded(tmp_path, ProfilerOptions(steps=[2], tool="memory", max_entries=7), role="trainer", rank=3)
    assert gpu.told == [{"max_entries": 7}, "dump", {"enabled": None}]
    assert found == ["update-00000002/trainer-3.pickle"]


def test_nsight_systems_gets_a_range_for_the_update_and_for_each_phase(tmp_path, monkeypatch):
    gpu = Gpu(monkeypatch)
    assert recorded(tmp_path, ProfilerOptions(steps=[2], tool="nsys")) == []
    inside = ["step", "gen", "end of gen", "update_actor", "end of update_actor", "end of step"]
    assert gpu.told == ["start", "update 2", *inside, "end of update 2", "stop"]


def test_a_worker_is_started_by_nsight_systems_and_lives_on_after_the_last_capture():
    options = ProfilerOptions(
        steps=[2, 5, 5], tool="nsys", roles=["trainer"], worker={"trace": "cuda", "gpu-metrics-devices": 0, "x": True}
    )
    assert nsight(options, "trainer") == {
        "capture-range": "cudaProfilerApi", "capture-range-end": "repeat:2", "kill": "none", "trace": "cuda",
        "cuda-memory-usage": "true", "gpu-metrics-devices": "0", "x": "true", "o": "'trainer_%p'",
    }  # fmt: skip
    assert nsight(options, "rollout") is None
    assert nsight(ProfilerOptions(steps=[2]), "trainer") is None
    assert nsight(None, "trainer") is None


def test_ray_takes_these_options():
    nsight_of_ray = pytest.importorskip("ray._private.runtime_env.nsight")
    runtime_env = pytest.importorskip("ray.runtime_env")
    options = ProfilerOptions(steps=[2], tool="nsys")
    entry = runtime_env.RuntimeEnv(nsight=nsight(options, "trainer"))
    command = nsight_of_ray.parse_nsight_config(entry.nsight())
    assert command[:2] == ["nsys", "profile"]
    assert "--capture-range=cudaProfilerApi" in command
    assert command[command.index("-o") + 1] == "'trainer_%p'"


def test_the_controller_is_started_by_the_user(tmp_path):
    options = ProfilerOptions(steps=[2], tool="nsys", controller={"trace": "osrt"})
    assert controller_command(options, local=False, folder=tmp_path) == [
        "nsys", "profile", "--trace=osrt", "--cuda-memory-usage=true", f"--output={tmp_path}/controller",
        "burnish", "train", "...",
    ]  # fmt: skip
    assert "--capture-range=cudaProfilerApi" in controller_command(options, local=True, folder=tmp_path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tool": "memory", "with_stack": True}, "with_stack is never read when tool is memory"),
        ({"max_entries": 5}, "max_entries is never read when tool is torch"),
        ({"worker": {"trace": "cuda"}}, "worker is never read when tool is torch"),
        ({"tool": "nsys", "worker": {"capture-range": "none"}}, "which profiler.steps decides"),
        ({"tool": "memory", "roles": ["controller"]}, "roles has controller"),
        ({"steps": []}, "at least 1"),
        ({"steps": [0]}, "greater than or equal to 1"),
    ],
)
def test_what_contradicts_itself_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        ProfilerOptions(**({"steps": [1]} | given))
