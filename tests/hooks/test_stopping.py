"""When a run stops before its end: readers that went away, and an announced end of the machine."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager

import pytest

from burnish.hooks import notices
from burnish.hooks.expiry import Expiry, ReclaimTime
from burnish.hooks.notices import Notices
from burnish.hooks.stop import StopRequest
from tests.support.http_servers import send, serving
from tests.support.tiny_run import TinyRun

# an announced end of the machine

NOW, NOON = 1_769_860_000.0, 1_769_860_800.0  # 2026-01-31T12:00:00Z
SAGEMAKER = "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP"
MLP = "MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP"


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("SLURM_JOB_END_TIME", "{soon}", "(SLURM_JOB_END_TIME) after 0 of 3"),
        (SAGEMAKER, "{soon}", f"({SAGEMAKER}) after 0 of 3"), (SAGEMAKER, "1000", SAGEMAKER),
        (MLP, "soon", f"{MLP} is 'soon'"),
    ],
)  # fmt: skip
def test_variables_of_schedulers_tell_when_a_run_has_to_be_saved(files, monkeypatch, variable, value, words):
    monkeypatch.setenv(variable, value.replace("{soon}", str(int(time.time()) + 600)))
    run = TinyRun(files, "language", "llama", "algorithm=grpo", name="expires")
    told = run.train("trainer.expiry_margin=1e6", status=75 if value == "{soon}" else 2)
    assert words in " ".join((told.out + told.err).split())
    if value == "{soon}":  # the option goes first
        run.train("trainer.expires_at=2999-01-31T18:00:00Z")


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
    bench = Bench(saving=5.0)
    assert not bench.update(0, 50.0), "judging the untrained model is no update"
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
def test_notices_of_clouds(cloud, answer, at, monkeypatch, caplog):
    with service(cloud, monkeypatch, answer):
        notice = found(cloud)
    assert (None if notice is None else notice.at) == at
    assert notice is None or notice.by == f"notice of {cloud}"
    assert len(caplog.records) == (at is not None), "nothing went wrong"


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
