"""Notices of clouds that this machine is about to be reclaimed, from the metadata service that each of them has.

The services answer on link-local addresses, over plain HTTP. What they say only ends a run early, with a checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Self

from burnish.hooks.expiry import ReclaimTime
from burnish.options import unix_seconds
from burnish.utils.http import OF_THIS_MACHINE, HttpError, request
from burnish.utils.json_text import parse_json

log = logging.getLogger(__name__)

LINK_LOCAL, GOOGLE = (f"http://{host}" for host in OF_THIS_MACHINE)
HOSTS = {"aws": LINK_LOCAL, "gcp": GOOGLE, "azure": LINK_LOCAL}
POLL = 5.0  # seconds between questions: AWS and Google ask for no more
ANSWER = 2.0  # seconds that an answer may take
LONGEST = 1 << 16  # bytes of an answer
PREEMPTED = 30.0  # seconds that Google leaves to a machine
ENDING = ("Preempt", "Terminate", "Reboot", "Redeploy")  # Azure's events that end processes; Freeze does not
TOKEN = "X-aws-ec2-metadata-token"
Ask = Callable[[str, str, Mapping[str, str]], tuple[int, bytes]]  # method, path and headers to status and body


class Notices:
    """In this context a thread asks until it finds a notice; ``found`` is its time."""

    def __init__(self, cloud: str | None, clock: Callable[[], float] = time.time) -> None:
        """Args: ``cloud`` is aws, gcp or azure; None asks nobody."""
        self.cloud, self.clock = cloud, clock
        self.found: ReclaimTime | None = None
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._unreachable = False  # and that was said

    @property
    def asks(self) -> bool:
        return self.cloud is not None

    def __enter__(self) -> Self:
        if self.cloud is not None:
            self._thread = threading.Thread(target=self._watch, name="reclaim-notices", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join(2 * ANSWER)

    def _watch(self) -> None:
        while self.found is None:
            self.look()
            if self._end.wait(POLL):
                return

    def look(self) -> None:
        """Ask once. A service that can't be reached is said once, and asked again later."""
        assert self.cloud is not None
        try:
            at = SERVICES[self.cloud](ask_at(HOSTS[self.cloud]), self.clock())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if not self._unreachable:
                log.warning(
                    "trainer.reclaim_notices is %s, but its metadata service at %s gives no answer that can be read: "
                    "%s: %s; it is asked again every %g s", self.cloud, HOSTS[self.cloud], type(error).__name__,
                    error, POLL,
                )  # fmt: skip
            self._unreachable = True
            return
        if at is not None:
            self.found = ReclaimTime(at=at, by=f"notice of {self.cloud}")
            log.warning("this machine will be reclaimed at %s; the run saves and stops before", self.found)


def ask_at(host: str) -> Ask:
    """Questions to a service: no redirects, no proxies, and an answer of bounded length, in time."""

    def ask(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        try:
            return 200, request(
                method, f"{host}{path}", content=None, seconds=ANSWER, more={"Accept": "*/*", **headers},
                largest=LONGEST,
            )  # fmt: skip
        except HttpError as error:
            if error.status != 404:
                raise
            return 404, b""

    return ask


def _aws(ask: Ask, now: float) -> float | None:
    """When a spot instance is stopped, hibernated or terminated; two minutes before."""
    status, token = ask("PUT", "/latest/api/token", {f"{TOKEN}-ttl-seconds": "60"})
    headers = {TOKEN: token.decode("ascii")} if status == 200 else {}  # 404: of the first version, without tokens
    status, body = ask("GET", "/latest/meta-data/spot/instance-action", headers)
    return None if status == 404 else unix_seconds(_mapping(body)["time"])


def _gcp(ask: Ask, now: float) -> float | None:
    """Half a minute after a preemption was announced."""
    _, body = ask("GET", "/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    return now + PREEMPTED if body.strip() == b"TRUE" else None


def _azure(ask: Ask, now: float) -> float | None:
    """The earliest event that ends this machine's processes; that of a scale set may be about others."""
    headers = {"Metadata": "true"}
    _, body = ask("GET", "/metadata/scheduledevents?api-version=2020-07-01", headers)
    events = [event for event in _mapping(body)["Events"] if event["EventType"] in ENDING]
    if not events:
        return None
    _, name = ask("GET", "/metadata/instance/compute/name?api-version=2021-02-01&format=text", headers)
    own = [event for event in events if name.decode().strip() in event["Resources"]]
    # an event that has started has no time any more
    times = [parsedate_to_datetime(event["NotBefore"]).timestamp() if event["NotBefore"] else now for event in own]
    return min(times, default=None)


SERVICES: dict[str, Callable[[Ask, float], float | None]] = {"aws": _aws, "gcp": _gcp, "azure": _azure}


def _mapping(body: bytes) -> dict[str, Any]:
    found = parse_json(body)
    if not isinstance(found, dict):
        raise ValueError("the answer is no JSON object")
    return found
