"""An announced end of the machine: what is a moment, and when the run stops for it."""

import pytest

from burnish.hooks.expiry import VARIABLES, Expiry, ReclaimTime, reclaim_time
from burnish.hooks.stop import StopRequest
from burnish.options import StepOptions, unix_seconds
from burnish.utils.errors import UserError

NOON = 1_769_860_800.0  # 2026-01-31T12:00:00Z
SLURM, SAGEMAKER, MLP = VARIABLES


@pytest.mark.parametrize(
    "moment",
    [NOON, str(int(NOON)), "2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31 12:00+00:00"],
)
def test_a_moment_is_a_time_with_its_zone_or_seconds(moment):
    assert unix_seconds(moment) == NOON
    assert reclaim_time(StepOptions(expires_at=moment), {}, lambda: NOON - 1) == ReclaimTime(
        at=NOON, by="trainer.expires_at"
    )


def test_the_option_goes_first_and_then_the_earlier_variable():
    environment = {SAGEMAKER: str(NOON + 50), MLP: str(NOON + 40), "OTHER": "1"}
    assert reclaim_time(StepOptions(), environment, lambda: NOON) == ReclaimTime(at=NOON + 40, by=MLP)
    assert reclaim_time(StepOptions(expires_at=NOON + 90), environment, lambda: NOON).at == NOON + 90
    assert reclaim_time(StepOptions(), {SAGEMAKER: ""}, lambda: NOON) is None
    assert reclaim_time(StepOptions(), {SLURM: str(int(NOON) + 9)}, lambda: NOON).by == "SLURM_JOB_END_TIME"


@pytest.mark.parametrize(
    ("option", "environment", "words"),
    [
        (NOON, {}, r"is past: 2026-01-31 12:00:00 UTC \(trainer.expires_at\); correct trainer.expires_at"),
        (None, {MLP: str(NOON - 5)}, f"is past: .*{MLP}"),
        (None, {SAGEMAKER: "soon"}, f"{SAGEMAKER} is 'soon', which is not Unix seconds"),
    ],
)
def test_what_is_past_or_nonsense_is_refused_at_the_start(option, environment, words):
    with pytest.raises(UserError, match=words):
        reclaim_time(StepOptions(expires_at=option), environment, lambda: NOON)


class Bench:
    """A run by a clock of its own, which ends at 100."""

    def __init__(self, *, margin: float = 0.0) -> None:
        self.now, self.saving, self.stop = 0.0, 0.0, StopRequest()
        end = ReclaimTime(at=100.0, by="a test")
        self.expiry = Expiry(end, self.stop, margin=margin, saving=lambda: self.saving, clock=lambda: self.now)
        self.expiry.start(0)

    def update(self, number: int, seconds: float) -> bool:
        self.now += seconds
        self.expiry(number, {})
        return self.stop.requested is not None


def test_the_run_stops_when_its_longest_update_and_saving_would_not_fit():
    bench = Bench()
    bench.saving = 5.0
    assert not bench.update(0, 50.0), "judging the untrained model is no update"
    assert not bench.update(1, 20.0)  # 70: 20 more and 5 to save
    assert not bench.update(2, 5.0)  # 75
    assert bench.update(3, 0.5)  # 75.5: an update as long as the first ends at 95.5
    assert "the machine's expiry at 1970-01-01 00:01:40 UTC (a test)" in bench.stop.requested


@pytest.mark.parametrize(("margin", "end"), [(0.0, 100.0), (10.0, 88.0)])
def test_the_margin_is_left_over(margin, end):
    bench, number = Bench(margin=margin), 1
    while not bench.update(number, 4.0):
        number += 1
    assert bench.now == end


def test_samples_are_given_up_when_the_update_is_longer_than_all_before():
    bench = Bench()
    bench.saving = 3.0
    assert not bench.update(1, 10.0)
    bench.now = 97.0
    assert not bench.expiry.due()
    bench.now = 97.1
    assert bench.expiry.due()
    assert bench.stop.requested is not None


def test_without_an_announcement_nothing_is_asked():
    stop = StopRequest()
    expiry = Expiry(None, stop, margin=0.0, saving=lambda: 9e9)
    expiry.start(0)
    expiry(1, {})
    assert not expiry.due()
    assert stop.requested is None


def test_what_is_announced_during_the_run_counts_as_well():
    stop, announced = StopRequest(), []
    expiry = Expiry(
        None, stop, margin=0.0, saving=lambda: 5.0, notice=lambda: announced[0] if announced else None,
        clock=lambda: 70.0,
    )  # fmt: skip
    assert not expiry.due(20.0)
    announced.append(ReclaimTime(at=96.0, by="notice of aws"))
    assert not expiry.due(20.0)
    announced[0] = ReclaimTime(at=94.0, by="notice of aws")
    assert expiry.due(20.0)
    assert "(notice of aws)" in stop.requested
