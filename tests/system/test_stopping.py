"""A run that is asked to stop while it samples, of either task: it goes on to the numbers of one that never was."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from burnish.checkpoint.files import read
from burnish.checkpoint.store import CheckpointStore
from burnish.commands.train import train
from burnish.config import load
from burnish.controller import LocalController
from burnish.hooks.expiry import ReclaimTime
from burnish.hooks.notices import Notices
from burnish.hooks.stop import EXIT_STOPPED, StopRequest
from burnish.rollout.sources import OnlineSource
from burnish.tasks import Assembly
from burnish.utils.errors import UserError
from tests.support.factory import tiny_pipeline
from tests.support.runs import last_state, metrics_of
from tests.support.tiny_language import tiny_language

# a validation takes as many seconds as are written in the file that SLOW names, if there is one
REWARD = """
import os, time
def odd(samples, prompts):
    slow = os.environ["SLOW"]
    if "judged" in repr(prompts[0]) and os.path.exists(slow):
        seconds = float(open(slow).read())
        open(slow + ".met", "w").close()
        time.sleep(seconds)
    return [sum(map(ord, one.text)) % 11 / 10 if hasattr(one, "text") else float(one.mean()) / 255 for one in samples]
"""
STEPS = 3
SHARED = {
    "scoring": {"processes": 0},
    "checkpoint": {"every": 2},
    "validation": {"every": 1, "n": 1, "max_prompts": 1},
    "steps": STEPS,
}


@pytest.fixture(scope="module", params=["flow", "language", "dialogue"])
def recipe(request, tmp_path_factory):
    """A recipe, with adapters that are folded into the weights while samples are made."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "rewards.py").write_text(REWARD)
    reward = {"odd": {"name": "function", "path": f"{folder / 'rewards.py'}:odd"}}
    if request.param == "flow":
        (folder / "prompts.txt").write_text("a cat\ntwo dogs\nthree\n")
        (folder / "judged.txt").write_text("judged\n")
        tree = {
            "model": {"path": str(tiny_pipeline(folder, vae=False)), "device": "cpu", "lora": {"rank": 2}},
            "data": {
                "train_files": str(folder / "prompts.txt"),
                "val_files": str(folder / "judged.txt"),
                "train_batch_size": 2,
            },
            "algorithm": {"name": "flow_grpo"},
            "rewards": reward,
            "rollout": {"n": 2, "num_inference_steps": 4, "max_sequence_length": 3, "batch_size": 2},
        }
    else:
        lines = [json.dumps({"prompt": text}) + "\n" for text in ("What?", "Which?", "Who?")]
        (folder / "questions.jsonl").write_text("".join(lines))
        (folder / "judged.jsonl").write_text(json.dumps({"prompt": "judged?"}) + "\n")
        tiny_language(folder / "llama", "llama")
        tree = {
            "task": "image-text-to-text",
            "model": {"path": str(folder / "llama"), "device": "cpu", "lora": {"rank": 2}},
            "data": {
                "train_files": str(folder / "questions.jsonl"),
                "val_files": str(folder / "judged.jsonl"),
                "train_batch_size": 2,
            },
            "algorithm": {"name": "grpo"},
            "rewards": reward,
            "rollout": {"n": 2, "max_new_tokens": 3, "min_new_tokens": 3, "batch_size": 2},
        }
        if request.param == "dialogue":
            tree["environment"] = {
                "name": "function",
                "path": "tests.support.games:Show",
                "arguments": {"opening": False, "pictures": False, "fails": "", "turns": 2},
                "max_turns": 2,
            }
    (folder / "recipe.yaml").write_text(json.dumps(tree | SHARED))
    return folder


@pytest.fixture(autouse=True)
def slow(tmp_path, monkeypatch):
    monkeypatch.setenv("SLOW", str(tmp_path / "slow"))
    return tmp_path / "slow"


@pytest.fixture(scope="module")
def whole(recipe):
    """The run that nobody stops, and what it was at whenever it asked whether it should."""
    moments: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOW", "")
        asking(patch, moments.append)
        assert start(recipe, recipe / "whole") == 0
    return recipe / "whole", moments


