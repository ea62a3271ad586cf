"""A run that is asked to stop at any moment saves, exits with 75, and goes on to the numbers of one that never was."""

import io
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from burnish.cli import main
from tests.support.optional import seldom
from tests.support.runs import last_state
from tests.support.tiny_run import TinyRun

STEPS, STOPPED = 3, 75  # updates of a run, and its exit code when it was stopped and all is saved
GAME = [
    "environment={name: function, path: 'tests.support.games:Show', max_turns: 2}",
    "environment.arguments={opening: false, images: false, fails: '', turns: 2}",
]
KINDS: dict[str, tuple[str, str, list[str]]] = {  # adapters are folded into the weights while samples are made
    "flow": ("generators", "flux", ["algorithm=flow_grpo", "rewards.brightness=null", "validation.max_prompts=1"]),
    "language": ("language", "llama", ["algorithm=grpo", "rewards.odd=null", "validation.max_prompts=1"]),
    "dialogue": ("language", "llama", ["algorithm=grpo", "rewards.odd=null", "validation.max_prompts=1", *GAME]),
}
ASKED = [
    "rewards.asked={name: function, path: 'tests.faults.test_stops:asked'}", "rollout.batch_size=4",
    "scoring.probe=false", "checkpoint.every=2", "validation.every=1",
]  # fmt: skip


def moments(kind: str) -> list[str]:
    """What a run is at when it calls the reward; images are judged in batches of four, responses all at once."""
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
        return TinyRun(self.files, half, model, *options, *ASKED, *more, name=f"stops/{self.kind}/{name}")

    def finish(self, run: TinyRun, *more: str) -> None:
        Orders.give()
        run.train(*more)
        assert run.metrics[-2:] == self.whole.metrics[-2:]
        assert last_state(run.output) == last_state(self.whole.output)


@pytest.fixture(scope="module", params=KINDS)
def runs(files, request) -> Stopped:
    return Stopped(files, request.param)


ONE_KIND = pytest.mark.parametrize("runs", ["language"], indirect=True)


def often(kind: str, call: int) -> bool:
    return (kind, call) in {("flow", 5), ("language", 4), ("language", 7)}


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


@ONE_KIND
@pytest.mark.parametrize("processes", [0, *seldom(1)])
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
    sent: list[float] = []

    def send() -> None:
        while not slow.exists():
            time.sleep(0.01)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    Orders.give()
    threading.Thread(target=send, daemon=True).start()
    run.train(*more, status=STOPPED)
    assert time.monotonic() - sent[0] < 10
    run.train(*more)
    rewards = [[line["critic/rewards/mean"] for line in one.metrics[1:]] for one in (run, runs.whole)]
    assert rewards[0] == rewards[1]


@ONE_KIND
def test_a_second_ctrl_c_says_what_was_not_saved(runs, monkeypatch):
    """It comes while the run saves what the first one asked it to."""
    sync = os.fsync

    def interrupted(file: int) -> None:
        if Orders.calls >= 7:
            os.kill(os.getpid(), signal.SIGINT)
        sync(file)

    monkeypatch.setattr(os, "fsync", interrupted)
    run = runs.run("twice", "steps=4")
    Orders.give(7, signal.SIGINT)
    assert "update 3 not saved" in run.train(status=130).message
    assert sorted(path.name for path in run.output.glob("checkpoints/0*")) == ["00000002"]


@ONE_KIND
def test_nobody_who_reads_need_be_there_any_more(runs, monkeypatch):
    """Ctrl-C in ``burnish train | tee log`` ends tee, too; that must not cost what was learned."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            if Orders.calls >= 4:
                raise BrokenPipeError
            return super().write(text)

    run = runs.run("gone")
    Orders.give(4, signal.SIGHUP)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Gone())
        assert main(["train", str(run.recipe), *run.options]) == STOPPED
    assert (run.output / "checkpoints" / "00000001").is_dir()
    assert (run.output / "report.html").exists()


@ONE_KIND
def test_a_run_that_is_to_outlive_its_terminal_and_one_whose_machine_is_taken_away(runs):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup starts it; the handler of before comes back after each test
    run = runs.run("nohup")
    Orders.give(4, signal.SIGHUP)
    run.train()
    assert run.metrics == runs.whole.metrics
    run = runs.run("expires", "trainer.walltime=2999-01-31T18:00:00Z", "checkpoint.every=9", "checkpoint.keep_last=9")
    Orders.give()
    said = run.train("trainer.grace_period=1e12", status=STOPPED).out
    assert "2999-01-31 18:00:00 UTC (trainer.walltime) after 0 of 3" in " ".join(said.split())
    run.train()
    saved = sorted(path.name for path in run.output.glob("checkpoints/0*"))
    assert saved == ["00000001", "00000003"], "the first one tells how long saving takes"
