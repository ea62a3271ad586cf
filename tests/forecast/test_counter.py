"""The instruments of forecasts: the counter counts what is alive, on fake tensors what it counts on real ones."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from burnish.forecast.brief import Once, kind_of, shapes
from burnish.forecast.counter import ACTIVATIONS, GRADIENTS, OPTIMIZER, ROUNDED, WEIGHTS, LiveBytes
from burnish.forecast.fakes import CudaPrecision, Pretending, is_fake
from burnish.forecast.flow import BriefEngine
from burnish.forecast.forecast import garbage_by_phase
from tests.forecast.counted import foretold


def test_what_is_alive_is_counted_by_phase_and_category():
    counter, before = LiveBytes(), torch.zeros(256)
    with counter, counter.phase("one"):
        first = torch.zeros(1024)
        second = first + 1
        del first
        view = second[:10]
        del second
        assert counter.live == 4096  # the view shares its memory
        del view
        assert counter.live == 0
        small = torch.zeros(1)
        assert counter.live == ROUNDED, "as by the allocator"
        small.untyped_storage().resize_(4096)
        assert counter.live == 4096
        del small
    assert counter.peaks["one"].total == 8192
    with counter, counter.phase("outer"):
        held = torch.zeros(1000 * 128)
        with counter.phase("inner", WEIGHTS):
            weight = torch.zeros(2000 * 128)
            del weight
        with counter.phase("inner"):
            pass
        assert held is not None
    assert counter.peaks["outer"].parts == {ACTIVATIONS: 512_000}
    assert counter.peaks["inner"].parts == {ACTIVATIONS: 512_000, WEIGHTS: 1_024_000}
    del held
    with counter, counter.phase("labelled"):
        made = torch.zeros(128)
        counter.label(WEIGHTS, [before, made])
        assert counter.parts() == {WEIGHTS: 1536}


def test_what_refers_to_itself_is_alive_until_the_next_phase_whenever_garbage_is_collected():
    counter = LiveBytes()
    with garbage_by_phase(counter), counter:
        with counter.phase("one"):
            held = [torch.zeros(1024)]
            held.append(held)
            del held
            for _ in range(10_000):  # enough of them to have garbage collected otherwise
                several = [[]]
                several[0].append(several)
            assert counter.live == 4096
        with counter.phase("two"):
            assert counter.live == 0
    assert gc.isenabled()


def steps(counter, width=256):
    """Two updates, and a reader of texts: of CTC, what the backward pass keeps is as wide as the longest answer."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(width, 4 * width), nn.LayerNorm(4 * width), nn.GELU(), nn.Linear(4 * width, 1))
    counter.label(WEIGHTS, network.parameters())
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    for _ in range(2):
        with counter.phase("forward"), torch.autocast("cpu", torch.bfloat16):
            loss = network(torch.randn(64, width)).float().square().mean()
        with counter.phase("backward"):
            loss.backward()
            counter.label(GRADIENTS, (weight.grad for weight in network.parameters()))
        with counter.phase("optimizer", OPTIMIZER):
            optimizer.step()
            optimizer.zero_grad()
            assert loss.item() == 0 if is_fake(loss) else loss.item() > 0
    read = nn.Linear(64, 96)(torch.randn(40, 3, 64)).log_softmax(-1)
    with counter.phase("read"):
        answers, lengths = torch.ones(12, dtype=torch.long), torch.tensor([1, 3, 8])
        F.ctc_loss(read, answers, torch.full((3,), 40), lengths).backward()


def test_fake_steps_cost_what_real_ones_cost():
    real, fake = LiveBytes(), LiveBytes()
    with real:
        steps(real)
    with Pretending().active(), fake:
        steps(fake)
    assert fake.peaks.keys() == real.peaks.keys()
    for name, peak in real.peaks.items():
        assert (fake.peaks[name].total, fake.peaks[name].parts) == (peak.total, peak.parts), name


def test_cuda_keeps_norms_in_float32():
    norm, x = nn.LayerNorm(8), torch.randn(2, 8)
    with torch.autocast("cpu", torch.bfloat16):
        half = nn.Linear(8, 8)(x)
        assert norm(half).dtype == torch.bfloat16
        with CudaPrecision():
            assert norm(half).dtype == half.softmax(-1).dtype == torch.float32
            assert nn.Linear(8, 8)(norm(half)).dtype == torch.bfloat16
    with CudaPrecision():
        assert norm.bfloat16()(x.bfloat16()).dtype == torch.bfloat16  # outside of autocast nothing is cast