def start(recipe: Path, output: Path, *more: str) -> int:
    return train(load(str(recipe / "recipe.yaml"), [f"output_dir={output}", *more]))


def asking(patch: pytest.MonkeyPatch, told: Callable[[str], None]) -> None:
    """``told`` hears what a run is at, such as ``samples 2`` or ``validation 3``, whenever it asks."""
    at = ""

    def noting(name: str, kind: type, method: str, number: Callable[..., int]) -> None:
        original = getattr(kind, method)

        def noted(self: Any, *arguments: Any) -> Any:
            nonlocal at
            at = f"{name} {number(*arguments)}"
            return original(self, *arguments)

        patch.setattr(kind, method, noted)

    noting("samples", OnlineSource, "collect", lambda update: update)
    noting(
        "validation",
        LocalController,
        "evaluate",
        lambda target, _: 0 if target.name == "reference" else int(target.name),
    )
    ask = Assembly.check_cancelled

    def check_cancelled(self: Assembly) -> None:
        told(at)
        ask(self)

    patch.setattr(Assembly, "check_cancelled", check_cancelled)


def stopped_at(moment: str, place: int, patch: pytest.MonkeyPatch, number: int = signal.SIGTERM) -> None:
    """A signal comes when the run asks for the so-manieth time in a moment."""
    asked = 0

    def told(at: str) -> None:
        nonlocal asked
        asked += at == moment
        if at == moment and asked == place:
            os.kill(os.getpid(), number)

    asking(patch, told)


MOMENTS = ["validation 0", "samples 1", "validation 1", "samples 2", "validation 2", "samples 3", "validation 3"]
LIKE_OTHERS = ["validation 1", "samples 1", "samples 3"]  # not yet saved, or saved: both are among the rest


