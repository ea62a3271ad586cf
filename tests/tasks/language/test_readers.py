"""Processes that read ahead (data.workers): once per prompt, bounded, with the same numbers, and gone with the run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from burnish.config import load
from burnish.tasks import assemble
from burnish.tasks.language import readers
from burnish.tasks.language.readers import Readers
from burnish.utils.errors import UserError
from tests.support import reading
from tests.support.reading import asked

PATIENCE = 30.0  # seconds


@pytest.fixture
def reader(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_load", reading.load)
    made = []

    def make(*, workers: int = 2, most: int = 10**9):
        config = SimpleNamespace(data=SimpleNamespace(workers=workers), log=str(tmp_path / "log"))
        made.append(Readers(config, [], most=most))
        made[-1].log = tmp_path / "log"
        return made[-1]

    yield make
    for one in made:
        one.close()


def seen(reader) -> list[str]:
    return [line.partition(" ")[2] for line in reader.log.read_text().splitlines()] if reader.log.exists() else []


def until(true) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def pixels(encoded) -> int:
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


def test_what_is_read_ahead_is_bounded_in_bytes_and_dropped_if_nobody_wants_it(reader):
    some = reader(workers=1, most=2 * reading.SIZE)
    prompts = [asked(f"read {i}") for i in range(8)]
    some.ahead(prompts)
    until(lambda: some._held >= some.most)
    time.sleep(0.1)
    assert len(seen(some)) == 2
    assert pixels(some.result(prompts[0])) == 0
    until(lambda: len(seen(some)) == 3)
    for i in range(2):
        some.ahead([asked(f"read {10 + i}")])
    until(lambda: "read 11" in seen(some) and some._held == 2 * reading.SIZE)  # written before it comes back
    assert not some.reads(prompts[1])


def test_what_is_needed_now_comes_before_what_may_be_needed(reader):
    some = reader(workers=1)
    later, now = [asked(f"read {i}") for i in range(5)], [asked(f"read {i}") for i in range(5, 8)]
    some.ahead(later)
    some.want(now)
    assert [pixels(some.result(prompt)) for prompt in now] == [5, 6, 7]
    assert set(seen(some)[:5]) >= {"read 5", "read 6", "read 7"}


def test_a_process_that_dies_is_replaced_and_a_record_that_kills_is_named(reader):
    some = reader()
    deadly, fine = asked("dies 0"), [asked(f"read {i}") for i in range(4)]
    some.want([fine[0], deadly, *fine[1:]])
    with pytest.raises(UserError, match=r"'dies 0' \(data\.jsonl:3\) shows what 2 processes .*died of.*exit status 7"):
        some.result(deadly)
    assert [pixels(some.result(prompt)) for prompt in fine] == [0, 1, 2, 3]
    assert seen(some).count("dies 0") == 2


def test_a_process_that_hangs_is_ended_and_the_record_named(reader, monkeypatch):
    monkeypatch.setattr(readers, "READING", 2.0)
    some = reader(workers=1)
    stuck, fine = asked("hangs 0"), asked("read 4")
    some.want([stuck, fine])
    with pytest.raises(UserError, match=r"'hangs 0' \(data\.jsonl:3\) shows what process 1 of .* not read in 2 s"):
        some.result(stuck)
    assert pixels(some.result(fine)) == 4


def test_what_is_wrong_with_a_record_is_said_as_without_processes(reader):
    some = reader()
    prompts = [asked("broken 0"), asked("read 1")]
    some.ahead(prompts)
    until(lambda: len(seen(some)) == 2)
    some.want(prompts)
    with pytest.raises(UserError, match=r"^prompt 'broken 0' \(data\.jsonl:3\) shows what can't be read$"):
        some.result(prompts[0])
    assert pixels(some.result(prompts[1])) == 1


def test_processes_that_can_not_start_end_the_run_with_the_option(reader, monkeypatch):
    monkeypatch.setattr(readers, "_load", reading.refuse)
    some = reader()
    some.want([asked("read 0"), asked("read 1")])
    with pytest.raises(UserError, match=r"data\.workers is 2, but .* could not start: no processor here; set"):
        some.result(asked("read 0"))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_processes_end_with_the_run_also_when_it_is_killed(reader, tmp_path):
    some = reader()
    some.want([asked("read 0"), asked("read 1")])
    for i in range(2):
        some.result(asked(f"read {i}"))
    pids = {int(line.split()[0]) for line in some.log.read_text().splitlines()}
    some.close()
    assert not any(alive(pid) for pid in pids)
    code = f"""
import time
from types import SimpleNamespace
from burnish.tasks.language import readers
from tests.support import reading
from tests.support.reading import asked
from tests.support.reading import asked
readers._load = reading.load
config = SimpleNamespace(data=SimpleNamespace(workers=1), log={str(tmp_path / "other")!r})
some = readers.Readers(config, [], most=1)
some.want([asked("read 0"), asked("read 1")])
some.result(asked("read 0"))
print("ready", flush=True)
time.sleep(60)
"""
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    pid = int((tmp_path / "other").read_text().split()[0])
    assert alive(pid)
    run.kill()
    run.wait()
    run.stdout.close()
    until(lambda: not alive(pid))


def test_processes_that_have_nothing_to_read_are_refused(tmp_path):
    questions = tmp_path / "data.jsonl"
    questions.write_text('{"prompt": "1 + 1?", "answer": "2"}\n' * 2)
    given = [
        f"data.train_files={questions}", "data.val_files=null", f"output_dir={tmp_path / 'run'}", "algorithm=grpo",
        "data.train_batch_size=2", "data.workers=3", "trainer.mini_batch_size=null", "steps=1",
        "optimizer.warmup_steps=0",
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"data\.workers is 3, but no record shows or plays anything"):
        assemble(load("vlm_quickstart", given)).check_data()


@pytest.mark.slow
def test_the_same_tensors_come_from_another_process(tmp_path):
    given = [
        f"output_dir={tmp_path}", "data.train_batch_size=4", "rollout.n=2", "scoring.processes=0", "steps=2",
        "trainer.mini_batch_size=null", "optimizer.warmup_steps=0", "model.dtype=bfloat16",
    ]  # fmt: skip
    here, apart = (assemble(load("vlm_quickstart", [*given, *more])) for more in ([], ["data.workers=1"]))
    try:
        expected = here.engine.encode(here.train_prompts[:3]).table
        apart.engine.ahead(apart.train_prompts[:2])
        found = apart.engine.encode(apart.train_prompts[:3]).table
    finally:
        apart.close()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") != "", "this process keeps its GPU"
    for name in ("ids", "positions"):
        assert [one.tolist() for one in getattr(found, name)] == [one.tolist() for one in getattr(expected, name)]
    for one, other in zip(found.features, expected.features, strict=True):
        assert one.tensors.keys() == other.tensors.keys()
        for name, tensor in one.tensors.items():
            assert tensor.dtype == other.tensors[name].dtype
            assert torch.equal(tensor, other.tensors[name]), name
