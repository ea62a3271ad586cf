"""Peaks of devices by their names."""

from __future__ import annotations

import logging

import pytest
import torch

from burnish.training.flop_counter import Cost
from burnish.training.meter import Meter, Usage
from burnish.training.peak_flops import device_peak, peak_of


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4), ("NVIDIA H100 PCIe", 756.5), ("NVIDIA H200", 989.4), ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121), ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA GeForce RTX 4090", 165.2),
    ],
)  # fmt: skip
def test_the_longest_name_counts(name, tera):
    assert peak_of(name, torch.bfloat16, tf32=True) == pytest.approx(tera * 1e12)


def test_precision():
    assert peak_of("NVIDIA H200", torch.float32, tf32=True) == pytest.approx(494.7e12)
    assert peak_of("NVIDIA H200", torch.float32, tf32=False) == pytest.approx(66.9e12)
    assert peak_of("Tesla T4", torch.float32, tf32=True) == pytest.approx(8.1e12)
    assert peak_of("NVIDIA H2000", torch.bfloat16, tf32=True) is None


def test_an_unknown_peak_is_said_and_a_stated_one_taken(caplog):
    cpu = torch.device("cpu")
    with caplog.at_level(logging.INFO):
        assert device_peak(cpu, torch.float32, None) is None
    assert "trainer.peak_tflops" in caplog.text
    assert device_peak(cpu, torch.float32, 2.5) == 2.5e12


def test_what_cannot_be_counted_is_said_once_and_ends_counting(caplog):
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