@pytest.mark.parametrize(
    "moment", [pytest.param(one, marks=[pytest.mark.thorough] * (one in LIKE_OTHERS)) for one in MOMENTS]
)
def test_what_is_given_up_is_made_again(recipe, whole, moment, tmp_path, capsys):
    expected, moments = whole
    assert set(moments) - {""} == set(MOMENTS)
    kind, update = moment.split()
    done = int(update) - (kind == "samples")
    with pytest.MonkeyPatch.context() as patch:
        stopped_at(moment, 1 + moments.count(moment) // 2, patch)
        assert start(recipe, tmp_path / "run") == EXIT_STOPPED
    assert f"Stopped by SIGTERM after {done} of {STEPS} updates" in " ".join(capsys.readouterr().out.split())
    lines = metrics_of(tmp_path / "run")
    assert len(lines) == done + 1
    if done:
        newest = read(tmp_path / "run" / "checkpoints" / f"{done:08d}")
        given_up = moment == f"validation {done}"
        assert (newest.unvalidated is not None) == given_up
        assert any(name.startswith("val-core/") for name in lines[-1]) != given_up
    assert start(recipe, tmp_path / "run") == 0
    assert metrics_of(tmp_path / "run") == metrics_of(expected)
    assert last_state(tmp_path / "run") == last_state(expected)
    scores = {path.name: read(path).score for path in (expected / "checkpoints").iterdir()}
    assert {path.name: read(path).score for path in (tmp_path / "run" / "checkpoints").iterdir()} == scores


def test_a_validation_may_be_given_up_again_and_elsewhere(recipe, whole, tmp_path):
    expected, _ = whole
    for output, more in (("run", []), ("run", []), ("branch", [f"resume={tmp_path / 'run/checkpoints/00000002'}"])):
        with pytest.MonkeyPatch.context() as patch:
            stopped_at("validation 2", 1, patch, signal.SIGHUP)
            assert start(recipe, tmp_path / output, *more) == EXIT_STOPPED
        assert metrics_of(tmp_path / output)[-1]["training/global_step"] == 2
    for output in ("run", "branch"):
        assert start(recipe, tmp_path / output) == 0
        assert metrics_of(tmp_path / output)[-2:] == metrics_of(expected)[-2:]
        assert last_state(tmp_path / output) == last_state(expected)


def signalled(what: Callable[[], bool], number: int = signal.SIGTERM, times: int = 1) -> tuple[threading.Thread, list]:
    """A thread that sends signals once something is true, and when it did."""
    sent: list[float] = []

    def send() -> None:
        deadline = time.monotonic() + 120
        while not what() and time.monotonic() < deadline:
            time.sleep(0.01)
        sent.append(time.monotonic())
        for _ in range(times):
            os.kill(os.getpid(), number)
            time.sleep(0.2)

    thread = threading.Thread(target=send, daemon=True)
    return thread, sent


@pytest.mark.parametrize("processes", [0, 1])
def test_a_reward_that_takes_a_minute_is_not_waited_for(recipe, whole, processes, slow, tmp_path):
    expected, _ = whole
    slow.write_text("90")
    met, lines = tmp_path / "slow.met", tmp_path / "run" / "metrics.jsonl"
    with pytest.MonkeyPatch.context() as patch:  # the first validation is quick, so that there is something to lose
        stopped_at("validation 1", 1, patch, 0)
        slow.rename(tmp_path / "later")
        asking(
            patch, lambda at: at == "samples 1" and (tmp_path / "later").exists() and (tmp_path / "later").rename(slow)
        )
        thread, sent = signalled(met.exists)
        thread.start()
        with StopRequest() as stop:
            config = load(
                str(recipe / "recipe.yaml"), [f"output_dir={tmp_path / 'run'}", f"scoring.processes={processes}"]
            )
            assert train(config, stop) == EXIT_STOPPED
            took = time.monotonic() - sent[0]
            thread.join(timeout=10)
    assert took < 10
    assert lines.read_text().count("\n") == 2
    assert read(tmp_path / "run" / "checkpoints" / "00000001").unvalidated
    slow.unlink()
    assert start(recipe, tmp_path / "run") == 0
    assert metrics_of(tmp_path / "run") == metrics_of(expected)
    assert last_state(tmp_path / "run") == last_state(expected)


def of_two_tasks(recipe: Path) -> None:
    if recipe.name.startswith("dialogue"):
        pytest.skip("dialogues sample otherwise, and that is all")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["flow", pytest.param("language", marks=pytest.mark.thorough)], indirect=True)
def test_stopped_at_random_moments(recipe, whole, slow, tmp_path):
    """Most of the time goes into validation, and loading, reports and saving are met, too."""
    expected, _ = whole
    slow.write_text("0.4")
    draw, stops, longest = random.Random(recipe.name), 0, 2.5
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT) * 3:
        with StopRequest() as stop:  # a signal that comes late meets no default handler
            start = time.monotonic()
            due = start + draw.uniform(0.0, longest)
            thread, sent = signalled(
                lambda due=due: time.monotonic() > due, number, times=1 + (number != signal.SIGINT)
            )
            thread.start()
            config = load(str(recipe / "recipe.yaml"), [f"output_dir={tmp_path / 'run'}", "scoring.processes=1"])
            code = train(config, stop)
            took, late = time.monotonic() - start, time.monotonic() - sent[0] if sent else 0.0
            thread.join(timeout=30)
        assert late < 10
        assert code in (0, EXIT_STOPPED)
        stops += code == EXIT_STOPPED
        if code == 0:
            longest = min(longest, took)  # on a fast machine most signals would come too late
            assert metrics_of(tmp_path / "run") == metrics_of(expected)
            assert last_state(tmp_path / "run") == last_state(expected)
            shutil.rmtree(tmp_path / "run")
    assert stops >= 4


def test_a_second_ctrl_c_says_what_was_not_saved(recipe, tmp_path):
    """It comes while the run saves what the first one asked it to."""
    save = CheckpointStore.save

    def interrupted(self: CheckpointStore, update: int, *arguments: Any, **how: Any) -> Any:
        if update == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return save(self, update, *arguments, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "save", interrupted)
        stopped_at("validation 3", 1, patch, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt, match=r"^interrupted by a second Ctrl-C: update 3 not saved; .* after u"):
            start(recipe, tmp_path / "run", "steps=4", "checkpoint.every=2")
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["00000002"]