def test_small_tensors_keep_their_values_and_choices_by_unknown_ones_take_every_row():
    pretending = Pretending()
    with pretending.active():
        assert (torch.arange(10).tolist(), torch.zeros(4).tolist()) == (list(range(10)), [0.0] * 4)
        linear = nn.Linear(3, 5)
        assert all(map(is_fake, (linear.weight, torch.zeros(1 << 20), torch.empty(4, dtype=torch.uint8))))
        values = linear(torch.randn(7, 3))
        assert values[values > 0].shape == (35,)
        assert values[torch.tensor([True, False] * 3 + [True])].shape == (4, 5)
        assert (values > 0).nonzero().shape == (35, 2)
        assert values.detach().numpy().shape == (7, 5)
        assert bool((values > 0).all()) is True
        pretending.truth = False
        assert bool((values > 0).all()) is False
        experts = torch.zeros(1 << 15).argsort() % 4
        assert experts.bincount().numpy().cumsum(0).tolist() == [1 << 15]
        for change, kind in ((nn.Module.bfloat16, torch.bfloat16), (nn.Module.half, torch.float16)):
            assert change(nn.Linear(300, 300)).weight.dtype == kind
        assert nn.Linear(300, 300).to("cpu").weight.dtype == torch.float32


def test_what_differs_in_size_or_stride_is_computed_anew():
    counter = LiveBytes()
    grown = Once(lambda samples: [one + 1 for one in samples], shapes, counter)
    with counter, torch.no_grad():
        for side in (2, 4, 2):
            assert [one.shape for one in grown([torch.zeros(side, side)] * 2)] == [(side, side)] * 2
    assert len(grown.known) == 2
    one, two = (nn.Conv2d(8, 8, 3, stride=stride) for stride in (1, 2))
    assert kind_of(one) == kind_of(nn.Conv2d(8, 8, 3)) != kind_of(two)


CALLS = {
    "a view of a view": lambda x: x[1:].mT[..., 2:],
    "a shape without memory of its own": lambda x: x[:1].expand(3, 12),
    "the same tensor": lambda x: x.mul_(2).add_(x),
    "several, with sums beside": lambda x: torch.native_layer_norm(x, [12], None, None, 1e-5),
    "rows by places with values": lambda x: x.index_select(0, torch.tensor([1, 0, 1])),
    "beside one with values": lambda x: torch.where(torch.ones(8, 1, dtype=torch.bool), x, 0.0),
    "for a list": lambda x: torch._foreach_add([x, x[0]], 1.0),
    "joined": lambda x: torch.cat([x, x[:2]]),
    "a gradient": lambda x: torch.autograd.grad(F.gelu(w := x.detach().requires_grad_()), w, torch.ones_like(x)),
}


def described(found, given):
    """Of every tensor: what it is like, and what of its memory is the argument's."""
    return [
        (
            *(one.shape, one.stride(), one.storage_offset(), one.dtype, one.untyped_storage().nbytes()),
            one.untyped_storage()._cdata == given.untyped_storage()._cdata, one is given,
        )
        for one in (found if isinstance(found, list | tuple) else [found])
    ]  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_comes_again_gives_what_pytorch_gives(name, monkeypatch):
    asked, dispatch = [], FakeTensorMode.dispatch
    real, pretending = torch.linspace(-1, 1, 96).view(8, 12), Pretending()
    with pretending.active(), LiveBytes():
        x = pretending.like(real)
        CALLS[name](x)
        monkeypatch.setattr(FakeTensorMode, "dispatch", lambda *given: asked.append(given) or dispatch(*given))
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
    made, counted = [], BriefEngine._counted

    def noted(self, trace):
        made.append(weakref.ref(trace))
        counted(self, trace)

    monkeypatch.setattr(BriefEngine, "_counted", noted)
    options = ["algorithm=flow_grpo", "data.train_batch_size=2", "rollout.n=2", "rollout.batch_size=2", "ema=null",
               "rollout.num_inference_steps=5", "validation.every=0", "validation.reference_guidance=null"]  # fmt: skip
    gc.disable()
    try:
        foretold(1, "quickstart", [*options, "rollout.trajectories=host"])
        assert made
        assert not [one for one in made if one() is not None]
    finally:
        gc.enable()
