"""When a run stops before its end: signals, readers that went away, and an announced end of the machine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from burnish.hooks import notices
from burnish.hooks.expiry import VARIABLES, Expiry, ReclaimTime, reclaim_time
from burnish.hooks.notices import Notices
from burnish.hooks.stop import EXIT_STOPPED, StopRequest
from burnish.options import StepOptions, unix_seconds
from tests.support.http_servers import send, serving

# a loop that says when it begins, when it has heard, and what became of it
LOOP = """
import signal, sys, time
from burnish.hooks.stop import EXIT_STOPPED, StopRequest
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell without jobs starts us with it ignored
patient = sys.argv[1] == "patient"
try:
    with StopRequest() as stop:
        print("running", flush=True)
        deadline, told = time.monotonic() + 30, False
        while time.monotonic() < deadline and not (stop.requested and not patient):
            if stop.requested and not told:
                told = True
                print(stop.requested, flush=True)
            time.sleep(0.005)
        print("saved", stop.requested, flush=True)
    sys.exit(EXIT_STOPPED)
except KeyboardInterrupt:
    print("interrupted", stop.requested, flush=True)
    sys.exit(130)
"""


def started(program: str, mode: str, says: str) -> subprocess.Popen:
    child = subprocess.Popen([sys.executable, "-c", program, mode], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, cwd=Path(__file__).parents[2])  # fmt: skip
    assert child.stdout.readline() == f"{says}\n"
    return child


def test_a_second_ctrl_c_interrupts_at_once_but_not_one_after_another_signal():
    child = started(LOOP, "patient", "running")
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "SIGTERM\n"
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        child.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.2)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (130, "interrupted SIGTERM\n")
    assert "SIGHUP" in err


def test_a_run_that_is_to_outlive_its_terminal_does():
    """As nohup starts it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        child = started(LOOP, "polite", "running")
    finally:
        signal.signal(signal.SIGHUP, before)
    child.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=0.3)
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=20)
    assert (child.returncode, out) == (EXIT_STOPPED, "saved SIGTERM\n")


# an announced end of the machine

NOW, NOON = 1_769_860_000.0, 1_769_860_800.0  # 2026-01-31T12:00:00Z
SLURM, SAGEMAKER, MLP = VARIABLES


def test_the_option_goes_first_and_then_the_earlier_variable():
    for moment in (NOON, str(int(NOON)), "2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31 12:00+00:00"):
        assert unix_seconds(moment) == NOON
    environment = {SAGEMAKER: str(NOON + 50), MLP: str(NOON + 40), "OTHER": "1"}

    def found(option, given):
        return reclaim_time(StepOptions(expires_at=option), given, lambda: NOON)

    assert found(None, environment) == ReclaimTime(at=NOON + 40, by=MLP)
    assert found(NOON + 90, environment) == ReclaimTime(at=NOON + 90, by="trainer.expires_at")
    assert found(None, {SAGEMAKER: ""}) is None
    assert found(None, {SLURM: str(int(NOON) + 9)}).by == "SLURM_JOB_END_TIME"
    for option, given, named in ((NOON, {}, "trainer.expires_at"), (None, {MLP: str(NOON - 5)}, MLP),
                                 (None, {SAGEMAKER: "soon"}, f"{SAGEMAKER} is 'soon'")):  # fmt: skip
        with pytest.raises(ValueError, match=named):
            found(option, given)


class Bench:
    """A run by a clock of its own, which ends at 100."""

    def __init__(self, *, margin: float = 0.0, saving: float = 0.0, ends=100.0, notice=lambda: None) -> None:
        self.now, self.stop = 0.0, StopRequest()
        end = ends and ReclaimTime(at=ends, by="a test")
        self.expiry = Expiry(
            end, self.stop, margin=margin, saving=lambda: saving, clock=lambda: self.now, notice=notice
        )
        self.expiry.start(0)

    def update(self, number: int, seconds: float) -> bool:
        self.now += seconds
        self.expiry(number, {})
        return self.stop.requested is not None


def test_the_run_stops_when_its_longest_update_and_saving_would_not_fit():
    bench = Bench(saving=5.0, margin=1.0)
    assert not bench.update(0, 50.0), "judging the untrained model is no update"
    assert not bench.update(1, 20.0)  # 70: 20 more, 5 to save and 1 to spare
    assert not bench.update(2, 4.0)  # 74
    assert bench.update(3, 0.5)  # 74.5: an update as long as the first and saving end at 99.5
    assert "1970-01-01 00:01:40 UTC (a test)" in bench.stop.requested
    bench = Bench(saving=3.0)
    assert not bench.update(1, 10.0)
    bench.now = 97.0
    assert not bench.expiry.due()
    bench.now = 97.1
    assert bench.expiry.due(), "samples are given up when the update is longer than all before"
    announced: list[ReclaimTime] = []
    bench = Bench(saving=5.0, ends=None, notice=lambda: announced[0] if announced else None)
    bench.now = 70.0
    assert not bench.expiry.due(20.0)
    announced.append(ReclaimTime(at=96.0, by="notice of aws"))
    assert not bench.expiry.due(20.0)
    announced[0] = ReclaimTime(at=94.0, by="notice of aws")
    assert bench.expiry.due(20.0)
    assert "(notice of aws)" in bench.stop.requested