def test_nobody_who_reads_need_be_there_any_more(recipe, tmp_path):
    """Ctrl-C in ``burnish train | tee log`` ends tee, too; that must not cost what was learned."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            if stop.requested:
                raise BrokenPipeError
            return super().write(text)

    with pytest.MonkeyPatch.context() as patch, StopRequest() as stop:
        patch.setattr(sys, "stdout", Gone())
        stopped_at("samples 2", 1, patch, signal.SIGHUP)
        assert train(load(str(recipe / "recipe.yaml"), [f"output_dir={tmp_path / 'run'}"]), stop) == EXIT_STOPPED
    assert (tmp_path / "run" / "checkpoints" / "00000001").is_dir()
    assert (tmp_path / "run" / "report.html").exists()


def test_a_run_whose_learning_rate_falls_is_made_longer(recipe, tmp_path):
    of_two_tasks(recipe)
    falling = ["optimizer.schedule=linear", "validation.every=0"]
    rates = {}
    for name, attempts in {
        "whole": [["steps=3"]],
        "planned": [["steps=2", "optimizer.schedule_updates=3"], ["steps=3", "optimizer.schedule_updates=3"]],
        "longer": [["steps=2"], ["steps=3", "optimizer.schedule_updates=3"]],
    }.items():
        assert [start(recipe, tmp_path / name, *falling, *more) for more in attempts] == [0] * len(attempts)
        rates[name] = [line["actor/lr"] for line in metrics_of(tmp_path / name)[1:]]
    assert last_state(tmp_path / "planned") == last_state(tmp_path / "whole")
    assert rates["planned"] == rates["whole"]
    assert rates["whole"][2] == rates["longer"][2] > 0
    assert rates["longer"][:2] == pytest.approx([3e-4, 1.5e-4])
    with pytest.raises(UserError, match=r"to change steps, also set its length: optimizer\.schedule_updates=4$"):
        start(recipe, tmp_path / "whole", *falling, "steps=4")


def test_a_machine_that_is_taken_away_too_soon(recipe, tmp_path, capsys):
    soon = ["trainer.expires_at=2999-01-31T18:00:00Z", "trainer.expiry_margin=1e12"]
    assert start(recipe, tmp_path / "run", *soon) == EXIT_STOPPED
    said = " ".join(capsys.readouterr().out.split())
    assert "Stopped by the machine's expiry at 2999-01-31 18:00:00 UTC (trainer.expires_at) after 0 of 3" in said
    late = ["trainer.expires_at=2999-01-31T18:00:00Z", "checkpoint.every=9", "checkpoint.keep_last=9"]
    assert start(recipe, tmp_path / "run", *late) == 0
    saved = sorted(path.name for path in (tmp_path / "run").glob("checkpoints/0*"))
    assert saved == ["00000001", "00000003"], "the first one tells how long saving takes"


def test_saving_meanwhile_changes_nothing(recipe, whole, tmp_path):
    expected, _ = whole
    assert start(recipe, tmp_path / "run", "checkpoint.asynchronous=true", "checkpoint.every=1") == 0
    assert metrics_of(tmp_path / "run") == metrics_of(expected)
    assert last_state(tmp_path / "run") == last_state(expected)
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert saved == ["00000002", "00000003"]


def test_a_notice_in_mid_run_saves_and_stops(recipe, tmp_path, capsys, monkeypatch):
    def look(self):
        self.found = ReclaimTime(at=self.clock() + 1.0, by=f"notice of {self.cloud}")

    monkeypatch.setattr(Notices, "look", look)
    given = ["trainer.reclaim_notices=aws", "trainer.expiry_margin=60"]
    assert start(recipe, tmp_path / "run", *given) == EXIT_STOPPED
    assert "(notice of aws) after" in " ".join(capsys.readouterr().out.split())
    assert start(recipe, tmp_path / "run") == 0
