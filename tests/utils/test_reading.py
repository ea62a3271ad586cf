"""Files of others: whatever is wrong with one is told with its name, and nothing is waited for without end."""

from __future__ import annotations

import os

import pytest

from burnish.utils.errors import UserError
from burnish.utils.paths import resolve
from burnish.utils.reading import check_folder, checked_path, read_file, read_long, read_text, understood


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("a\0b", "null"),
        ("x" * 5000, "too long"),
        ("~nobody-of-that-name/x", "no such user"),
        ("a\ud800b", "no path"),
    ],
)
def test_what_no_system_could_have_as_a_path_is_refused(path, words, monkeypatch):
    if "\ud800" in path:
        monkeypatch.setattr(os, "stat", lambda _: (_ for _ in ()).throw(UnicodeEncodeError("utf-8", path, 1, 2, "no")))
    for read in (lambda: checked_path(path, "resume"), lambda: resolve(path)):
        with pytest.raises(UserError, match="(?i)" + words):
            read()


def test_a_path_that_leads_nowhere_is_a_path(tmp_path):
    assert checked_path(str(tmp_path / "nothing" / "at all")) == tmp_path / "nothing" / "at all"


def test_pipes_folders_loops_and_nothing_are_told_from_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, words in (("pipe", "a pipe"), (".", "a folder"), ("loop", "symbolic links"), ("nothing", "no such file")):
        with pytest.raises(UserError, match=words):
            read_file(tmp_path / name)
    with pytest.raises(UserError, match="pipe is a pipe or a device; remove it"):
        check_folder(tmp_path)
    (tmp_path / "pipe").unlink()
    check_folder(tmp_path)


def test_text_is_utf8_with_or_without_a_byte_order_mark(tmp_path):
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfsteps: 3")
    assert read_text(tmp_path / "marked") == "steps: 3"
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match="byte 3 is not UTF-8"):
        read_text(tmp_path / "latin")


def test_what_libraries_raise_about_a_users_file_is_one_line():
    with pytest.raises(UserError, match="x can't be loaded: KeyError: 'weight'; restore"):
        with understood("x can't be loaded"):
            raise KeyError("weight")
    with pytest.raises(UserError, match=r"^ours$"):
        with understood("x can't be loaded"):
            raise UserError("ours")
    with pytest.raises(MemoryError):
        with understood("x can't be loaded"):
            raise MemoryError
    with pytest.raises(UserError, match=r"NameError: name 'Processor' is not defined; install the package"):
        with understood("x can't be loaded"):
            raise NameError("name 'Processor' is not defined")


def test_a_file_larger_than_memory_is_read_by_lines_of_which_the_longest_are_cut(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"ab\n" + b"c" * 100 + b"\n\nde")
    assert list(read_long(file, 10, 200)) == [(1, b"ab\n"), (2, b"c" * 11), (3, b"\n"), (4, b"de")]
    with pytest.raises(UserError, match=r"a\.jsonl has 107 bytes, too many \(limit 50\)"):
        list(read_long(file, 10, 50))
    with pytest.raises(UserError, match="is a folder"):
        list(read_long(tmp_path, 10, 50))
