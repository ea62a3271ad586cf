"""A run that is asked to stop at any moment saves, exits with 75, and goes on to the numbers of one that never was."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from burnish.checkpoint.store import CheckpointStore
from burnish.commands.train import train
from burnish.config import load
from burnish.hooks.expiry import ReclaimTime
from burnish.hooks.notices import Notices
from burnish.hooks.stop import StopRequest
from tests.support.runs import last_state
from tests.support.tiny_run import TinyRun

STEPS, STOPPED = 3, 75  # updates of a run, and its exit code when it was stopped and all is saved
GAME = [
    "environment={name: function, path: 'tests.support.games:Show', max_turns: 2}",
    "environment.arguments={opening: false, pictures: false, fails: '', turns: 2}",
]
KINDS: dict[str, tuple[str, str, list[str]]] = {  # adapters are folded into the weights while samples are made
    "flow": ("generators", "sd3", ["algorithm=flow_grpo", "rewards.brightness=null", "validation.max_prompts=1"]),
    "language": ("language", "llama", ["algorithm=grpo", "rewards.odd=null", "validation.max_prompts=1"]),
    "dialogue": ("language", "llama", ["algorithm=grpo", "rewards.odd=null", "validation.max_prompts=1", *GAME]),
}
ASKED = [
    "rewards.asked={name: function, path: 'tests.faults.test_stops:asked'}", "rollout.batch_size=4",
    "scoring.probe=false", "checkpoint.every=2", "validation.every=1",
]  # fmt: skip


def moments(kind: str) -> list[str]:
    """What a run is at when it calls the reward; pictures are judged in batches of four, responses all at once."""
    batches = 2 if kind == "flow" else 1
    update = [*["samples"] * batches, "validation"]
    return ["validation 0", *(f"{what} {number}" for number in range(1, STEPS + 1) for what in update)]


class Orders:
    """What the reward is to do, and when."""

    calls, at, number = 0, 0, signal.SIGTERM

    @classmethod
    def give(cls, at: int = 0, number: int = signal.SIGTERM) -> None:
        cls.calls, cls.at, cls.number = 0, at, number


def asked(samples: list[Any], prompts: list[Any]) -> list[float]:
    """A number that hangs on the sample; at a call that was named, the process gets a signal."""
    Orders.calls += 1
    if Orders.calls == Orders.at:
        os.kill(os.getpid(), Orders.number)
    return [sum(map(ord, one.text)) % 11 / 10 if hasattr(one, "text") else float(one.mean()) / 255 for one in samples]


class Stopped:
    """Runs of a kind, and one that nobody stops."""

    def __init__(self, files: Path, kind: str) -> None:
        self.files, self.kind = files, kind
        self.whole = self.run("whole")
        Orders.give()
        self.whole.train()
        assert Orders.calls == len(moments(kind))

    def run(self, name: str, *more: str) -> TinyRun:
        half, model, options = KINDS[self.kind]
        given = {option.partition("=")[0]: option for option in [*options, *ASKED, *more]}
        return TinyRun(self.files, half, model, *given.values(), name=f"stops/{self.kind}/{name}")

    def finish(self, run: TinyRun, *more: str) -> None:
        """It goes on, to the same numbers."""
        Orders.give()
        run.train(*more)
        assert run.metrics[-2:] == self.whole.metrics[-2:]
        assert last_state(run.output) == last_state(self.whole.output)


@pytest.fixture(scope="module", params=KINDS)
def runs(files, request) -> Stopped:
    return Stopped(files, request.param)


ONE_KIND = pytest.mark.parametrize("runs", ["language"], indirect=True)


def often(kind: str, call: int) -> bool:
    """One moment of each is enough for every day."""
    return (kind, call) in {("flow", 4), ("language", 7), ("dialogue", 3)}


@pytest.mark.parametrize(
    ("runs", "call"),
    [
        pytest.param(kind, call, marks=[] if often(kind, call) else [pytest.mark.thorough])
        for kind in KINDS for call in range(1, len(moments(kind)) + 1)
    ],
    indirect=["runs"],
)  # fmt: skip
def test_what_is_given_up_is_made_again(runs, call):
    what, update = moments(runs.kind)[call - 1].split()
    run, done = runs.run(f"at-{call}"), int(update) - (what == "samples")
    Orders.give(call)
    said = run.train(status=STOPPED).out
    if call > 1:
        assert f"Stopped by SIGTERM after {done} of {STEPS} updates" in " ".join(said.split())
        assert len(run.metrics) == done + 1
        assert any(name.startswith("val-core/") for name in run.metrics[-1]) == (what == "samples")
    runs.finish(run)
    assert run.metrics == runs.whole.metrics


def signal_when(what: Any, number: int = signal.SIGTERM) -> list[float]:
    """Sends a signal once something is true, from a thread; when it did."""
    sent: list[float] = []

    def send() -> None:
        deadline = time.monotonic() + 120
        while not what() and time.monotonic() < deadline:
            time.sleep(0.01)
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()
    return sent


@ONE_KIND
@pytest.mark.parametrize("processes", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_reward_that_takes_a_minute_is_not_waited_for(runs, processes):
    run = runs.run(f"slow-{processes}")
    slow = run.output.with_suffix(".slow")
    slow.with_suffix(".py").write_text(
        f"import os, time\ndef slow(samples, prompts):\n    seen = {str(run.output)!r} + '/metrics.jsonl'\n"
        f"    if os.path.exists(seen) and not os.path.exists({str(slow)!r}):\n"
        f"        open({str(slow)!r}, 'w').close()\n        time.sleep(90)\n    return [0.0] * len(samples)\n"
    )
    more = [f"rewards.slow={{name: function, path: '{slow.with_suffix('.py')}:slow', weight: 0}}"]
    more.append(f"scoring.processes={processes}")
    Orders.give()
    sent = signal_when(slow.exists)
    run.train(*more, status=STOPPED)
    assert time.monotonic() - sent[0] < 10
    run.train(*more)
    assert [line["critic/rewards/mean"] for line in run.metrics[1:]] == [
        line["critic/rewards/mean"] for line in runs.whole.metrics[1:]
    ]


@pytest.mark.thorough
def test_stopped_at_random_moments(runs):
    """Loading, reports and saving are met, too."""
    draw, stops, longest, run = random.Random(runs.kind), 0, 2.5, runs.run("random")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT) * 3:
        Orders.give()
        begun = time.monotonic()
        due = begun + draw.uniform(0.0, longest)
        with StopRequest() as stop:  # a signal that comes late meets no default handler
            sent = signal_when(lambda due=due: time.monotonic() > due, number)
            code = train(load(str(run.recipe), run.options), stop)
            took = time.monotonic() - begun
            time.sleep(max(0.0, due - time.monotonic()) + 0.1)
        assert code in (0, STOPPED)
        assert code == 0 or begun + took - sent[0] < 10
        stops += code == STOPPED
        if code == 0:
            longest = min(longest, took)  # on a fast machine most signals would come too late
            assert run.metrics == runs.whole.metrics
            assert last_state(run.output) == last_state(runs.whole.output)
            shutil.rmtree(run.output)
    assert stops >= 3


@ONE_KIND
def test_a_second_ctrl_c_says_what_was_not_saved(runs, monkeypatch):
    """It comes while the run saves what the first one asked it to."""
    save = CheckpointStore.save

    def interrupted(self: CheckpointStore, update: int, *arguments: Any, **how: Any) -> Any:
        if update == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return save(self, update, *arguments, **how)

    monkeypatch.setattr(CheckpointStore, "save", interrupted)
    run = runs.run("twice", "steps=4")
    Orders.give(7, signal.SIGINT)
    assert "update 3 not saved" in run.train(status=130).message
    assert sorted(path.name for path in (run.output / "checkpoints").iterdir()) == ["00000002"]


@ONE_KIND
def test_nobody_who_reads_need_be_there_any_more(runs, monkeypatch):
    """Ctrl-C in ``burnish train | tee log`` ends tee, too; that must not cost what was learned."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            if stop.requested:
                raise BrokenPipeError
            return super().write(text)

    run = runs.run("gone")
    Orders.give(4, signal.SIGHUP)
    with StopRequest() as stop:
        monkeypatch.setattr(sys, "stdout", Gone())
        assert train(load(str(run.recipe), run.options), stop) == STOPPED
    assert (run.output / "checkpoints" / "00000001").is_dir()
    assert (run.output / "report.html").exists()


