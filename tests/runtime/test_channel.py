"""Where the members of a channel find each other: nobody reaches it but who is meant to."""

import os

import pytest

from burnish.training.rendezvous import open_store
from tests.support.sockets import listening

LIMIT = 20.0  # seconds


def test_a_meeting_listens_where_it_was_told_to_and_nowhere_else():
    before = listening([os.getpid()])
    meeting = open_store("127.0.0.1", 0, LIMIT)
    assert listening([os.getpid()]) - before == {f"127.0.0.1:{meeting.port}"}


def test_a_store_is_not_opened_at_an_address_of_somebody_else():
    with pytest.raises(OSError, match="assign"):
        open_store("192.0.2.1", 0, LIMIT)
