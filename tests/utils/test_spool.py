"""Bytes beyond a limit lie on the disk and come back as they were."""

import pickle

import pytest

from burnish.utils.errors import UserError
from burnish.utils.spool import Spool, Spooled


def test_what_is_too_much_for_memory_is_read_from_the_disk():
    spool = Spool(in_memory=10)
    given = [b"12345", b"67890", b"abcdef", b"", b"ghi" * 1000]
    kept = [spool.keep(one) for one in given]
    assert [isinstance(one, Spooled) for one in kept] == [False, False, True, False, True]
    assert [one.read() if isinstance(one, Spooled) else one for one in kept] == given
    assert pickle.loads(pickle.dumps(kept)) == given, "another process gets the bytes"


def test_a_full_disk_is_told(monkeypatch):
    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", Full)
    with pytest.raises(UserError, match=r"No space left .*set TMPDIR"):
        Spool(in_memory=0).keep(b"1")
