"""Operations counted without values, beside PyTorch's own count and counts by hand; peaks of devices, and profiles."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
import yaml
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from burnish.diffusion.options import ModelOptions, RolloutOptions
from burnish.diffusion.pipeline.loading import load_model
from burnish.metrics import Stopwatch
from burnish.models.lora import add_adapters
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.options import ProfilerOptions
from burnish.options.model import LoraOptions
from burnish.training.flop_counter import Cost, FlopCounter, peak_of
from burnish.training.profiling import Meter, PhaseMemory, Profiler, Usage, controller_command, nsight
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from tests.support.optional import seldom

aten = torch.ops.aten


def _forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _backward(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> int:
    return 2 * sdpa_flop_count(query, key, value)  # without the products that a kernel computes again


def _grouped(given: Any, other: Any, *_: Any, **__: Any) -> int:
    """Rows of experts by the weights of each; or, for their gradients, columns by rows."""
    return 2 * given[0] * given[1] * other[-1]


def torch_flops() -> FlopCounterMode:
    """A context that counts what really runs."""
    return FlopCounterMode(display=False, custom_mapping={
        aten._scaled_dot_product_flash_attention_for_cpu: _forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _backward, aten._grouped_mm: _grouped,
    })  # fmt: skip


UNREAD = {"qwen-image": 0.1, "z-image": 0.1}  # of two blocks, the last one makes a text of which nothing is learned
MORE = ["flux", "wan2.2", "qwen-image", "z-image", "ltx"]


@pytest.mark.parametrize("name", ["sd3", *seldom(*MORE)])
@pytest.mark.parametrize("adapted", [False, True], ids=["all weights", "adapters"])
def test_generators(tmp_path, name, adapted):
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
    prompts = [Prompt(text=text, negative="grey") for text in ("fox", "two apples", "fox")]
    asked = model.condition(prompts, height=tiny.height, width=tiny.width, steps=4)
    model.verify(asked, guidance=3.0)
    x = model.start(asked, [("row", row) for row in range(3)])
    time, meter = model.schedule(asked)[torch.tensor([0, 0, 2])], Meter(1.0)
    meter.watch(model.network)

    def velocity():
        return model.predict(model.network, x, time, asked, guidance=3.0)

    with meter.counting():
        velocity()  # each shape is counted once, as it runs
        once, meter.counted = meter.counted, 0.0
        with torch_flops() as counter:
            velocity().sum().backward()
    assert once == meter.counted == pytest.approx(counter.get_total_flops(), rel=UNREAD.get(name, 0))


def test_a_phase_uses_its_operations_by_its_seconds_and_the_peaks_of_all_ranks(monkeypatch):
    clock = iter([1.0, 3.0, 5.0, 9.0])
    monkeypatch.setattr("burnish.training.profiling.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    usage = Usage(meter := Meter(100.0), ranks=2)
    with usage.during("actor_infer"), torch.no_grad():
        meter.add(Cost(10.0, 20.0))
    with usage.during("actor"):
        meter.add(Cost(10.0, 20.0), times=2)
        with usage.paused():  # for other ranks
            meter.add(Cost(10.0, 20.0))
        usage.add({name: 2 * value for name, value in usage.share("actor").items()} | {"loss": 1.0})
    meter.add(Cost(10.0, 20.0))  # of no phase
    assert usage.metrics() == {"perf/mfu/actor_infer": 20 / (2 * 200), "perf/mfu/actor": 120 / (4 * 200)}
    assert usage.metrics() == {}


def test_a_phase_holds_what_was_most_within_it(monkeypatch):
    held = iter([1e9, 5e9, 2e9, 3e9, 9e9, 9e9])
    monkeypatch.setattr("burnish.training.profiling.resident", lambda: next(held))
    memory = PhaseMemory()
    with memory.during("gen"), memory.during("reward"):
        pass
    found = [{name: value for name, value in memory.metrics().items() if "max" not in name} for _ in range(2)]
    assert found == [{"perf/cpu_memory_gb/gen": 5.0, "perf/cpu_memory_gb/reward": 2.0}, {}]


def test_chosen_processes_are_profiled_in_chosen_updates(tmp_path, monkeypatch):
    made = [("trainer", 0), ("trainer", 1), ("rollout", 1), ("reward", 1), ("local", 0)]
    options = ProfilerOptions(steps=[2], ranks=[1])
    found = [Profiler(options, role=role, rank=rank, folder=tmp_path, watch=Stopwatch()) for role, rank in made]
    assert [one for one in found if type(one.during(2)) is not nullcontext] == [found[1], found[2], found[4]]
    assert all(type(one.during(1)) is nullcontext for one in found)
    for again in (found[2].during(2), found[2].during(2)):  # whoever samples may be asked twice in an update
        with again:
            pass
    assert {one.name for one in tmp_path.rglob("*.gz")} == {"rollout-1.json.gz", "rollout-1-2.json.gz"}
    seen = ProfilerOptions(steps=[3, 20], tool="nsys", roles=["controller", "rollout"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for role in ("controller", "trainer"):  # Nsight Systems records the controller from outside
        Profiler(seen, role=role, rank=0, folder=tmp_path, watch=Stopwatch())
    with pytest.raises(UserError, match=r"profiler\.tool is nsys, which needs a GPU, but rollout-0 has none"):
        Profiler(seen, role="rollout", rank=0, folder=tmp_path, watch=Stopwatch())
    ranges = "--capture-range=cudaProfilerApi --capture-range-end=repeat:2 --kill=none "
    shown = f"--trace=cuda,nvtx --cuda-memory-usage=true --output={tmp_path}/controller burnish train ..."
    said = [" ".join(controller_command(seen, local=local, folder=tmp_path)) for local in (True, False)]
    assert said == [f"nsys profile {ranges}{shown}", f"nsys profile {shown}"]
    recorded = " ".join(f"--{name}={value}" for name, value in nsight(seen, "rollout").items())
    assert recorded == ranges + "--trace=cuda,nvtx --cuda-memory-usage=true --o='rollout_%p'"
    assert nsight(seen, "trainer") is nsight(None, "rollout") is None


def test_rows_of_experts_meet_the_weights_of_one():
    rows, weights = torch.randn(6, 16).bfloat16(), torch.randn(2, 16, 32).bfloat16().requires_grad_()
    with FlopCounter() as operations:
        torch._grouped_mm(rows, weights, torch.tensor([4, 6], dtype=torch.int32))
    assert operations.cost == Cost(2 * 6 * 16 * 32, 2 * 6 * 16 * 32)  # rows have no gradient


def test_qwen_by_hand():
    config = transformers.Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=2, num_attention_heads=28,
        num_key_value_heads=4, vocab_size=152064,
    )  # fmt: skip
    tokens, width = 2048, 3584
    with FakeTensorMode(), FlopCounter() as operations:
        transformers.Qwen2ForCausalLM(config)(input_ids=torch.zeros(1, tokens, dtype=torch.long))
    cost = operations.cost
    # four products of the width, of which eight groups share keys and values, and three of the inner one
    products = 4 * width**2 - 2 * width * (28 * 128 - 4 * 128) + 3 * width * 18944
    layers = 2 * (2 * tokens * products + 4 * tokens**2 * width)  # with full attention
    assert cost.forward == pytest.approx(layers + 2 * tokens * width * 152064, rel=0.02)
    assert cost.backward == pytest.approx(2 * cost.forward, rel=0.02)


PEAKS = yaml.safe_load(Path(__file__).with_name("numbers.yaml").read_text())["peaks"]


@pytest.mark.parametrize(("name", "dtype", "tf32", "tera"), PEAKS)
def test_the_peak_is_that_of_the_longest_name(name, dtype, tf32, tera):
    assert peak_of(name, getattr(torch, dtype), tf32=tf32) == (tera and pytest.approx(tera * 1e12))