# notices of clouds, as stand-ins on this machine give them


@contextmanager
def service(cloud, monkeypatch, answer):
    """A metadata service: ``answer`` gives (status, body, *headers) for a method, a path and headers."""
    asked = []

    def reply(request):
        asked.append((request.command, request.path))
        status, body, *headers = answer(request.command, request.path, request.headers)
        send(request, status, body, dict(headers))

    with serving(reply) as url:
        monkeypatch.setitem(notices.HOSTS, cloud, url)
        yield asked


def found(cloud):
    watch = Notices(cloud, clock=lambda: NOW)
    watch.look()
    return watch.found


def aws(*answer):
    def reply(method, path, headers):
        if method == "PUT":
            assert headers["X-aws-ec2-metadata-token-ttl-seconds"]
            return 200, b"secret"
        assert headers["X-aws-ec2-metadata-token"] == "secret"
        assert path == "/latest/meta-data/spot/instance-action"
        return answer

    return reply


def azure(*events):
    def reply(method, path, headers):
        assert headers["Metadata"] == "true"
        if path.startswith("/metadata/instance/compute/name?"):
            return 200, b"mine"
        assert path == "/metadata/scheduledevents?api-version=2020-07-01"
        names = ("EventType", "NotBefore", "Resources")
        return 200, json.dumps({"Events": [dict(zip(names, event, strict=True)) for event in events]}).encode()

    return reply


def google(content):
    def reply(method, path, headers):
        assert headers["Metadata-Flavor"] == "Google"
        assert path == "/computeMetadata/v1/instance/preempted"
        return 200, content

    return reply


SOON, LATER = "Sat, 31 Jan 2026 12:00:00 GMT", "Sat, 31 Jan 2026 13:00:00 GMT"
OTHERS = [("Preempt", SOON, ["theirs"]), ("Freeze", SOON, ["mine"])]
NOTICES = {  # a cloud, what its service says, and when the machine goes
    "aws, nothing": ("aws", aws(404, b""), None),
    "aws": ("aws", aws(200, b'{"action": "terminate", "time": "2026-01-31T12:00:00Z"}'), NOON),
    "google, nothing": ("gcp", google(b"FALSE"), None), "google": ("gcp", google(b"TRUE\n"), NOW + 30),
    "azure, nothing": ("azure", azure(), None), "azure, of others": ("azure", azure(*OTHERS), None),
    "azure": ("azure", azure(*OTHERS, ("Reboot", LATER, ["mine"]), ("Preempt", SOON, ["mine", "x"])), NOON),
    "azure, begun": ("azure", azure(("Terminate", "", ["mine"])), NOW),
}  # fmt: skip


@pytest.mark.parametrize(("cloud", "answer", "at"), NOTICES.values(), ids=list(NOTICES))
def test_notices_of_clouds(cloud, answer, at, monkeypatch):
    with service(cloud, monkeypatch, answer):
        notice = found(cloud)
    assert (None if notice is None else notice.at) == at
    assert notice is None or notice.by == f"notice of {cloud}"


@pytest.mark.parametrize("answer", [
    (302, b"", ("Location", "http://127.0.0.1:9/")), (200, b"x" * (notices.LONGEST + 1)), (200, b"[1]"),
    (200, b'{"action": "stop"}'), (200, b'{"time": "soon"}'), (500, b""), None,
], ids=["redirect", "endless", "a list", "no time", "no such time", "an error", "nobody"])  # fmt: skip
def test_what_is_no_notice_is_said_once_and_ends_nothing(answer, monkeypatch, caplog):
    with service("aws", monkeypatch, aws(*(answer or (404, b"")))) as asked:
        if answer is None:
            monkeypatch.setitem(notices.HOSTS, "aws", "http://127.0.0.1:9")
        watch = Notices("aws")
        for _ in range(2):
            watch.look()
        assert len(asked) == (4 if answer else 0), "no redirect is followed"
    assert watch.found is None
    (record,) = caplog.records
    assert "trainer.reclaim_notices is aws" in record.message


def test_a_thread_asks_until_there_is_a_notice(monkeypatch):
    monkeypatch.setattr(notices, "POLL", 0.01)
    told = [b"FALSE"] * 3 + [b"TRUE"]
    with service("gcp", monkeypatch, lambda *_: (200, told.pop(0))), Notices("gcp") as watch:
        end = time.monotonic() + 10
        while watch.found is None and time.monotonic() < end:
            time.sleep(0.01)
    assert watch.found is not None
    assert not told
