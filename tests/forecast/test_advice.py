"""Sizes of GPUs are read, and options that make a run smaller are tried in their order until it fits."""

import pytest

from burnish.config.hardware import in_bytes
from burnish.forecast import advice
from burnish.forecast.advice import Remedy, remedies
from burnish.forecast.brief import UPDATE
from burnish.forecast.counter import Peak
from burnish.forecast.forecast import FRAGMENTS, OVERHEAD, Forecast, PoolForecast, needed, shown
from burnish.forecast.phases import SAMPLE
from burnish.utils.errors import UserError


def of(total: int, phase: str = UPDATE, processes: int = 1) -> Forecast:
    return Forecast((PoolForecast("train", processes, {phase: Peak(total), "load": Peak(1)}, 0),))


@pytest.mark.parametrize(
    ("text", "size"), [("80GB", 80e9), ("24GiB", 24 * 2**30), ("1.5 TB", 1.5e12), ("512mib", 2**29)]
)
def test_sizes_are_read(text, size):
    assert in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "80", "GB", "-1GB", "0GB", "1e9GB", "80GB;", "9" * 30 + "GB", "8.GB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UserError, match="memory=80GB"):
        in_bytes(text)


def test_what_no_forecast_sees_is_added():
    assert of(1000 << 20).needs == needed(1000 << 20) == int((1000 << 20) * (1 + FRAGMENTS)) + OVERHEAD
    assert shown(3 << 29) == "1.5 GiB"
    assert shown(3 << 20) == "3 MiB"


class Options(tuple):
    """Stands in for the configuration that they make."""

    def batch_sizes(self):
        return {}


def test_remedies_are_tried_until_the_run_fits(monkeypatch):
    sizes = {(): 40, ("a=1",): 40, ("b=1",): 30, ("b=1", "e=1"): 10}
    monkeypatch.setattr(advice, "forecast", lambda options: of(sizes[options] << 30))

    def read(options):
        if "d=1" in options:
            raise UserError("there is no d")
        return Options(options)

    tried = list(
        remedies(
            read, of(40 << 30), 20 << 30,
            more=[
                Remedy("a=1", "nothing is gained", (UPDATE,)),
                Remedy("b=1", "some is"),
                Remedy("c=1", "helps another phase", (SAMPLE,)),
                Remedy("r=1", "needs ranks", ranks=True),
                Remedy("d=1", "is no option of the run"),
                Remedy("e=1", "enough is"),
                Remedy("f=1", "is not needed any more"),
            ],
        )
    )  # fmt: skip
    assert [one.options for one in tried] == [("a=1",), ("b=1",), ("b=1", "e=1")]
    assert tried[-1].needs <= 20 << 30
