"""Notices of clouds, as stand-ins on this machine give them."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager

import pytest

from burnish.hooks import notices
from burnish.hooks.notices import Notices
from tests.support.http_servers import send, serving

NOW, NOON = 1_769_860_000.0, 1_769_860_800.0  # 2026-01-31T12:00:00Z


@contextmanager
def service(cloud, monkeypatch, answer):
    """A metadata service: ``answer`` gives (status, body, *headers) for a method, a path and headers."""
    asked = []

    def reply(request):
        asked.append((request.command, request.path, dict(request.headers)))
        status, body, *headers = answer(request.command, request.path, request.headers)
        send(request, status, body, dict(headers))

    with serving(reply) as url:
        monkeypatch.setitem(notices.HOSTS, cloud, url)
        yield asked


def found(cloud):
    watch = Notices(cloud, clock=lambda: NOW)
    watch.look()
    return watch.found


def aws(action):
    def answer(method, path, headers):
        if method == "PUT":
            assert headers["X-aws-ec2-metadata-token-ttl-seconds"]
            return 200, b"secret"
        assert headers["X-aws-ec2-metadata-token"] == "secret"
        assert path == "/latest/meta-data/spot/instance-action"
        return (404, b"") if action is None else (200, json.dumps(action).encode())

    return answer


def test_a_spot_instance_of_aws(monkeypatch):
    with service("aws", monkeypatch, aws(None)):
        assert found("aws") is None
    with service("aws", monkeypatch, aws({"action": "terminate", "time": "2026-01-31T12:00:00Z"})):
        notice = found("aws")
    assert (notice.at, notice.by) == (NOON, "notice of aws")


def test_a_machine_of_google_has_half_a_minute(monkeypatch):
    def answer(method, path, headers):
        assert headers["Metadata-Flavor"] == "Google"
        assert path == "/computeMetadata/v1/instance/preempted"
        return 200, told.pop(0)

    told = [b"FALSE", b"TRUE\n"]
    with service("gcp", monkeypatch, answer):
        assert found("gcp") is None
        assert found("gcp").at == NOW + 30


def azure(*events):
    def answer(method, path, headers):
        assert headers["Metadata"] == "true"
        if path.startswith("/metadata/instance/compute/name?"):
            return 200, b"mine"
        assert path == "/metadata/scheduledevents?api-version=2020-07-01"
        names = ("EventType", "NotBefore", "Resources")
        return 200, json.dumps({"Events": [dict(zip(names, event, strict=True)) for event in events]}).encode()

    return answer


def test_events_of_azure_are_of_this_machine_and_end_it(monkeypatch):
    noon, later = "Sat, 31 Jan 2026 12:00:00 GMT", "Sat, 31 Jan 2026 13:00:00 GMT"
    with service("azure", monkeypatch, azure()) as asked:
        assert found("azure") is None
        assert len(asked) == 1
    others = [("Preempt", noon, ["theirs"]), ("Freeze", noon, ["mine"])]
    with service("azure", monkeypatch, azure(*others)):
        assert found("azure") is None
    with service("azure", monkeypatch, azure(*others, ("Reboot", later, ["mine"]), ("Preempt", noon, ["mine", "x"]))):
        assert found("azure").at == NOON
    with service("azure", monkeypatch, azure(("Terminate", "", ["mine"]))):
        assert found("azure").at == NOW, "it has begun"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((302, b"", ("Location", "http://127.0.0.1:9/")), "status 302"),
        ((200, b"x" * (notices.LONGEST + 1)), "has more than"),
        ((200, b"[1]"), "no JSON object"),
        ((200, b'{"action": "stop"}'), "KeyError"),
        ((200, b'{"time": "soon"}'), "must be a time"),
        ((500, b""), "status 500"),
    ],
    ids=["redirect", "endless", "a list", "no time", "no such time", "an error"],
)
def test_what_is_no_notice_is_said_once_and_ends_nothing(answer, why, monkeypatch, caplog):
    def reply(method, path, headers):
        return (200, b"token") if method == "PUT" else answer

    with service("aws", monkeypatch, reply) as asked:
        watch = Notices("aws")
        for _ in range(2):
            watch.look()
        assert len(asked) == 4, "no redirect is followed"
    assert watch.found is None
    (record,) = caplog.records
    assert "trainer.reclaim_notices is aws" in record.message
    assert why in record.message


def test_a_thread_asks_until_there_is_a_notice(monkeypatch):
    monkeypatch.setattr(notices, "POLL", 0.01)
    told = [b"FALSE"] * 3 + [b"TRUE"]
    with service("gcp", monkeypatch, lambda *_: (200, told.pop(0))), Notices("gcp") as watch:
        end = time.monotonic() + 10
        while watch.found is None and time.monotonic() < end:
            time.sleep(0.01)
    assert watch.found is not None
    assert not told
    assert not any(thread.name == "reclaim-notices" for thread in threading.enumerate())
