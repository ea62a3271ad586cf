"""The same run gives the same numbers whoever does its work on Ray, in step or ahead of it, and whoever dies meanwhile.

All runs are on one simulated cluster, whose workers are forks; this process is their driver.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.golden.runs import HALVES
from tests.support import deadly
from tests.support.optional import seldom
from tests.support.processes import gone
from tests.support.ray_runs import (
    ADAPTER,
    HERE,
    ROUNDING,
    SEEING,
    SLOW,
    STEPS,
    Fate,
    Forks,
    Machines,
    assert_close,
    run,
    saved_updates,
    terminate,
)
from tests.support.runs import assert_same, metrics_of
from tests.support.sockets import descendants, reached_from_outside, watched
from tests.support.tiny_run import TinyRun, burnish

pytestmark = pytest.mark.cluster

STOPPED = 75  # the exit code of a run that was stopped, when all is saved
RANKS, WORKER = ["pools.train.processes=2"], ["pools.rollout.processes=1"]
AHEAD = [*WORKER, "async_rollout.depth=1"]
# options of runs that nothing befalls, and whether they run on a cluster
REFERENCES: dict[str, tuple[list[str], bool]] = {
    "adapter": (["vlm_quickstart", *SEEING, *ADAPTER], False),
    "pooled": (["vlm_quickstart", *SEEING, "pools.rollout.processes=2", "pools.reward.processes=1"], True),
    "colocated": (["vlm_quickstart", *SEEING, *ADAPTER, *RANKS], True),
    "split": (["vlm_quickstart", *SEEING, *ADAPTER, *RANKS, "sharding.context_parallel=2"], True),
    "ahead": (["vlm_quickstart", *SEEING, *AHEAD], True),
    "adapter ahead": (["vlm_quickstart", *SEEING, *ADAPTER, *AHEAD], True),
    "partial": (["vlm_quickstart", *SEEING, "pools.rollout.processes=2", "async_rollout={depth: 1, partial: 2}"], True),
}


@pytest.fixture(scope="module")
def loopback() -> Iterator[None]:
    """Simulated machines listen on loopback alone, where Ray's own process looks only if it is told."""
    from ray._private import ray_constants

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
        yield


@pytest.fixture(scope="module")
def machines(forks: Forks, loopback: None) -> Iterator[Machines]:
    found = Machines(8, forks)
    yield found
    found.close()


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the deadly reward, which every run that answers questions has, looks for its orders."""
    return tmp_path_factory.mktemp("orders") / "notes"


@pytest.fixture(scope="module")
def options(notes: Path, machines: Machines) -> Callable[[str], list[str]]:
    """The recipe and the options of a reference."""
    judged = deadly.option(notes)

    def of(name: str) -> list[str]:
        given, beside = REFERENCES[name]
        more = [judged] if given[0] == "vlm_quickstart" else []
        return [*given, *more, *(machines.options() if beside else [])]

    return of


@pytest.fixture(scope="module")
def reference(options: Callable[[str], list[str]], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run that nothing has befallen, made when it is first asked for."""
    found: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in found:
            folder = tmp_path_factory.mktemp(name.replace(" ", "_")) / "run"
            assert run(folder, *options(name)) == 0
            found[name] = folder
        return found[name]

    return of


@pytest.fixture
def fate() -> Iterator[Fate]:
    with pytest.MonkeyPatch.context() as patch:
        yield Fate(patch)


def ages(folder: Path) -> list[Any]:
    return [line.get("pipeline/staleness/max") for line in metrics_of(folder)]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ahead", "adapter ahead"])
def test_a_worker_that_samples_ahead_gets_the_older_weights_again(name, options, reference, fate, tmp_path):
    """The trainer has gone on when the worker dies, at work or while it receives weights."""
    undisturbed = reference(name)
    assert ages(undisturbed) == [None, 0, 1, 1, 1, 1], "samples are as old as they may be, and no older"
    for line in metrics_of(undisturbed)[1:]:
        assert line["rollout_corr/kl"] is not None
    fate.plan("rollout", "generate", 3)
    fate.plan("rollout", "receiver.receive", 5)
    assert run(tmp_path / "run", *options(name)) == 0
    assert fate.met()
    assert_same(tmp_path / "run", undisturbed)


