"""Results that are remembered are those that PyTorch would give, in shapes, strides, types and shared memory."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from burnish.forecast.counter import LiveBytes
from burnish.forecast.fakes import Pretending, is_fake
from burnish.forecast.flow import BriefEngine
from burnish.types.rollout import Denoising
from tests.support.forecasts import foretold

CALLS: dict[str, Callable[[Tensor], Any]] = {
    "a view": lambda x: x.view(4, -1),
    "a view of a view": lambda x: x[1:].mT[..., 2:],
    "views": lambda x: x.split(5, 1),
    "a shape without memory of its own": lambda x: x[:1].expand(3, 12),
    "an alias": lambda x: x.detach(),
    "a product": lambda x: x @ x.mT,
    "in the order of memory": lambda x: x.mT.clone(),
    "another type": lambda x: x.to(torch.bfloat16),
    "the same tensor": lambda x: x.mul_(2).add_(x),
    "several": lambda x: x.max(1),
    "several, with sums beside": lambda x: torch.native_layer_norm(x, [12], None, None, 1e-5),
    "rows by places with values": lambda x: x.index_select(0, torch.tensor([1, 0, 1])),
    "beside one with values": lambda x: torch.where(torch.ones(8, 1, dtype=torch.bool), x, 0.0),
    "for a list": lambda x: torch._foreach_add([x, x[0]], 1.0),
    "new": lambda x: x.new_zeros(3, 5),
    "joined": lambda x: torch.cat([x, x[:2]]),
    "padded": lambda x: F.pad(x, (0, 3)),
    "a gradient": lambda x: torch.autograd.grad(
        F.gelu(weight := x.detach().requires_grad_()), weight, torch.ones_like(x)
    ),
}

SMALL = [
    "algorithm=flow_grpo", "data.train_batch_size=2", "rollout.n=2", "rollout.batch_size=2", "ema=null",
    "rollout.num_inference_steps=5", "validation.every=0", "validation.reference_guidance=null",
]  # fmt: skip


def described(found: Any, given: Tensor) -> list[Any]:
    """Of every tensor: what it is like, and what of its memory is the argument's."""
    return [
        (
            *(one.shape, one.stride(), one.storage_offset(), one.dtype, one.untyped_storage().nbytes()),
            one.untyped_storage()._cdata == given.untyped_storage()._cdata,
            one is given,
        )
        for one in (found if isinstance(found, list | tuple) else [found])
    ]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_comes_again_gives_what_pytorch_gives(name, monkeypatch):
    asked: list[Any] = []
    dispatch = FakeTensorMode.dispatch

    def noted(self, func, *rest):
        asked.append(func)
        return dispatch(self, func, *rest)

    real = torch.linspace(-1, 1, 96).view(8, 12)
    pretending = Pretending()
    with pretending.active(), LiveBytes():
        x = pretending.like(real)
        CALLS[name](x)
        monkeypatch.setattr(FakeTensorMode, "dispatch", noted)
        found = CALLS[name](x)
        like = described(found, x)
        assert all(map(is_fake, found if isinstance(found, list | tuple) else [found]))
    assert not asked
    assert like == described(CALLS[name](real), real)


def test_numbers_that_are_equal_but_of_other_types_are_told_apart():
    pretending = Pretending()
    with pretending.active(), LiveBytes():
        x = pretending.like(torch.arange(4))
        for _ in range(2):
            assert [(x * one).dtype for one in (1, 1.0, True)] == [torch.int64, torch.float32, torch.int64]
            assert [torch.full_like(x, 2, dtype=kind).dtype for kind in (torch.int8, None)] == [torch.int8, torch.int64]


def test_nothing_that_is_forecast_waits_for_the_garbage_collector(monkeypatch):
    """Else a peak would depend on when it comes, and with it on all that this process did before."""
    made: list[weakref.ref[Denoising]] = []
    counted = BriefEngine._counted

    def noted(self: BriefEngine, trace: Denoising) -> None:
        made.append(weakref.ref(trace))
        counted(self, trace)

    monkeypatch.setattr(BriefEngine, "_counted", noted)
    gc.disable()
    try:
        foretold(1, "quickstart", [*SMALL, "rollout.trajectories=host"])
        assert made
        assert not [one for one in made if one() is not None]
    finally:
        gc.enable()
