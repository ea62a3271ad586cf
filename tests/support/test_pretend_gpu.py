"""The pretended GPU refuses, counts and casts as a real one. Where there is a real one, the same tables are held to it:

python -m pytest tests/support/test_pretend_gpu.py -q
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support import cuda_rules
from tests.support.pretend_gpu import PretendGpu, PretendTensor

REAL = torch.cuda.is_available()  # asked before anything is pretended


class Pretended:
    """Counts as the instrument does."""

    def __init__(self, gpu: PretendGpu) -> None:
        self.gpu = gpu

    def syncs(self, run: Callable[[], Any]) -> int:
        before = self.gpu.count("sync")
        run()
        return self.gpu.count("sync") - before


class Real:
    """Counts what torch itself calls a synchronising operation."""

    def syncs(self, run: Callable[[], Any]) -> int:
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return sum("synchronizing CUDA operation" in str(warning.message) for warning in heard)


@pytest.fixture(params=["pretended", pytest.param("real", marks=pytest.mark.skipif(not REAL, reason="no GPU"))])
def device(request: pytest.FixtureRequest) -> Iterator[Pretended | Real]:
    if request.param == "real":
        yield Real()
        return
    with PretendGpu() as gpu:
        yield Pretended(gpu)


def up(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype, device="cuda")


def places(*numbers: int) -> Tensor:
    return torch.tensor(numbers, device="cuda")


def mask() -> Tensor:
    return torch.tensor([True, False, True], device="cuda")


def one() -> Tensor:
    return torch.tensor(1.0)  # 0-dim, on the CPU


# what may meet and what may not; x has three elements on the GPU
LEGAL: dict[str, Callable[[Tensor], Any]] = {
    "a number": lambda x: x + 1.0,
    "0-dim added": lambda x: x + one(),
    "0-dim multiplied": lambda x: one() * x,
    "0-dim subtracted": lambda x: one() - x,
    "0-dim divided": lambda x: x / one(),
    "0-dim in place": lambda x: x.add_(one()),
    "0-dim as a power": lambda x: x ** one(),
    "0-dim compared": lambda x: x <= one(),
    "0-dim maximum": lambda x: torch.maximum(x, one()),
    "0-dim minimum": lambda x: torch.minimum(one(), x),
    "0-dim and": lambda x: mask() & torch.tensor(True),
    "0-dim where": lambda x: torch.where(x > 0, x, one()),
    "number where": lambda x: torch.where(x > 0, x, 0.0),
    "0-dim condition": lambda x: torch.where(torch.tensor(True), x, x),
    "0-dim masked fill": lambda x: x.masked_fill(mask(), one()),
    "0-dim written": lambda x: x.__setitem__(places(0), one()),
    "0-dim fill": lambda x: x.fill_(one()),
    "0-dim index fill": lambda x: x.index_fill(0, places(0), one()),
    "CPU index": lambda x: x[torch.tensor([0, 2])],
    "CPU mask as index": lambda x: x[torch.tensor([True, False, True])],
    "CPU index written": lambda x: x.__setitem__(torch.tensor([0]), 2.0),
    "list as index": lambda x: x[[0, 2]],
    "copy down": lambda x: torch.zeros(3).copy_(x),
    "copy up": lambda x: x.copy_(torch.zeros(3)),
    "slice written": lambda x: x.__setitem__(slice(0, 3), torch.zeros(3)),
    "copies of lists": lambda x: torch._foreach_copy_([x], [torch.zeros(3)]),
    "new tensor": lambda x: x.new_tensor([1.0]) + x,
    "as_tensor": lambda x: torch.as_tensor(2.0, device=x.device) + x,
    "through the CPU": lambda x: torch.from_numpy(x.cpu().numpy()).to(x.device) + x,
    "0-dim to 0-dim": lambda x: x.sum() + one(),
}
ILLEGAL: dict[str, Callable[[Tensor], Any]] = {
    "added": lambda x: x + torch.ones(3),
    "one element added": lambda x: x + torch.ones(1),
    "in place": lambda x: x.mul_(torch.ones(3)),
    "into the CPU": lambda x: torch.ones(3).add_(x),
    "into 0-dim on the CPU": lambda x: one().add_(x.sum()),
    "mask and": lambda x: mask() & torch.tensor([True, True, False]),
    "where": lambda x: torch.where(x > 0, x, torch.zeros(3)),
    "CPU condition": lambda x: torch.where(torch.tensor([True, False, True]), x, x),
    "matmul": lambda x: x @ torch.ones(3, 2),
    "linear": lambda x: F.linear(x, torch.ones(2, 3)),
    "linear bias": lambda x: F.linear(x[None], up(2, 3), torch.ones(2)),
    "cat": lambda x: torch.cat([x, torch.ones(3)]),
    "stack": lambda x: torch.stack([x, torch.ones(3)]),
    "stack of 0-dim": lambda x: torch.stack([x[0], one()]),
    "GPU index of the CPU": lambda x: torch.ones(3)[places(0)],
    "GPU mask of the CPU": lambda x: torch.ones(3)[mask()],
    "GPU index written on the CPU": lambda x: torch.ones(3).__setitem__(places(0), 1.0),
    "values written from the CPU": lambda x: x.__setitem__(places(0, 1), torch.ones(2)),
    "CPU mask fill": lambda x: x.masked_fill(torch.tensor([True, False, True]), 0.0),
    "masked select": lambda x: x.masked_select(torch.tensor([True, False, True])),
    "masked scatter": lambda x: x.masked_scatter(mask(), torch.ones(3)),
    "index select": lambda x: x.index_select(0, torch.tensor([0])),
    "index select of the CPU": lambda x: torch.ones(3).index_select(0, places(0)),
    "gather": lambda x: x.gather(0, torch.tensor([0])),
    "gather with 0-dim": lambda x: x.gather(0, torch.tensor(0)),
    "scatter": lambda x: x.scatter(0, places(0), torch.ones(1)),
    "index add": lambda x: x.index_add(0, places(0), torch.ones(1)),
    "index fill": lambda x: x.index_fill(0, torch.tensor([0]), 1.0),
    "embedding": lambda x: F.embedding(torch.tensor([0]), up(2, 3)),
    "isin": lambda x: torch.isin(x, torch.ones(2)),
    "searchsorted": lambda x: torch.searchsorted(x, torch.ones(2)),
    "layer norm": lambda x: F.layer_norm(x, (3,), torch.ones(3)),
    "rms norm": lambda x: F.rms_norm(x, (3,), torch.ones(3)),
    "attention": lambda x: F.scaled_dot_product_attention(up(1, 1, 3, 8), up(1, 1, 3, 8), torch.ones(1, 1, 3, 8)),
    "foreach": lambda x: torch._foreach_lerp_([x], [torch.ones(3)], 0.5),
    "generator": lambda x: torch.randn(3, generator=torch.Generator(), device=x.device),
    "normal_ with a generator": lambda x: x.normal_(generator=torch.Generator()),
    "loss": lambda x: F.mse_loss(x, torch.ones(3)),
    "equal": lambda x: torch.equal(x, torch.ones(3)),
}


@pytest.mark.parametrize("name", LEGAL)
def test_what_may_meet(name: str, device: Any) -> None:
    LEGAL[name](up(3))


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_may_not_meet(name: str, device: Any) -> None:
    with pytest.raises(RuntimeError):
        ILLEGAL[name](up(3))


@pytest.mark.parametrize("convert", [lambda x: x.numpy(), np.asarray])
def test_no_array_of_a_tensor_on_the_gpu(convert: Callable[[Tensor], Any], device: Any) -> None:
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        convert(up(3))


# how often the CPU waits; None: at least once
WAITS: dict[str, tuple[Callable[[Tensor], Any], int | None]] = {
    "item": (lambda x: x.sum().item(), 1),
    "float": (lambda x: float(x.sum()), 1),
    "bool": (lambda x: bool(x.sum() > 0), 1),
    "a branch": (lambda x: 1 if (x > 0).all() else 0, 1),
    "tolist": (lambda x: x.tolist(), 1),
    "down": (lambda x: x.cpu(), 1),
    "up": (lambda x: torch.zeros(3).to(x.device), 1),
    "up without waiting": (lambda x: torch.zeros(3).to(x.device, non_blocking=True), 0),
    "copied up without waiting": (lambda x: x.copy_(torch.zeros(3), non_blocking=True), 0),
    "a list goes up": (lambda x: torch.tensor([1, 2], device=x.device), 1),
    "a list of numbers that are there": (lambda x: torch.tensor([x.sum(), x.sum()], device=x.device), None),
    "nonzero": (lambda x: x.nonzero(), 1),
    "where": (lambda x: torch.where(x > 0), 1),
    "mask as index": (lambda x: x[x > 0], 1),
    "number written by mask": (lambda x: x.__setitem__(x > 0, 2.0), 0),
    "number written by index": (lambda x: x.__setitem__(x.argsort(), 2.0), 1),
    "values written by index": (lambda x: x.__setitem__(x.argsort(), x.clone()), 0),
    "values written by mask": (lambda x: x.__setitem__(x > 0, x.clone()), 1),
    "masked select": (lambda x: x.masked_select(x > 0), 1),
    "masked fill": (lambda x: x.masked_fill(x > 0, 2.0), 0),
    "masked scatter": (lambda x: x.masked_scatter(x > 0, x), 0),
    "where with numbers": (lambda x: torch.where(x > 0, x, 0.0), 0),
    "list as index": (lambda x: x[[0, 2]], 1),
    "CPU index": (lambda x: x[torch.tensor([0, 2])], 1),
    "slice written": (lambda x: x.__setitem__(slice(0, 2), 5.0), 0),
    "column written": (lambda x: x[None].__setitem__((slice(None), 0), 5.0), 0),
    "a CPU number added": (lambda x: x + one(), 0),
    "number by 0-dim": (lambda x: x.fill_(one()), 0),
    "equal": (lambda x: torch.equal(x, x), 1),
    "allclose": (lambda x: torch.allclose(x, x), None),
    "unique": (lambda x: x.unique(), None),
    "unique consecutive": (lambda x: torch.unique_consecutive(x), None),
    "bincount": (lambda x: torch.bincount(x.long()), None),
    "repeat_interleave": (lambda x: x.repeat_interleave(x.long()), 1),
    "repeat_interleave of known length": (lambda x: x.repeat_interleave(x.long(), output_size=3), 0),
    "repeat_interleave by a number": (lambda x: x.repeat_interleave(2), 0),
    "sums": (lambda x: x.sum().sqrt().clamp_min(1e-8).log(), 0),
    "sort": (lambda x: x.argsort(), 0),
    "new zeros": (lambda x: x.new_zeros(3) + torch.arange(3, device=x.device), 0),
    "backward": (lambda x: (x.clone().requires_grad_() ** 2).sum().backward(), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_how_often_the_cpu_waits(name: str, device: Any) -> None:
    run, expected = WAITS[name]
    x = up(3)
    found = device.syncs(lambda: run(x))
    assert found >= 1 if expected is None else found == expected


# the dtype that comes out of bfloat16 under autocast("cuda", bfloat16): b or f
CASTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "linear of float32": (lambda x: F.linear(x.float(), up(3, 3)), "b"),
    "matmul": (lambda x: x.float() @ up(3, 3), "b"),
    "einsum": (lambda x: torch.einsum("ij,jk->ik", x.float(), up(3, 3)), "b"),
    "baddbmm": (lambda x: torch.baddbmm(up(1, 3, 3), x[None].float(), up(1, 3, 3)), "b"),
    "attention": (lambda x: F.scaled_dot_product_attention(*[up(1, 1, 8, 8)] * 3), "b"),
    "attention module": (
        lambda x: F.multi_head_attention_forward(
            *[up(3, 3)] * 3, 3, 1, up(9, 3), None, None, None, False, 0.0, up(3, 3), None
        )[0],
        "b",
    ),
    "softmax": (lambda x: x.softmax(-1), "f"),
    "F.softmax": (lambda x: F.softmax(x, -1), "f"),
    "softmax of a dtype": (lambda x: F.softmax(x, -1, dtype=torch.bfloat16), "b"),
    "log_softmax": (lambda x: F.log_softmax(x, -1), "f"),
    "layer norm": (lambda x: F.layer_norm(x, (3,)), "f"),
    "rms norm": (lambda x: F.rms_norm(x, (3,)), "f"),
    "group norm": (lambda x: F.group_norm(x[None].transpose(1, 2), 1), "f"),
    "sum": (lambda x: x.sum(), "f"),
    "mean": (lambda x: x.mean(), "b"),
    "cumsum": (lambda x: x.cumsum(0), "f"),
    "exp": (lambda x: x.exp(), "f"),
    "exp_": (lambda x: x.clone().exp_(), "b"),
    "log": (lambda x: x.log(), "f"),
    "pow": (lambda x: x**2, "f"),
    "square": (lambda x: x.square(), "f"),
    "rsqrt": (lambda x: x.rsqrt(), "f"),
    "sqrt": (lambda x: x.sqrt(), "b"),
    "reciprocal": (lambda x: 1 / x, "f"),
    "norm": (lambda x: x.norm(dim=-1), "f"),
    "normalize": (lambda x: F.normalize(x, dim=-1), "f"),
    "logsumexp": (lambda x: x.logsumexp(-1), "f"),
    "mse": (lambda x: F.mse_loss(x, x), "f"),
    "cross entropy": (lambda x: F.cross_entropy(x, places(0, 1, 2)), "f"),
    "addcmul of both": (lambda x: torch.addcmul(x, x, up(3, 3)), "f"),
    "silu": (lambda x: F.silu(x), "b"),
    "gelu": (lambda x: F.gelu(x), "b"),
    "added": (lambda x: x + x, "b"),
    "cat of both": (lambda x: torch.cat([x, up(3, 3)]), "f"),
    "upsampled": (lambda x: F.interpolate(x[None, None], scale_factor=2.0), "f"),
}


@pytest.mark.parametrize("name", CASTS)
def test_what_autocast_makes_of_bfloat16(name: str, device: Any) -> None:
    run, expected = CASTS[name]
    x = up(3, 3, dtype=torch.bfloat16)
    with torch.autocast("cuda", torch.bfloat16):
        assert run(x).dtype == {"b": torch.bfloat16, "f": torch.float32}[expected]


def test_gradients_of_cast_weights_are_float32(device: Any) -> None:
    weight = up(3, 3).requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        F.linear(up(2, 3), weight).square().sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


def test_the_lists_of_autocast_are_those_of_torchs_header() -> None:
    header = (Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h").read_text()

    def listed(name: str) -> set[str]:
        block = header.split(f"#define {name}(_)")[1].split("\n\n")[0]
        return set(re.findall(r"\b_\((\w+)", block))

    assert listed("AT_FORALL_LOWER_PRECISION_FP") == cuda_rules.LOWER
    assert listed("AT_FORALL_FP32") == cuda_rules.FLOAT32
    assert listed("AT_FORALL_FP32_SET_OPT_DTYPE") | {"norm"} == cuda_rules.FLOAT32_UNLESS_TOLD
    assert listed("AT_FORALL_PROMOTE") == cuda_rules.WIDEST


def test_numbers_on_the_cpu_are_read_by_operators_that_torch_does_not_check() -> None:
    import torchgen

    text = (Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml").read_text()
    unchecked = set(re.findall(r"- func: (\w+?)_?[.(](?:(?!- func)[\s\S])*?device_check: NoCheck", text))
    composite = {"rsub", "true_divide", "floor_divide", "fmin", "fmax", "hypot", "nextafter", "logaddexp", "where"}
    assert cuda_rules.CPU_SCALARS - composite <= unchecked


def test_bytes_and_phases_are_counted() -> None:
    with PretendGpu() as gpu:
        with gpu.during("up"):
            x = torch.zeros(10, dtype=torch.float64).to("cuda", torch.float32)
        with gpu.during("down"):
            x.to("cpu", torch.float64)
            x.sum().item()
        assert gpu.bytes("to device", "up") == 40
        assert gpu.bytes("to host", "down") == 44
        assert (gpu.count("sync", "up"), gpu.count("sync", "down"), gpu.count("sync")) == (1, 2, 3)
        (x.requires_grad_() * 2).sum().backward()
        assert gpu.backwards[""] == 1
        assert not gpu.draws
        torch.randn(3, device="cuda")
        assert sum(gpu.draws.values()) == 1


def net(device: str) -> tuple[torch.nn.Module, Tensor]:
    torch.manual_seed(0)
    tied = torch.nn.Linear(4, 4)
    network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), tied, torch.nn.GELU(), tied)
    return network.to(device), torch.randn(5, 4).to(device)


def trained(device: str) -> list[Tensor]:
    """Weights and what came out, after everything that happens to a network: steps, copies, weights put aside."""
    network, x = net(device)
    frozen = copy.deepcopy(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1, fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        torch.utils.checkpoint.checkpoint(network, x, use_reentrant=False).square().mean().backward()
        torch._foreach_mul_([p.grad for p in network.parameters()], 0.5)
        optimizer.step()
    rested = network[0].weight.data
    network[0].weight.data = rested + 1
    with torch.no_grad():
        merged = network(x)
    network[0].weight.data = rested
    with torch.inference_mode():
        last = network(x).clone().cpu()
    found = [*network.state_dict().values(), *frozen.state_dict().values(), merged, last]
    return [value.detach().cpu() for value in found]


def test_a_network_trains_on_it_bit_for_bit_as_on_the_cpu() -> None:
    expected = trained("cpu")
    with PretendGpu():
        network, _ = net("cuda")
        assert network[2].weight is network[4].weight
        assert isinstance(network[0].weight, torch.nn.Parameter)
        found = trained("cuda")
    assert all(map(torch.equal, found, expected))


def test_meta_tensors_of_others_stay_such() -> None:
    with PretendGpu():
        with torch.device("meta"):
            layer = torch.nn.Linear(2, 2)
        assert not isinstance(layer.weight, PretendTensor)
        assert layer.weight.is_meta
        assert isinstance(layer.to_empty(device="cuda").weight, PretendTensor)


def test_other_threads_may_read_what_lies_on_it() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with PretendGpu() as gpu, ThreadPoolExecutor(1) as pool:
        x = up(3)
        assert pool.submit(lambda: (x * 2).cpu()).result().tolist() == [2.0, 2.0, 2.0]
        assert gpu.count("to host") == 1


def test_nothing_is_left_of_it() -> None:
    before = {name: getattr(torch.cuda, name) for name in dir(torch.cuda)}
    functions = {name: getattr(torch, name) for name in dir(torch)}
    with PretendGpu() as gpu:
        x = up(3)
        with pytest.raises(RuntimeError):
            x + torch.ones(3)
    assert {name: getattr(torch.cuda, name) for name in before} == before
    assert {name: getattr(torch, name) for name in functions} == functions
    assert torch.cuda.is_available() == REAL
    assert torch._C._len_torch_function_stack() == 0
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not torch.__future__.get_swap_module_params_on_conversion()
    assert not gpu.on
    with pytest.raises(AssertionError, match="after its end"):
        x + 1
    if not REAL:
        with pytest.raises(AssertionError, match="not compiled with CUDA"):
            torch.zeros(1, device="cuda")
    float(torch.ones(3).sum())
    assert gpu.count("sync") == 0
