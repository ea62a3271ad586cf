"""Records of the same keys are read alike: what is found once holds for each."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import pytest

from burnish.data.flow.prompts import prompt_of
from burnish.data.language.prompts import question
from burnish.data.packing import Packer
from burnish.data.records import Record
from burnish.options.flow import PromptOptions
from burnish.options.language import LanguageDataOptions
from burnish.types.packed import unpacked

KEYS = (
    "prompt", "question", "text", "answer", "solution", "negative_prompt", "data_source", "label", "image", "tools",
    "system", "input", "instruction", "history", "level", "note",
)  # fmt: skip
VALUES = (
    "a fox", "4", "", " ", "<image>", 'say "7"', "ü", "\ud800", "1e999", 4, 0, -1.5, float("nan"), None, True, [1],
    {"a": "b"},
)  # fmt: skip
LANGUAGE = LanguageDataOptions(train_files="a", label_key="level", extra_keys=["note"])
READERS = {
    "question": partial(question, options=LanguageDataOptions(train_files="a")),
    "question with named keys": partial(question, options=LANGUAGE),
    "question with a system prompt": partial(
        question, options=LanguageDataOptions(train_files="a", system_prompt="be brief")
    ),
    "prompt": partial(prompt_of, keys=PromptOptions()),
    "prompt with named keys": partial(prompt_of, keys=PromptOptions(answer_key="note", prompt_key="text")),
}


def told(read, record):
    try:
        return repr(read(record))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("reader", READERS)
def test_a_record_is_read_as_if_it_were_the_only_one(reader):
    random, read, calls, alike = Random(0), READERS[reader], 0, 0

    def counted(record):
        nonlocal calls
        calls += 1
        return read(record)

    pack = Packer(counted, by_text=False)
    for number in range(20_000):
        keys = random.sample(KEYS, random.randint(0, 3))
        values = {
            key: random.choice(VALUES if random.random() < 0.3 else ("a fox", 4))
            for key in ["prompt", *keys]
            if key != "prompt" or number % 5
        }
        record = Record(f"a:{number}", Path("/"), values, part=number % 2)
        before = calls
        assert told(lambda record: unpacked(pack(record)[0]), record) == told(read, record), values
        alike += calls == before
    assert alike > 100 or reader.endswith("system prompt")


def test_only_records_whose_texts_decide_are_read_one_by_one():
    told: list[str] = []

    def read(record):
        told.append(record.where)
        return question(record, LanguageDataOptions(train_files="a"))

    def records():
        return (
            Record(f"a:{i}", Path("/"), {"prompt": "<what>" if i == 7 else f"what is {i}?", "answer": i})
            for i in range(10)
        )

    pack = Packer(read, by_text=False)
    prompts = [unpacked(row) for record in records() for row in pack(record)]
    assert told == ["a:0", "a:7"]  # for the first, a record of its keys
    assert [prompt.answer for prompt in prompts] == list(map(str, range(10)))
    one_by_one = Packer(read, by_text=True)
    assert [unpacked(row) for record in records() for row in one_by_one(record)] == prompts
    assert len(told) == 12


def test_records_of_ever_new_keys_are_read_one_by_one(monkeypatch):
    monkeypatch.setattr("burnish.data.packing.MOST", 3)
    read = READERS["question"]
    pack = Packer(read, by_text=False)
    records = [Record(f"a:{i}", Path("/"), {"prompt": "why?", f"key {i}": i}) for i in range(5)]
    assert [repr(unpacked(pack(record)[0])) for record in records] == [repr(read(record)) for record in records]
    assert len(pack._plain) == 3