def test_responses_that_go_on_do_so_whoever_dies_and_in_a_resumed_run(options, reference, fate, tmp_path):
    undisturbed = reference("partial")
    lines, names = metrics_of(undisturbed)[1:], ("partial/put_aside", "partial/resumed", "staleness/mean")
    put_aside, resumed, staleness = ([line[f"pipeline/{name}"] or 0 for line in lines] for name in names)
    assert 0 < sum(put_aside) < STEPS
    assert [share > 0 for share in resumed] == [share > 0 for share in [0, *put_aside[:-1]]]
    assert ages(undisturbed)[1:] == [0, 1, 2, 2, 2]
    assert all(mean < most for mean, most in zip(staleness[2:], ages(undisturbed)[3:], strict=True))
    fate.plan("rollout", "generate", 2, rank=1)
    fate.plan("rollout", "generate", 5, blow=terminate)
    assert run(tmp_path / "run", *options("partial")) == STOPPED
    assert run(tmp_path / "run", *options("partial")) == 0
    assert fate.met()
    assert_same(tmp_path / "run", undisturbed)


@pytest.mark.thorough
def test_workers_that_sample_and_judge_are_replaced_and_nothing_changes(options, reference, notes, fate, tmp_path):
    undisturbed = reference("pooled")
    assert ages(undisturbed) == [None] * (STEPS + 1)
    last = deadly.calls(notes) + 7
    deadly.die_at(notes, last)
    fate.plan("rollout", "generate", 2, rank=1)
    assert run(tmp_path / "run", *options("pooled")) == 0
    assert fate.met()
    assert (notes / f"died-{last}").exists()
    assert_same(tmp_path / "run", undisturbed)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["colocated", "split"])
def test_a_trainer_that_loses_a_rank_goes_on_from_its_checkpoint(name, options, reference, fate, tmp_path):
    undisturbed = reference(name)
    fate.plan("train", "check", 1, rank=1)  # while it loads, and in update 1, before there is a checkpoint
    fate.plan("train", "update", 1, rank=1)
    fate.plan("train", "update", 5, rank=0)
    assert run(tmp_path / "run", *options(name)) == 0
    assert fate.met()
    assert_same(tmp_path / "run", undisturbed)


@pytest.mark.thorough
def test_a_rank_that_hangs_is_named_and_the_trainer_goes_on_from_its_checkpoint(
    options, reference, fate, caplog, monkeypatch, tmp_path
):
    undisturbed = reference("colocated")
    monkeypatch.setattr("burnish.runtime.heartbeat.LONGEST", 8.0)
    fate.plan("train", "update", 3, rank=1, blow=lambda group, rank: os.kill(group.pids[rank], signal.SIGSTOP))
    assert run(tmp_path / "run", *options("colocated")) == 0
    assert fate.met()
    said = next(record.getMessage() for record in caplog.records if "hangs" in record.getMessage())
    assert re.search(r"pool train hangs in update, .* for 8 s: worker 1 not answering; worker 0 in \S+\.py:\d+", said)
    assert_same(tmp_path / "run", undisturbed)


def test_an_error_that_only_workers_can_find_is_told_as_in_one_process(machines, tmp_path):
    wrong = ["vlm_quickstart", *SEEING, "model.lora.rank=2", "model.lora.targets=[nowhere]"]
    said = [
        burnish("train", *wrong, *more, f"output_dir={tmp_path / 'run'}", status=2).err.partition("error: ")[2]
        for more in ([], [*machines.options(), *RANKS])
    ]
    assert said[0].startswith("model.lora.targets has 'nowhere'")
    assert said[1] == said[0]
    assert not (tmp_path / "run").exists()


