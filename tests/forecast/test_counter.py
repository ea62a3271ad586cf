"""The instruments of forecasts: the counter counts what is alive, on fake tensors what it counts on real ones."""

import gc

import pytest
import torch
from torch import nn

from burnish.forecast.brief import Once, shapes
from burnish.forecast.counter import ACTIVATIONS, GRADIENTS, OPTIMIZER, ROUNDED, WEIGHTS, LiveBytes
from burnish.forecast.fakes import CudaPrecision, Pretending, is_fake
from burnish.forecast.forecast import garbage_by_phase


def test_what_is_freed_is_no_longer_counted():
    counter = LiveBytes()
    with counter, counter.phase("one"):
        first = torch.zeros(1024)
        second = first + 1
        del first
        assert counter.live == 4096
        view = second[:10]
        assert counter.live == 4096  # which shares its memory
        del second
        assert counter.live == 4096
        del view
        assert counter.live == 0
    assert counter.peaks["one"].total == 8192


def test_sizes_are_rounded_as_by_the_allocator():
    counter = LiveBytes()
    with counter, counter.phase("one"):
        one = torch.zeros(1)
        assert counter.live == ROUNDED
    del one


def test_phases_have_peaks_of_their_own():
    counter = LiveBytes()
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


def test_labels_move_bytes_between_categories():
    counter = LiveBytes()
    before = torch.zeros(256)
    with counter, counter.phase("one"):
        made = torch.zeros(128)
        counter.label(WEIGHTS, [before, made])
        assert counter.parts() == {WEIGHTS: 1536}
    assert counter.peaks["one"].total == 1536


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


def test_storages_that_are_resized_are_counted_anew():
    counter = LiveBytes()
    with counter, counter.phase("one"):
        made = torch.zeros(1024)
        made.untyped_storage().resize_(0)
        assert counter.live == 0
        made.untyped_storage().resize_(4096)
        assert counter.live == 4096
    assert counter.peaks["one"].total == 4096


def _steps(counter: LiveBytes, *, width: int = 256) -> None:
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


def test_fake_steps_cost_what_real_ones_cost():
    real, fake = LiveBytes(), LiveBytes()
    with real:
        _steps(real)
    with Pretending().active(), fake:
        _steps(fake)
    assert fake.peaks.keys() == real.peaks.keys()
    for name, peak in real.peaks.items():
        assert fake.peaks[name].total == peak.total, name
        assert fake.peaks[name].parts == peak.parts, name


def test_cuda_keeps_norms_in_float32():
    norm, x = nn.LayerNorm(8), torch.randn(2, 8)
    with torch.autocast("cpu", torch.bfloat16):
        half = nn.Linear(8, 8)(x)
        assert norm(half).dtype == torch.bfloat16
        with CudaPrecision():
            assert norm(half).dtype == torch.float32
            assert nn.Linear(8, 8)(norm(half)).dtype == torch.bfloat16
            assert half.softmax(-1).dtype == torch.float32
    with CudaPrecision():
        assert norm.bfloat16()(x.bfloat16()).dtype == torch.bfloat16  # outside of autocast nothing is cast


def test_small_tensors_keep_their_values():
    with Pretending().active():
        assert torch.arange(10).tolist() == list(range(10))
        assert torch.zeros(4).tolist() == [0.0] * 4
        weight = nn.Linear(3, 3).weight
        assert is_fake(weight)
        assert is_fake(torch.zeros(1 << 20))
        assert is_fake(torch.empty(4, dtype=torch.uint8))  # what weights of several precisions are gathered in


def test_choices_by_unknown_values_take_every_row():
    pretending = Pretending()
    with pretending.active():
        values = nn.Linear(3, 5)(torch.randn(7, 3))
        assert values[values > 0].shape == (35,)
        assert values[torch.tensor([True, False] * 3 + [True])].shape == (4, 5)
        assert (values > 0).nonzero().shape == (35, 2)
        assert values.detach().numpy().shape == (7, 5)
        assert bool((values > 0).all()) is True
        pretending.truth = False
        assert bool((values > 0).all()) is False


@pytest.mark.parametrize("change", [lambda one: one.to("cpu"), lambda one: one.bfloat16(), lambda one: one.half()])
def test_networks_can_be_moved_and_cast(change):
    real = change(nn.Linear(300, 300))
    with Pretending().active():
        assert change(nn.Linear(300, 300)).weight.dtype == real.weight.dtype


def test_calls_with_lists_of_samples_of_another_size_are_computed_anew():
    counter = LiveBytes()
    grown = Once(lambda samples: [one + 1 for one in samples], shapes, counter)
    with counter, torch.no_grad():
        for side in (2, 4, 2):
            assert [one.shape for one in grown([torch.zeros(side, side)] * 2)] == [(side, side)] * 2
    assert len(grown.known) == 2


def test_a_fake_reader_costs_what_a_real_one_costs():
    """Of CTC, what is kept for the backward pass is as wide as the longest answer."""

    def read(counter: LiveBytes) -> None:
        logits = nn.Linear(64, 96)(torch.randn(40, 3, 64)).log_softmax(-1)
        with counter.phase("read"):
            loss = nn.functional.ctc_loss(
                logits, torch.ones(12, dtype=torch.long), torch.full((3,), 40), torch.tensor([1, 3, 8])
            )
            loss.backward()

    real, fake = LiveBytes(), LiveBytes()
    with real:
        read(real)
    with Pretending().active(), fake:
        read(fake)
    assert fake.peaks["read"].total == real.peaks["read"].total
