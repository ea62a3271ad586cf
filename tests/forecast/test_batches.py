"""Batches that are auto: the largest that fit, whatever a run's memory does with their size."""

import random
from functools import partial

import pytest

from burnish.config import load
from burnish.config.batches import smallest, unsettled, with_sizes, written
from burnish.forecast import batches
from burnish.forecast.batches import choose
from burnish.forecast.brief import BACKWARD
from burnish.forecast.counter import Peak
from burnish.forecast.forecast import Forecast, PoolForecast
from burnish.forecast.phases import SAMPLE

MIB = 1 << 20
OWN = ["rollout.batch_size=auto"]


@pytest.fixture
def memory_of(monkeypatch):
    """Sets what a run needs: bytes by rows of an update, and by images that are sampled at once."""

    def set_to(rows, images):
        def forecast(config):
            update, sampled = Peak(rows(config.trainer.micro_batch_size)), Peak(images(config.rollout.batch_size))
            return Forecast((PoolForecast("train", 1, {"load": Peak(MIB), SAMPLE: sampled, BACKWARD: update}, 0),))

        monkeypatch.setattr(batches, "forecast", forecast)
        return forecast

    return set_to


def chosen(forecast, memory, *options):
    config = load("quickstart", [*OWN, *options])
    return choose(config, forecast(with_sizes(config, smallest(config))), memory)


def test_the_largest_of_each_that_fits_is_taken_and_the_other_is_not_made_smaller(memory_of):
    forecast = memory_of(lambda rows: (1000 + 500 * rows) * MIB, lambda images: (1000 + 10 * images) * MIB)
    found = chosen(forecast, 10_000 * MIB)
    assert found.sizes == {"trainer.micro_batch_size": 12, "rollout.batch_size": 96}  # 7,000 of about 8,060 MiB
    assert found.forecast.fits(10_000 * MIB)
    assert chosen(forecast, 1000 * MIB).sizes == {"trainer.micro_batch_size": 1, "rollout.batch_size": 1}
    assert chosen(forecast, 10**12).sizes == {"trainer.micro_batch_size": 96, "rollout.batch_size": 96}


def grows(slope, most, size):
    return (500 + slope * min(size, most)) * MIB


def test_whatever_memory_does_what_is_chosen_fits_if_anything_does(memory_of):
    drawn = random.Random(0)
    for _ in range(12):
        full = [drawn.randrange(1, 200) for _ in range(2)]  # from there on a batch is not filled
        slopes = [drawn.choice([1, 30, 900]) for _ in range(2)]
        forecast = memory_of(*(partial(grows, slope, most) for slope, most in zip(slopes, full, strict=True)))
        memory = drawn.randrange(2000, 40_000) * MIB
        found = chosen(forecast, memory)
        low = {"trainer.micro_batch_size": 1, "rollout.batch_size": 1}
        assert found.forecast.fits(memory) or found.sizes == low
        assert forecast(load("quickstart", written(found.sizes))).needs == found.forecast.needs


def test_a_group_that_is_compared_stays_together(memory_of):
    forecast = memory_of(lambda rows: 500 * rows * MIB, lambda images: MIB)
    found = chosen(forecast, 30_000 * MIB, "algorithm=dgpo", "rollout.n=24")
    assert found.sizes["trainer.micro_batch_size"] == 48
    assert chosen(forecast, 1000 * MIB, "algorithm=dgpo", "rollout.n=24").sizes["trainer.micro_batch_size"] == 24


def test_what_is_given_is_not_chosen():
    config = load("vlm_quickstart", ["rollout.batch_size=7"])
    assert list(unsettled(config)) == ["trainer.micro_batch_tokens"]
    settled = with_sizes(config, {"trainer.micro_batch_tokens": 512})
    assert not unsettled(settled)
    assert (settled.trainer.micro_batch_tokens, settled.rollout.batch_size) == (512, 7)
