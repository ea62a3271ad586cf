"""Columns of Parquet files that no Python object holds are told; the others are read."""

import datetime

import pytest

from burnish.data import tables
from burnish.data.flow.prompts import read_prompts
from burnish.data.language.prompts import read_questions
from burnish.data.lines import parse_object
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


def test_a_small_file_that_repeats_a_long_value_is_read_a_few_rows_at_a_time(tmp_path, monkeypatch):
    path, sizes = tmp_path / "a.parquet", []
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array(["a" * 2**20]))
    parquet.write_table(pa.table({"prompt": long}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 2000
    monkeypatch.setattr(tables, "LARGEST_ROWS", 4 << 20)
    monkeypatch.setattr(tables, "_objects", lambda batch, *about: sizes.append(batch.nbytes) or batch.to_pylist())
    assert [row["prompt"] for row in tables.read_parquet(path)] == ["a" * 2**20] * 64
    assert max(sizes) < 5 << 20


def test_a_repeated_key_among_very_many_is_found_at_once():
    text = "{" + ",".join(f'"{i}":1' for i in range(300_000)) + ',"299999":2}'
    with pytest.raises(ValueError, match="has '299999' twice"):
        parse_object(text)