MUON = ["optimizer.name=muon", "optimizer.lr=1e-5"]  # its steps are of one length, and computed in bfloat16
APART = yaml.safe_load(Path(__file__).with_name("apart.yaml").read_text())
# an epsilon that keeps Adam from making rounding errors of nothing to steps
STEADY = ["optimizer.eps=1e-3", "optimizer.max_grad_norm=0.01"]
CLIP = ["algorithm=flow_grpo", "algorithm.window={kind: random, size: 2}", "rollout.num_frames=5"]
VLLM = ["rollout.engine=vllm", "rollout.vllm={python: {files}/vllm-python}"]
BESIDE = f"FAKE_VLLM= FAKE_VLLM_LOG=/dev/null PYTHONPATH={HERE}/tests/support/fake_vllm:$PYTHONPATH"
FAKE = f'#!/bin/sh\n{BESIDE} exec {sys.executable} "$@"\n'
SFT = ["algorithm=sft", "data.train_files={data}/responses.jsonl", "trainer.mini_batch_size=2"]
OFTEN = [
    ("language", "llama", ["algorithm=grpo", "checkpoint.every=1"], WORKER, ("rollout", "generate", 2)),
    ("language", "llama", [*SFT, "checkpoint.every=1"], RANKS, ("train", "update", 3)),
]
SELDOM = [
    ("generators", "sd3", ["algorithm=flow_grpo"], [*RANKS, *WORKER], ("rollout", "generate", 3)),
    ("generators", "wan2.2", [*CLIP, "rollout.height=32", "rollout.width=32"], WORKER, None),
    ("language", "llama", ["algorithm=grpo", "model.lora=null", *VLLM], RANKS, None),
]


@pytest.mark.parametrize(
    ("half", "model", "options", "place", "death"), [*OFTEN, *seldom(*SELDOM)],
    ids=["a worker", "ranks", "ranks and a worker", "clips by a worker", "ranks and vLLM"],
)  # fmt: skip
def test_it_learns_apart_what_one_process_learns_though_one_is_killed(
    files, machines, fate, half, model, options, place, death
):
    (files / "vllm-python").write_text(FAKE)
    (files / "vllm-python").chmod(0o755)
    alone = TinyRun(files, half, model, *options, name=f"alone/{model}")
    apart = TinyRun(files, half, model, *options, *place, *machines.options(), name=f"apart/{model}")
    alone.train()
    if death is not None:
        fate.plan(*death)
    apart.train()
    assert fate.met()
    assert_close(apart.output, alone.output, 10 * ROUNDING)


def golden(files: Path, half: str, name: str, where: str, *more: str) -> TinyRun:
    model, options = HALVES[half][name]
    given = [f"algorithm={name.split()[0]}", *options, *STEADY, *more]
    return TinyRun(files, half, model, *given, name=f"{where}/{half}-{name.replace(' ', '-')}")


@pytest.mark.parametrize(
    ("half", "name", "place"),
    [pytest.param(*one, marks=() if one[1] == "flow_grpo kl" else pytest.mark.thorough) for one in APART],
)
def test_golden_runs_learn_apart_what_one_process_learns(half, name, place, files, machines):
    both = [one for one in place if one.startswith(("rollout.", "optimizer."))]
    alone = golden(files, half, name, "alone", *both)
    apart = golden(files, half, name, "apart", *place, *machines.options())
    alone.train()
    apart.train()
    assert_close(apart.output, alone.output, 50 * ROUNDING if MUON[0] in place else 10 * ROUNDING)


@pytest.mark.thorough
def test_a_machine_that_is_lost_is_replaced_or_the_run_says_what_it_lacks(forks, loopback, fate, tmp_path):
    nodes = Machines(0, forks)  # one that nobody works on
    nodes.join(1)
    nodes.join(1)
    given = ["vlm_quickstart", *SEEING, *ADAPTER]
    assert run(tmp_path / "local", *given) == 0
    given += [*nodes.options(placement_timeout=15.0), *WORKER]

    def lose(group, rank, *, another):
        os.kill(group.pids[rank], signal.SIGSTOP)  # it must not be finished before its machine is gone
        if another:
            nodes.join(1)
        nodes.lose(*group.pool.machines())
        os.kill(group.pids[rank], signal.SIGKILL)

    # update 2 is asked for again after the first loss, so that the fifth time is for update 4
    fate.plan("rollout", "generate", 2, blow=partial(lose, another=True))
    fate.plan("rollout", "generate", 5, blow=partial(lose, another=False))
    said = burnish("train", *given, f"output_dir={tmp_path / 'run'}", status=2).message
    assert fate.met()
    assert "after 15 s (ray.placement_timeout)" in said
    assert "which needs a machine with 1 CPU" in said
    assert saved_updates(tmp_path / "run") == [2, 3]
    nodes.join(1)
    assert run(tmp_path / "run", *given) == 0
    assert_same(tmp_path / "run", tmp_path / "local")
    nodes.close()