@ONE_KIND
def test_a_machine_that_is_taken_away(runs, monkeypatch):
    at = "trainer.expires_at=2999-01-31T18:00:00Z"
    run = runs.run("expires", at, "checkpoint.every=9", "checkpoint.keep_last=9")
    Orders.give()
    said = run.train("trainer.expiry_margin=1e12", status=STOPPED).out
    assert "2999-01-31 18:00:00 UTC (trainer.expires_at) after 0 of 3" in " ".join(said.split())
    run.train()
    saved = sorted(path.name for path in run.output.glob("checkpoints/0*"))
    assert saved == ["00000001", "00000003"], "the first one tells how long saving takes"

    def look(self: Notices) -> None:
        self.found = ReclaimTime(at=self.clock() + 1.0, by=f"notice of {self.cloud}")

    monkeypatch.setattr(Notices, "look", look)
    run = runs.run("noticed")
    said = run.train("trainer.reclaim_notices=aws", "trainer.expiry_margin=60", status=STOPPED).out
    assert "(notice of aws) after" in " ".join(said.split())
    monkeypatch.undo()
    runs.finish(run)


@ONE_KIND
def test_saving_meanwhile_changes_nothing(runs):
    run = runs.run("meanwhile", "checkpoint.asynchronous=true", "checkpoint.every=1")
    runs.finish(run)
    assert run.metrics == runs.whole.metrics
    assert sorted(path.name for path in (run.output / "checkpoints").iterdir()) == ["00000002", "00000003"]
