"""When a run stops before its end: an announced end of the machine."""

import os
import signal
import sys
import time

import pytest

from burnish.hooks import Cancelled, Expiry, ReclaimTime, StopRequest
from tests.support.tiny_run import TinyRun

SAGEMAKER = "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP"
MLP = "MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP"


@pytest.mark.parametrize(("variable", "value", "words"), [
    ("SLURM_JOB_END_TIME", "{soon}", "(SLURM_JOB_END_TIME) after 0 of 3"),
    (SAGEMAKER, "{soon}", f"({SAGEMAKER}) after 0 of 3"), (SAGEMAKER, "1000", SAGEMAKER),
    (MLP, "soon", f"{MLP} is 'soon'"),
])  # fmt: skip
def test_variables_of_schedulers_tell_when_a_run_has_to_be_saved(files, monkeypatch, variable, value, words):
    monkeypatch.setenv(variable, value.replace("{soon}", str(int(time.time()) + 600)))
    run = TinyRun(files, "language", "llama", "algorithm=grpo", name="expires")
    told = run.train("trainer.grace_period=1e6", status=75 if value == "{soon}" else 2)
    assert words in " ".join((told.out + told.err).split())
    if value == "{soon}":  # the option goes first
        run.train("trainer.walltime=2999-01-31T18:00:00Z")


class Bench:
    """A run by a clock of its own, which ends at 100."""

    def __init__(self, *, margin: float = 0.0, saving: float = 0.0, ends=100.0) -> None:
        self.now, self.stop = 0.0, StopRequest()
        end = ends and ReclaimTime(at=ends, by="a test")
        self.expiry = Expiry(end, self.stop, margin=margin, saving=lambda: saving, clock=lambda: self.now)
        self.expiry.start(0)

    def update(self, number: int, seconds: float) -> bool:
        self.now += seconds
        self.expiry(number, {})
        return self.stop.requested is not None


def test_the_run_stops_when_its_longest_update_and_saving_would_not_fit():
    bench = Bench(saving=5.0)
    assert not bench.update(0, 50.0), "judging the untrained model is no update"
    assert not Bench().update(0, 99.5)
    assert not bench.update(1, 20.0)  # 70: 20 more and 5 to save
    assert not bench.update(2, 5.0)  # 75
    assert bench.update(3, 0.5)  # 75.5: an update as long as the first ends at 95.5
    assert "1970-01-01 00:01:40 UTC (a test)" in bench.stop.requested
    for margin, end in ((0.0, 100.0), (10.0, 88.0)):
        bench, number = Bench(margin=margin), 1
        while not bench.update(number, 4.0):
            number += 1
        assert bench.now == end
    bench = Bench(saving=3.0)
    assert not bench.update(1, 10.0)
    bench.now = 97.0
    assert not bench.expiry.due()
    bench.now = 97.1
    assert bench.expiry.due(), "samples are given up when the update is longer than all before"
    bench = Bench(saving=9e9, ends=None)
    assert not bench.update(1, 10.0)
    assert not bench.expiry.due()


def test_a_run_stops_where_nobody_reads_its_output_any_more(monkeypatch, capfd):
    reading, pipe = os.pipe()
    os.close(reading)
    with os.fdopen(pipe, "w", buffering=1) as out, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", out)
        with StopRequest() as stop:
            print("the first line that is lost")
            print("another one, which needs no reader")
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(Cancelled), stop.cancellable():
                pytest.fail("a stop was requested before")
    assert "SIGTERM: already stopping, after its output, which nobody reads any more" in capfd.readouterr().err
