"""Columns of Parquet files that no Python object holds are told; the others are read."""

import datetime

import pytest

from burnish.data.flow.prompts import read_prompts
from burnish.data.language.prompts import read_questions
from burnish.options.language import LanguageDataOptions
from burnish.utils.errors import UserError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def questions(path):
    return read_questions(path, LanguageDataOptions(train_files=path))


NO_TEXT = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xff\xfe")]
)


@pytest.mark.parametrize(
    "column",
    [NO_TEXT, pa.array([0, 2**30], pa.date32()), pa.array([0, 2**62], pa.duration("s"))],
    ids=["no UTF-8", "a date far away", "longer than the world"],
)
def test_what_no_python_object_holds_is_told_with_its_row_and_column(tmp_path, column):
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.table({"prompt": ["x", "y"], "more": column}), path)
    for read in (read_prompts, questions):
        with pytest.raises(UserError, match=r"a\.parquet, row 2: 'more' can't be read: .* leave that column out"):
            read(path)


def test_a_column_that_is_there_twice_is_refused_and_one_of_dates_is_read(tmp_path):
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["prompt", "prompt"]), path)
    with pytest.raises(UserError, match="has two columns 'prompt'; keep one"):
        read_prompts(path)
    parquet.write_table(pa.table({"prompt": ["x"], "day": [datetime.date(2026, 1, 31)]}), path)
    assert read_prompts(path)[0].info == {"day": "2026-01-31"}
