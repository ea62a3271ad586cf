"""The pretended GPU refuses, counts and casts as a real one. Where there is a real one, the same tables are held to it:

python -m pytest tests/support/test_pretend_gpu.py -q
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.pretend_gpu import PretendGpu

REAL = torch.cuda.is_available()  # asked before anything is pretended


def heard(run: Callable[[], Any]) -> int:
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in said)


@pytest.fixture(params=["pretended", pytest.param("real", marks=pytest.mark.skipif(not REAL, reason="no GPU"))])
def syncs(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[], Any]], int]]:
    """Counts how often the CPU waits."""
    if request.param == "real":
        yield heard
        return
    with PretendGpu() as gpu:

        def counted(run: Callable[[], Any]) -> int:
            before = gpu.count("sync")
            run()
            return gpu.count("sync") - before

        yield counted


def up(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype, device="cuda")


def one() -> Tensor:
    return torch.tensor(1.0)  # 0-dim, on the CPU


# of x, three elements on the GPU; how often the CPU waits, None: at least once, "refused": devices mix
CALLS: dict[str, tuple[Callable[[Tensor], Any], int | str | None]] = {
    "0-dim added": (lambda x: x + one(), 0), "0-dim where": (lambda x: torch.where(x > 0, x, one()), 0),
    "0-dim masked fill": (lambda x: x.masked_fill(x > 0, one()), 0), "item": (lambda x: x.sum().item(), 1),
    "bool": (lambda x: bool(x.sum() > 0), 1), "down": (lambda x: x.cpu(), 1),
    "up": (lambda x: torch.zeros(3).to(x.device), 1),
    "up without waiting": (lambda x: torch.zeros(3).to(x.device, non_blocking=True), 0),
    "a list goes up": (lambda x: torch.tensor([1, 2], device=x.device), 1), "nonzero": (lambda x: x.nonzero(), 1),
    "mask as index": (lambda x: x[x > 0], 1), "number written by mask": (lambda x: x.__setitem__(x > 0, 2.0), 0),
    "masked fill": (lambda x: x.masked_fill(x > 0, 2.0), 0), "CPU index": (lambda x: x[torch.tensor([0, 2])], 1),
    "unique": (lambda x: x.unique(), None), "repeat_interleave": (lambda x: x.repeat_interleave(x.long()), 1),
    "repeat_interleave of known length": (lambda x: x.repeat_interleave(x.long(), output_size=3), 0),
    "backward": (lambda x: (x.clone().requires_grad_() ** 2).sum().backward(), 0),
    "added": (lambda x: x + torch.ones(3), "refused"), "in place": (lambda x: x.mul_(torch.ones(3)), "refused"),
    "into 0-dim on the CPU": (lambda x: one().add_(x.sum()), "refused"),
    "matmul": (lambda x: x @ torch.ones(3, 2), "refused"), "cat": (lambda x: torch.cat([x, torch.ones(3)]), "refused"),
    "GPU index of the CPU": (lambda x: torch.ones(3)[x.long()], "refused"),
    "values written from the CPU": (lambda x: x.__setitem__(x.argsort(), torch.ones(3)), "refused"),
    "foreach": (lambda x: torch._foreach_lerp_([x], [torch.ones(3)], 0.5), "refused"),
    "generator": (lambda x: torch.randn(3, generator=torch.Generator(), device=x.device), "refused"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_what_may_meet_and_how_often_the_cpu_waits(name: str, syncs: Callable[[Callable[[], Any]], int]) -> None:
    run, expected = CALLS[name]
    x = up(3)
    if expected == "refused":
        with pytest.raises(RuntimeError):
            run(x)
    else:
        found = syncs(lambda: run(x))
        assert found >= 1 if expected is None else found == expected


# what comes out in float32, and what in bfloat16, under autocast("cuda", bfloat16)
WIDER: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.softmax(-1), lambda x: F.layer_norm(x, (3,)), lambda x: x.sum(), lambda x: x.exp(), lambda x: x**2,
    lambda x: x.norm(dim=-1), lambda x: F.mse_loss(x, x), lambda x: torch.cat([x, up(3, 3)]),
]  # fmt: skip
LOWER: list[Callable[[Tensor], Tensor]] = [
    lambda x: F.linear(x.float(), up(3, 3)), lambda x: x.float() @ up(3, 3), lambda x: x.mean(), lambda x: F.silu(x),
    lambda x: F.scaled_dot_product_attention(*[up(1, 1, 8, 8)] * 3), lambda x: x.clone().exp_(),
    lambda x: F.softmax(x, -1, dtype=torch.bfloat16),
]  # fmt: skip


def test_what_autocast_makes_of_bfloat16(syncs: Any) -> None:
    x = up(3, 3, dtype=torch.bfloat16)
    with torch.autocast("cuda", torch.bfloat16):
        assert [run(x).dtype for run in WIDER] == [torch.float32] * len(WIDER)
        assert [run(x).dtype for run in LOWER] == [torch.bfloat16] * len(LOWER)


def test_bytes_are_counted() -> None:
    with PretendGpu() as gpu:
        x = torch.zeros(10, dtype=torch.float64).to("cuda", torch.float32)
        x.to("cpu", torch.float64)
        x.sum().item()
        assert (gpu.bytes("to device"), gpu.bytes("to host"), gpu.count("sync")) == (40, 44, 3)
        assert not gpu.draws
        torch.randn(3, device="cuda")
        assert sum(gpu.draws.values()) == 1
    assert torch.cuda.is_available() == REAL
    with pytest.raises(AssertionError, match="after its end"):
        x + 1