@pytest.mark.thorough
def test_ranks_that_sample_give_up_and_make_the_same_samples_again(options, reference, fate, tmp_path):
    given = options("colocated")
    fate.plan("train", "generate", 4, rank=1, blow=terminate)
    assert run(tmp_path / "run", *given) == STOPPED
    assert fate.met()
    assert saved_updates(tmp_path / "run")[-1] == 3
    assert run(tmp_path / "run", *given) == 0
    assert_same(tmp_path / "run", reference("colocated"))


@pytest.mark.thorough
def test_a_run_on_this_machine_alone_listens_on_loopback_and_ctrl_c_reaches_the_driver_alone(forks, tmp_path):
    """A terminal sends it to all processes of a group, and nothing is left behind."""
    given = [*SEEING, *ADAPTER, "runtime=ray", *RANKS, *WORKER, "pools.reward.processes=1"]
    given += [f"ray.init.runtime_env={forks.environment}"]
    command = [sys.executable, "-m", "burnish", "train", "vlm_quickstart", *given, f"output_dir={tmp_path / 'run'}"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE, start_new_session=True
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    with watched(process.pid, forks.process.pid) as seen:
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < 2:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        below = descendants(process.pid)
        for pid in [process.pid, *below]:
            if Path(f"/proc/{pid}").exists() and os.getpgid(pid) == os.getpgid(process.pid):
                os.kill(pid, signal.SIGINT)
        _, err = process.communicate(timeout=SLOW)
    assert process.returncode == STOPPED, err
    assert gone(*below, within=120.0)
    assert "Traceback" not in err
    assert len(seen()) > 10  # Ray's own, two stores, and the members of two groups
    assert reached_from_outside(seen()) == []


BEHEADED = """
import os, signal, time
from pathlib import Path
from burnish.options.cluster import PoolsOptions, RayOptions
from burnish.runtime.cluster import cluster
from tests.support.sockets import descendants
with cluster(RayOptions(address="local"), PoolsOptions()):
    below = descendants(os.getpid())
    print(os.environ.get('RAY_COLOR_PREFIX'), *below, flush=True)
    (head,) = [pid for pid in below if "gcs_server" in Path(f"/proc/{pid}/cmdline").read_text().partition(chr(0))[0]]
    os.kill(head, signal.SIGKILL)
    time.sleep(600)
"""


@pytest.mark.thorough  # Ray gives a lost head a minute
def test_without_its_head_a_run_ends_soon_and_says_why():
    said = subprocess.run([sys.executable, "-c", BEHEADED], cwd=HERE, capture_output=True, text=True, timeout=600)
    assert said.returncode == 1
    assert "is gone: [Errno 111] Connection refused" in said.stderr
    assert "resume from the newest checkpoint" in said.stderr
    coloured, *below = said.stdout.split()
    assert coloured == "0"  # it does not write to a terminal
    assert gone(*map(int, below), within=120.0)


@pytest.mark.thorough
def test_nobody_answers_at_a_wrong_address(tmp_path):
    run_at = [sys.executable, "-m", "burnish", "train", "vlm_quickstart", *SEEING, "runtime=ray"]
    said = subprocess.run(
        [*run_at, "ray.address=127.0.0.1:1", f"output_dir={tmp_path / 'run'}"],
        cwd=HERE, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert said.returncode == 2
    assert "no Ray cluster at 127.0.0.1:1" in " ".join(said.stderr.split())
    assert not (tmp_path / "run").exists()
