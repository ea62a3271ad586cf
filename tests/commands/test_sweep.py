"""`burnish train --sweep`: every combination in a folder of its own, one after the other, and a table of what came."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import burnish as package
from tests.support.tiny_run import burnish


class Runs:
    """Stands in for the processes of a sweep: each writes what a run writes, and ends as the test says."""

    def __init__(self, monkeypatch, codes: tuple[int, ...] = (), lines=None, program: str = "") -> None:
        self.options: list[list[str]] = []
        self.folders: list[str] = []
        real = subprocess.Popen

        def start(command, **more):
            if "train" not in command:
                return real(command, **more)
            self.options.append(command[5:-1])
            self.folders.append(json.loads(command[-1].removeprefix("output_dir=")))
            number = len(self.folders) - 1
            text = "".join(json.dumps(line) + "\n" for line in (lines or self.lines)(number)) + '{"step": 3, "torn'
            write = (
                f"import pathlib, sys; p = pathlib.Path({self.folders[-1]!r}); p.mkdir(parents=True); "
                f"(p / 'metrics.jsonl').write_text({text!r}); sys.exit({(codes + (0,) * 99)[number]})"
            )
            return real([sys.executable, "-S", "-c", program or write], **more)

        monkeypatch.setattr(subprocess, "Popen", start)

    @staticmethod
    def lines(number: int) -> list[dict[str, float]]:
        key = "val-core/all/reward/mean@4"
        step = "training/global_step"
        return [{step: 0, key: 0.1}, {step: 1, key: 0.875}, {step: 2}]


def test_every_combination_in_the_order_of_the_options(recipe, tmp_path, monkeypatch):
    runs, base = Runs(monkeypatch), f"output_dir={tmp_path}/s"
    burnish("train", recipe, "--sweep", "seed=0,1", "algorithm.beta=0.5,1", "steps=3", base)
    assert runs.folders == [
        f"{tmp_path}/s/seed={seed},algorithm.beta={beta}" for seed in (0, 1) for beta in ("0.5", "1")
    ]
    assert runs.options[0] == ["steps=3", "seed=0", "algorithm.beta=0.5"]
    configs = [package.load(recipe, *options) for options in runs.options]
    assert [(config.seed, config.algorithm.beta) for config in configs] == [(0, 0.5), (0, 1), (1, 0.5), (1, 1)]


@pytest.mark.parametrize(("codes", "ended", "runs"), [((0, 0), 0, 2), ((1, 0), 1, 2), ((75, 0), 75, 1)])
def test_the_runs_of_a_sweep_and_their_table(recipe, tmp_path, monkeypatch, codes, ended, runs):
    started = Runs(monkeypatch, codes)
    table = burnish("train", recipe, "seed=0,1", "--sweep", f"output_dir={tmp_path}/s", status=ended).out
    assert started.folders == [f"{tmp_path}/s/seed=0", f"{tmp_path}/s/seed=1"][:runs]
    assert table.count("0.1 → 0.875") == runs
    assert ("0.875 ± 0" in table) == (runs == 2)
    assert ("(1)" in table) == (1 in codes)


def test_a_signal_stops_the_run_and_the_sweep(recipe, monkeypatch):
    wait = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); time.sleep(60)"
    runs = Runs(monkeypatch, program=wait)
    before = signal.getsignal(signal.SIGTERM)

    def soon():
        while not runs.folders:
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=soon, daemon=True).start()
    burnish("train", recipe, "seed=0,1", "--sweep", status=75)
    assert len(runs.folders) == 1
    assert signal.getsignal(signal.SIGTERM) is before
