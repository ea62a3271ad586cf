"""The meeting of a channel and what is told there, with somebody on the network who does not belong there."""

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from burnish.runtime.weight_stream import Fingerprint, Layout, Mismatch
from burnish.runtime.weight_transfer import Receiver, Sender
from burnish.training.rendezvous import open_store, reach_store
from tests.support.sockets import listening

LIMIT = 20.0  # seconds
WEIGHTS = {"base": torch.ones(3, 2), "lora": torch.ones(2, dtype=torch.bfloat16)}
FIRST = Layout.of(WEIGHTS).to_json()


class Payload:
    """Runs a command where it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def test_a_meeting_listens_where_it_was_told_to_and_nowhere_else():
    before = listening([os.getpid()])
    meeting = open_store("127.0.0.1", 0, LIMIT)
    assert listening([os.getpid()]) - before == {f"127.0.0.1:{meeting.port}"}


def test_a_store_is_not_opened_at_an_address_of_somebody_else():
    with pytest.raises(OSError, match="assign"):
        open_store("192.0.2.1", 0, LIMIT)


@pytest.fixture
def receiver():
    """One who samples and waits for weights, and a stranger's way to the store: ``hear(message)``."""
    taken = Receiver(WEIGHTS, bucket_mb=1)
    sender = Sender(lambda full: WEIGHTS, rank=0, bucket_mb=1)
    with ThreadPoolExecutor(2) as pool:
        port = sender.rendezvous("127.0.0.1", LIMIT)
        came = [
            pool.submit(sender.join, 2, "cpu", LIMIT),
            pool.submit(taken.join, "127.0.0.1", port, 1, 2, "cpu", LIMIT),
        ]
        for one in came:
            one.result(LIMIT)

    def hear(message: bytes) -> None:
        reach_store("127.0.0.1", port, LIMIT).set("message 0", message)
        taken.from_broadcast(1)

    yield hear
    sender._channel.close()


def test_a_pickle_in_the_store_is_no_message_and_runs_nothing(receiver, tmp_path):
    with pytest.raises(Mismatch, match="weight sync: unreadable message"):
        receiver(pickle.dumps(Payload(tmp_path / "ran")))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "message",
    [
        b"[" * 100_000,
        b"\xff\xfe",
        b"{}",
        b"null",
        json.dumps([["base", [3, 2], "load"]]).encode(),
        json.dumps([["base", [3, 2], "__class__"]]).encode(),
        json.dumps([["base", [3, -2], "float32"]]).encode(),
        json.dumps([["base", [3, True], "float32"]]).encode(),
        json.dumps([["base", [10**12, 10**12], "float32"]]).encode(),
        json.dumps([["base", [3, 2]]]).encode(),
        json.dumps([*FIRST, FIRST[0]]).encode(),
        json.dumps([*FIRST, ["elsewhere", [1], "float32"]]).encode(),
        json.dumps([FIRST[0]]).encode(),
    ],
)
def test_what_is_no_layout_of_these_weights_is_refused_before_anything_is_made_for_it(receiver, message):
    with pytest.raises(Mismatch):
        receiver(message)


def test_fingerprints_go_through_json_and_what_is_none_is_refused():
    own = Fingerprint.of(WEIGHTS, 3)
    said = json.loads(json.dumps(own.to_json()))
    assert Fingerprint.from_json(said) == own
    version, entries, checksums = said
    for wrong in (
        [version, entries],
        [version, entries, checksums[:1]],
        [version, entries, ["x", "y"]],
        [-1, *said[1:]],
        7,
    ):
        with pytest.raises(Mismatch):
            Fingerprint.from_json(wrong)
