"""Processes that read ahead (data.workers): once per prompt, with the same numbers, and gone with the run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from burnish.tasks.language import readers
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from tests.support.forked import forked
from tests.support.processes import alive
from tests.support.tiny_run import TinyRun

PATIENCE, SIZE = 30.0, 1000  # seconds; bytes of the pixels of a prompt


def asked(text):
    """A prompt with a picture, of line 3."""
    return Prompt(text=text, images=(Media.encoded(text.encode()),), where="data.jsonl:3")


def load(argument):
    """Stands in for a processor."""
    config, _ = argument

    def read(prompt):
        with Path(config.log).open("a") as file:
            file.write(f"{os.getpid()} {prompt.text}\n")
        match prompt.text.split()[0]:
            case "dies":
                os._exit(7)
            case "hangs":
                time.sleep(60)
            case "broken":
                return f"{prompt.name} shows what can't be read", None
        number = int(prompt.text.split()[1])
        ids = np.arange(3, dtype=np.int64).view(np.uint8), "int64", (3,)
        pixels = np.full(SIZE, number, np.uint8), "uint8", (10, SIZE // 10)
        return "", ({"pixels": 0}, {"pixels": pixels}, {}, {"ids": ids, "positions": (ids[0], "int64", (1, 3))})

    return read


def refuse(argument):
    raise ValueError("no processor here")


@pytest.fixture
def reader(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_load", load)
    made = []

    def make(*, workers=2, most=10**9):
        log = tmp_path / "log"
        log.touch()
        made.append(
            readers.Readers(SimpleNamespace(data=SimpleNamespace(workers=workers), log=str(log)), [], most=most)
        )
        made[-1].log = log
        return made[-1]

    with forked(lambda _, environment: environment.get("CUDA_VISIBLE_DEVICES") == ""):
        yield make
        for one in made:
            one.close()


def seen(some):
    return [line.partition(" ")[2] for line in some.log.read_text().splitlines()]


def until(true):
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def pixels(encoded):
    assert encoded.ids[0].tolist() == encoded.positions[0][0].tolist() == [0, 1, 2]
    assert encoded.features[0].tensors["pixels"].shape == (10, 100)
    return int(encoded.features[0].tensors["pixels"].unique())


def test_a_prompt_is_read_once_whether_it_was_asked_for_ahead_or_now(reader):
    some = reader()
    prompts = [asked(f"read {i}") for i in range(6)]
    some.ahead(prompts[:3])
    some.want(prompts)
    assert [pixels(some.result(prompt)) for prompt in prompts] == list(range(6))
    assert sorted(seen(some)) == [f"read {i}" for i in range(6)]
    assert not any(some.reads(prompt) for prompt in prompts), "and nothing of it is kept here"
    some.want(prompts[:1])
    assert not some.reads(prompts[0]), "a single one is read by who needs it"
    pids = {int(line.split()[0]) for line in some.log.read_text().splitlines()}
    some.close()
    assert not any(map(alive, pids))


def test_what_is_read_ahead_is_bounded_in_bytes_and_comes_after_what_is_needed_now(reader):
    some = reader(workers=1, most=2 * SIZE)
    prompts = [asked(f"read {i}") for i in range(8)]
    some.ahead(prompts)
    until(lambda: some._held >= some.most)
    time.sleep(0.1)
    assert len(seen(some)) == 2
    now = [asked("read 8"), asked("read 9")]
    some.want(now)
    assert [pixels(some.result(prompt)) for prompt in now] == [8, 9]
    assert pixels(some.result(prompts[0])) == 0
    until(lambda: len(seen(some)) == 5)
    assert seen(some)[2:] == ["read 8", "read 9", "read 2"]
    for i in range(2):
        some.ahead([asked(f"read {10 + i}")])
    assert not some.reads(prompts[1]), "what nobody wants is dropped"


ENDS = {
    "dies 0": [r"'dies 0' \(data\.jsonl:3\)", "2 processes", "exit status 7"],
    "hangs 0": [r"'hangs 0' \(data\.jsonl:3\)", "2 s"],
    "broken 0": [r"^prompt 'broken 0' \(data\.jsonl:3\) shows what can't be read$"],
}


@pytest.mark.parametrize("text", ENDS)
def test_a_record_that_can_not_be_read_is_named_and_stops_no_other(text, reader, monkeypatch):
    monkeypatch.setattr(readers, "READING", 2.0)
    some = reader(workers=1 if text == "hangs 0" else 2)
    wrong, fine = asked(text), [asked(f"read {i}") for i in range(3)]
    some.want([fine[0], wrong, *fine[1:]])
    with pytest.raises(UserError, match=".*".join(ENDS[text])):
        some.result(wrong)
    assert [pixels(some.result(prompt)) for prompt in fine] == [0, 1, 2]
    assert seen(some).count(text) == (2 if text == "dies 0" else 1)


def test_processes_that_can_not_start_end_the_run_with_the_option(reader, monkeypatch):
    monkeypatch.setattr(readers, "_load", refuse)
    some = reader()
    some.want([asked("read 0"), asked("read 1")])
    with pytest.raises(UserError, match=r"data\.workers is 2.*no processor here"):
        some.result(asked("read 0"))


@pytest.mark.parametrize("model", ["qwen2_5_vl", pytest.param("internvl", marks=pytest.mark.thorough)])
def test_a_run_learns_the_same_with_readers(model, files):
    found, batch = [], "data.train_batch_size=3"
    for workers in (0, 1):
        run = TinyRun(files, "language", model, "algorithm=grpo", f"data.workers={workers}", "steps=2", batch)
        with forked(lambda _, environment: environment.get("CUDA_VISIBLE_DEVICES") == ""):
            run.train()
        found.append(run.metrics)
    assert found[0] == found[1]
