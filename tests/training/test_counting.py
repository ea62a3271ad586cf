"""Operations counted without values, beside PyTorch's own count and counts by hand; peaks of devices, and profiles."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
from pathlib import Path

import diffusers
import pytest
import torch
import transformers

from burnish.models.flow.base import Drawing
from burnish.models.flow.loading import load_model
from burnish.models.lora import add_adapters
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.options.flow import LoraOptions, ModelOptions, RolloutOptions
from burnish.options.profiler import ProfilerOptions
from burnish.training.flop_counter import Cost, FlopCounter, Skeleton
from burnish.training.meter import CallMeter, Meter, Usage
from burnish.training.peak_flops import device_peak, peak_of
from burnish.training.profiling import LOCAL, Profiler, controller_command, nsight
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from burnish.utils.timer import Stopwatch
from tests.support.flops import torch_flops

CPU = torch.device("cpu")


UNREAD = {"qwen-image": 0.1, "z-image": 0.1}  # of two blocks, the last one makes a text of which nothing is learned
MORE = ["flux", "wan2.2", "qwen-image", "z-image", "ltx"]


@pytest.mark.parametrize("name", ["sd3", *(pytest.param(name, marks=pytest.mark.thorough) for name in MORE)])
@pytest.mark.parametrize("adapted", [False, True], ids=["all weights", "adapters"])
def test_generators(tmp_path, name, adapted):
    """Every family, and pipelines that no family is written for."""
    tiny = describe(name)
    write(tiny, tmp_path / "model", seed=0)
    size = {"height": tiny.height, "width": tiny.width, "num_frames": tiny.num_frames}
    rollout = RolloutOptions(
        batch_size=96, num_inference_steps=4, guidance_scale=3.0, max_sequence_length=12, call=dict(tiny.call), **size
    )
    model = load_model(ModelOptions(path=str(tmp_path / "model")), rollout)
    if adapted:
        add_adapters(model.network, LoraOptions(rank=3), ["policy"], seed=0, default_targets=model.lora_targets)
    else:
        model.network.requires_grad_(True)
    drawing = Drawing(height=tiny.height, width=tiny.width, steps=4)
    asked = model.condition([Prompt(text=text, negative="grey") for text in ("fox", "two apples", "fox")], drawing)
    model.verify(asked, guidance=3.0)
    x = model.start(asked, drawing, [("row", row) for row in range(3)])
    time, some = model.schedule(asked, drawing)[torch.tensor([0, 0, 2])], asked.rows()
    meter = CallMeter(1.0, CPU)
    meter.watch(model.network)

    def velocity():
        return model.predict(model.network, x, time, some, some, guidance=3.0)

    with meter.counting():
        velocity()  # each shape is run without values, once
        once, meter.counted = meter.counted, 0.0
        with torch_flops() as counter:
            velocity().sum().backward()
    assert meter.works
    assert once == meter.counted == pytest.approx(counter.get_total_flops(), rel=UNREAD.get(name, 0))


def by_hand(layers, tokens, width, hidden):
    """A forward pass of transformer layers with full attention: four products of the width, two of the inner one."""
    return layers * (2 * tokens * (4 * width**2 + hidden) + 4 * tokens**2 * width)


def counted(network, given):
    """Of a forward pass of a network on the meta device, and of its backward pass."""
    skeleton = Skeleton(network, CPU)
    with FlopCounter() as operations:
        skeleton.network(**skeleton.fake(given))
    return operations.cost


def test_stable_diffusion_3_by_hand():
    with torch.device("meta"):
        network = diffusers.SD3Transformer2DModel(
            sample_size=128, num_layers=4, num_attention_heads=24, attention_head_dim=64, joint_attention_dim=4096,
            caption_projection_dim=1536, pooled_projection_dim=2048, pos_embed_max_size=192,
        )  # fmt: skip
    image, text, width = 4096, 333, 1536
    cost = counted(network.requires_grad_(True), {
        "hidden_states": torch.zeros(1, 16, 128, 128), "encoder_hidden_states": torch.zeros(1, text, 4096),
        "pooled_projections": torch.zeros(1, 2048), "timestep": torch.ones(1),
    })  # fmt: skip
    # the last block makes nothing of the text any more but its keys and values
    unused = 2 * text * (width**2 + 8 * width**2)
    expected = by_hand(4, image + text, width, 8 * width**2) - unused + 2 * text * 4096 * width
    assert cost.forward == pytest.approx(expected, rel=0.02)
    assert cost.backward == pytest.approx(2 * expected, rel=0.02)


def test_qwen_by_hand():
    config = transformers.Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=2, num_attention_heads=28,
        num_key_value_heads=4, vocab_size=152064,
    )  # fmt: skip
    with torch.device("meta"):
        network = transformers.Qwen2ForCausalLM(config)
    tokens, width = 2048, 3584
    cost = counted(network, {"input_ids": torch.zeros(1, tokens, dtype=torch.long), "use_cache": False})
    keys = 2 * width * (28 * 128 - 4 * 128)  # eight groups share keys and values
    layers = by_hand(2, tokens, width, 3 * width * 18944 - keys)
    assert cost.forward == pytest.approx(layers + 2 * tokens * width * 152064, rel=0.02)
    assert cost.backward == pytest.approx(2 * cost.forward, rel=0.02)


@pytest.mark.parametrize(
    ("name", "dtype", "tf32", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, True, 989.4), ("NVIDIA H100 PCIe", torch.bfloat16, True, 756.5),
        ("NVIDIA H200", torch.bfloat16, True, 989.4), ("NVIDIA L40S", torch.bfloat16, True, 362),
        ("NVIDIA L4", torch.bfloat16, True, 121), ("NVIDIA A100-SXM4-80GB", torch.bfloat16, True, 312),
        ("NVIDIA GeForce RTX 4090", torch.bfloat16, True, 165.2), ("NVIDIA H200", torch.float32, True, 494.7),
        ("NVIDIA H200", torch.float32, False, 66.9), ("Tesla T4", torch.float32, True, 8.1),
        ("NVIDIA H2000", torch.bfloat16, True, None),
    ],
)  # fmt: skip
def test_the_peak_is_that_of_the_longest_name(name, dtype, tf32, tera):
    assert peak_of(name, dtype, tf32=tf32) == (tera and pytest.approx(tera * 1e12))


def test_what_cannot_be_counted_is_said_once_and_ends_counting(caplog):
    with caplog.at_level(logging.INFO):
        assert device_peak(CPU, torch.float32, None) is None
    assert "trainer.peak_tflops" in caplog.text
    assert device_peak(CPU, torch.float32, 2.5) == 2.5e12
    usage = Usage(meter := Meter(1e12), 2)

    def fails() -> Cost:
        raise RuntimeError("no shape")

    with usage.during("actor"):
        meter.add(lambda: Cost(3.0, 5.0))
        with torch.no_grad():
            meter.add(lambda: Cost(3.0, 5.0))
        with usage.paused():
            meter.add(fails)
        assert usage.share("actor") == {"operations actor": 11.0}
        usage.add({"operations actor": 22.0, "loss": 1.0})
    assert usage.metrics()["perf/mfu/actor"] > 0
    with usage.during("actor"):
        meter.add(fails)
        meter.add(fails)
        usage.add({"operations actor": 1.0})
    assert usage.metrics() == {}
    assert caplog.text.count("no shape") == 1


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


def events(file: Path):
    with gzip.open(file, "rt") as opened:
        return json.load(opened)["traceEvents"]


def test_a_trace_for_each_named_update_with_its_phases(tmp_path):
    found = recorded(tmp_path, ProfilerOptions(steps=[1, 3]))
    assert found == ["update-00000001/local-0.json.gz", "update-00000003/local-0.json.gz"]
    trace = {event["name"]: event for event in events(tmp_path / found[1]) if event.get("ph") == "X"}
    assert {"update 3", "step", "gen", "update_actor", "aten::mm"} <= trace.keys()
    inner, outer = trace["aten::mm"], trace["update_actor"]
    assert outer["ts"] <= inner["ts"] <= inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    assert recorded(tmp_path / "none", None) == []


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


def test_an_update_that_fails_leaves_nothing_and_the_watch_as_it_was(tmp_path):
    watch = Stopwatch()
    profiler = Profiler(ProfilerOptions(steps=[1]), role=LOCAL, rank=0, folder=tmp_path, watch=watch)
    with pytest.raises(ZeroDivisionError), profiler.during(1):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    assert watch.mark is contextlib.nullcontext


@pytest.fixture
def gpu(monkeypatch):
    """Notes what a GPU would be told."""
    told = []

    @contextlib.contextmanager
    def ranged(name):
        told.append(name)
        yield
        told.append(f"end of {name}")

    def dump(file):
        told.append("dump")
        Path(file).write_bytes(b"snapshot")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **given: told.append(given))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", dump)
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: told.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: told.append("stop"))
    monkeypatch.setattr(torch.cuda.nvtx, "range", ranged)
    return told


def test_a_snapshot_of_memory_and_nsight_systems_look_at_the_update(tmp_path, gpu):
    found = recorded(tmp_path, ProfilerOptions(steps=[2], tool="memory", max_entries=7), role="trainer", rank=3)
    assert gpu == [{"max_entries": 7}, "dump", {"enabled": None}]
    assert found == ["update-00000002/trainer-3.pickle"]
    gpu.clear()
    assert recorded(tmp_path / "nsys", ProfilerOptions(steps=[2], tool="nsys")) == []
    inside = ["step", "gen", "end of gen", "update_actor", "end of update_actor", "end of step"]
    assert gpu == ["start", "update 2", *inside, "end of update 2", "stop"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("tool", ["memory", "nsys"])
def test_what_looks_at_a_gpu_needs_one(tmp_path, tool):
    with pytest.raises(UserError, match=f"profiler.tool is {tool}"):
        recorded(tmp_path, ProfilerOptions(steps=[1], tool=tool), role="trainer")


def test_nsight_systems_starts_workers_and_the_user_starts_the_controller(tmp_path):
    options = ProfilerOptions(
        steps=[2, 5, 5], tool="nsys", roles=["trainer"], controller={"trace": "osrt"},
        worker={"trace": "cuda", "gpu-metrics-devices": 0, "x": True},
    )  # fmt: skip
    assert nsight(options, "trainer") == {
        "capture-range": "cudaProfilerApi", "capture-range-end": "repeat:2", "kill": "none", "trace": "cuda",
        "cuda-memory-usage": "true", "gpu-metrics-devices": "0", "x": "true", "o": "'trainer_%p'",
    }  # fmt: skip
    assert (
        nsight(options, "rollout") is nsight(ProfilerOptions(steps=[2]), "trainer") is nsight(None, "trainer") is None
    )
    assert controller_command(options, local=False, folder=tmp_path) == [
        "nsys", "profile", "--trace=osrt", "--cuda-memory-usage=true", f"--output={tmp_path}/controller",
        "burnish", "train", "...",
    ]  # fmt: skip
    assert "--capture-range=cudaProfilerApi" in controller_command(options, local=True, folder=tmp_path)

    nsight_of_ray = pytest.importorskip("ray._private.runtime_env.nsight")
    runtime_env = pytest.importorskip("ray.runtime_env")
    command = nsight_of_ray.parse_nsight_config(runtime_env.RuntimeEnv(nsight=nsight(options, "trainer")).nsight())
    assert command[:2] == ["nsys", "profile"]
    assert command[command.index("-o") + 1] == "'trainer_%p'"
