"""Loading the networks of a run takes a rank its share and a constant, however many ranks there are."""

from __future__ import annotations

import pytest

from benchmarks.loading import MIB, loaded

WIDTH, LAYERS = 320, 6


@pytest.mark.slow
@pytest.mark.parametrize("size", [*(pytest.param(size, marks=pytest.mark.thorough) for size in (1, 4)), 2])
def test_the_peak_of_loading_is_share_and_constant(size, tmp_path, new_process):
    count, (found,) = new_process(loaded, tmp_path, WIDTH, LAYERS, [size], lora=False)
    held = count * (4 + 2) / MIB  # weights that learn in float32, and a reference in bfloat16
    block = count * 4 / LAYERS / MIB  # whose full parameters are made once, one after the other
    for share, peak in found:
        assert share <= 1.15 * held / size + 8
        assert peak <= 1.15 * held / size + 2 * block + 12


@pytest.mark.slow
@pytest.mark.thorough
def test_with_adapters_one_process_maps_the_weights_and_reads_none(tmp_path, new_process):
    count, (((share, _),),) = new_process(loaded, tmp_path, WIDTH, LAYERS, [1], lora=True)
    assert share <= 0.15 * count * 2 / MIB + 8
