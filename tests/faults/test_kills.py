"""The same run gives the same numbers to the last bit, however often it is killed in between."""

import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from burnish.config.yaml_text import parse
from tests.support.optional import seldom
from tests.support.runs import assert_same, last_state
from tests.support.tiny_run import TinyRun

STEPS = 4
COUNTED = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir")  # calls that change files
SMALL = [f"steps={STEPS}", "checkpoint.every=2", "validation.every=2", "validation.max_prompts=2"]
RUNS = parse((Path(__file__).parent / "kills.yaml").read_text())
STATE = {
    "ppo": ["critic.value_head.weight", "memory.kl", "memory.rewards", "groups.critic", "ema.", "source.", "lora",
            "normaliser.known", "normaliser.first"],
    "diffusion_nft": ["old.", "ema.", "groups.actor", "source.", "memory.kl_gate"],
    "grpo": ["reference.", "groups.actor", "source."],
}  # fmt: skip
OFTEN = ("ppo", "diffusion_nft")


def run_of(files: Path, name: str, place: str, *more: str) -> TinyRun:
    half, model, options = RUNS[name].values()
    return TinyRun(files, half, model, f"algorithm={name}", *SMALL, *options, *more, name=f"kills/{name}/{place}")


def lived(run: TinyRun, *, die_at: int | None = None) -> tuple[int, int]:
    """A life of a run in a process of its own: its exit code or minus its signal, and how often it changed files.

    It is killed at its n-th such call: between two of them the disk stays as it is, so that every state is met.
    """
    count = run.output.with_suffix(".calls")
    gc.freeze()
    child = os.fork()
    if child == 0:
        signal.alarm(240)
        calls = 0

        def counting(original: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args, **kwargs)

            return wrapper

        for name in COUNTED:
            setattr(os, name, counting(getattr(os, name)))
        try:
            run.train()
            count.write_text(str(calls))
        finally:
            os._exit(0 if count.exists() else 1)
    gc.unfreeze()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, int(count.read_text()) if count.exists() else 0


@pytest.fixture(scope="module", params=[*OFTEN, *seldom(*(name for name in RUNS if name not in OFTEN))])
def uninterrupted(files, request) -> tuple[str, TinyRun, int]:
    """The name of a run, the run that nothing has befallen, and its calls."""
    whole = run_of(files, request.param, "whole")
    status, calls = lived(whole)
    assert status == 0
    assert calls > 30
    return request.param, whole, calls


def test_what_there_is_to_remember_is_in_the_checkpoint(uninterrupted):
    name, whole, _ = uninterrupted
    lines = whole.metrics
    assert [line["training/global_step"] for line in lines] == list(range(STEPS + 1))
    assert [any(key.startswith("val-core/") for key in line) for line in lines] == [True, False, True, False, True]
    names = list(last_state(whole.output))
    assert [part for part in STATE.get(name, []) if not any(part in entry for entry in names)] == []
    if name == "ppo":
        assert len({line["actor/kl_coef"] for line in lines[1:]}) == STEPS
        assert len({line["actor/ptx_loss"] for line in lines[1:]}) == STEPS


@pytest.mark.parametrize("place", [0.9, *seldom(0.55, *(n / 9 for n in range(9)))])  # of its calls
def test_killed_while_it_saves(files, uninterrupted, place):
    name, whole, calls = uninterrupted
    run = run_of(files, name, f"at-{place:.2f}")
    assert lived(run, die_at=1 + int(calls * place))[0] == -signal.SIGKILL
    assert lived(run)[0] == 0
    assert_same(run.output, whole.output)


@pytest.mark.thorough
def test_killed_while_it_saves_meanwhile(files, uninterrupted):
    name, whole, calls = uninterrupted
    for at in range(5, calls, max(calls // 6, 1) | 1):
        run = run_of(files, name, f"meanwhile-{at}", "checkpoint.asynchronous=true")
        lived(run, die_at=at)
        assert lived(run)[0] == 0
        assert_same(run.output, whole.output)
