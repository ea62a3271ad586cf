"""Runs whose rewards fail, whose service is killed, whose folder is taken, or whose disk is full."""

import json
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.disks import small_disk
from tests.support.http_servers import json_server, listing
from tests.support.reward_service import Started
from tests.support.tiny_run import TinyRun, burnish


def run_of(files: Path, name: str, *more: str) -> TinyRun:
    return TinyRun(files, "generators", "flux", "algorithm=flow_grpo", "rollout.n=2", *more, name=f"rewards/{name}")


def mine(name: str, **arguments: object) -> str:
    about = {"name": "function", "path": f"tests.support.bad_rewards:{name}", "arguments": arguments}
    return f"rewards.mine={json.dumps(about)}"


def test_a_reward_that_gives_up_ends_the_run_and_locks_nothing(files, tmp_path, caplog):
    run = run_of(files, "tires", "checkpoint.every=20")
    said = run.train("steps=6", mine("tires", folder=str(tmp_path)), status=2).message
    for words in ("trainer.max_skipped_updates=3", "mine: RuntimeError: tired", "prompts.txt:"):
        assert words in said
    assert caplog.text.count("Traceback (most recent call last)") == 1
    kept = [json.loads(line) for line in (run.output / "failures.jsonl").read_text().splitlines()]
    assert {line["update"] for line in kept} == {1, 2, 3, 4}
    assert all("RuntimeError: tired" in line["traceback"] for line in kept)
    assert "lower optimizer" not in (run.output / "report.md").read_text()
    assert not list(run.output.glob("checkpoints/0*"))


def test_what_nothing_could_be_judged_of_is_no_success(files, tmp_path):
    said = run_of(files, "nan", mine("gives_nan")).train("steps=2", status=2).message
    assert "all updates have no training signal" in said
    assert "nan" in said
    run = run_of(files, "judged", mine("raises"))
    said = burnish("eval", run.recipe, *run.options[:1], mine("raises"), "-o", tmp_path / "judged", status=2).message
    assert "every reward is missing" in said
    assert json.loads((tmp_path / "judged" / "metrics.json").read_text())["val-aux/missing"] == 1


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_a_full_disk_ends_in_one_message_and_the_run_goes_on_where_there_is_room(files, tmp_path, asynchronous):
    with small_disk(tmp_path / "disk", size="1500k") as disk:
        more = [f"checkpoint={{every: 1, keep_last: 99, asynchronous: {asynchronous}}}", "validation.every=0"]
        run = run_of(files, f"disk-{asynchronous}", *more, "model.lora=null", "steps=6")
        run.options[-1] = f"output_dir={disk / 'run'}"
        said = run.train(status=2).message
        assert "Traceback" not in said
        assert f"no space is left for {disk / 'run' / 'checkpoints'}" in said
        saved = sorted(path.name for path in (disk / "run" / "checkpoints").iterdir())
        assert saved, "the disk is too small for a single one"
        assert all(name.isdecimal() for name in saved), "nothing is left half done"
        assert f"{saved[-1]} is intact" in said
        subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
        run.train()
        shutil.move(disk / "run", run.output)
    assert [line["training/global_step"] for line in run.metrics] == list(range(7))


@pytest.mark.thorough
def test_a_service_that_is_killed_is_asked_again_and_what_stays_away_is_dropped_and_counted(files, tmp_path):
    names = ("jpeg_compressibility",)
    service, again, killed = Started(*names), list[Started](), list[int]()
    lines = [{"prompt": f"the number {n}", "answer": str(n), "data_source": "odd" if n % 2 else "even"} for n in (4, 5)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def back_later() -> None:
        time.sleep(0.5)
        again.append(Started(*names, port=service.port))  # the run's addresses do not change

    def judged(request: Any, count: int) -> tuple[int, Any]:
        """The judge is asked about every image; at the first of update 2 the service dies, and comes back."""
        metrics = run.output / "metrics.jsonl"
        if not killed and metrics.exists() and metrics.read_text().count("\n") >= 2:
            killed.append(count)
            service.kill()
            threading.Thread(target=back_later, daemon=True).start()
        return 200, listing({"Yes": 0.7, "No": 0.2999})

    def begin(name: str, judge: Any, *more: str) -> TinyRun:
        return run_of(
            files, name, f"data.train_files={tmp_path / 'prompts.jsonl'}",
            "checkpoint.every=1", "validation.every=0", "rewards.brightness.weight_by={even: 2.0}",
            f"rewards.judge={{name: judge_endpoint, url: '{judge.url}/v1', model: m, form: yes_no, weight: 0.2}}",
            *more,
        )  # fmt: skip

    served = f"rewards.served={{name: remote, url: '{service.url}', weight: 0.5, retries: 30, on_failure: drop_group, "
    with json_server(judged) as judge:
        run = begin("served", judge, served + "deadline: 20}")
        try:
            run.train()
        finally:
            for one in [service, *again]:
                one.kill()
        assert killed
        assert again
        rows = [row for row in run.metrics if "reward/served/failed" in row]
        assert len(rows) == 3
        for row in rows:
            assert {"critic/served/mean", "critic/judge/mean"} <= row.keys()
            assert row["reward/served/failed"] == row["reward/served/dropped"] == row["critic/missing_count"] == 0

        # a branch of it, with nobody there any more: what has no value is dropped with its group, and never zero
        newest = f"resume={run.output}/checkpoints/00000003"
        branch = begin("branch", judge, served + "deadline: 1}", newest, "steps=4", "scoring.probe=false")
        branch.train()
    row = branch.metrics[-1]
    assert row["reward/served/failed"] == row["reward/served/dropped"] == row["critic/missing_count"] == 4
    assert row["reward/brightness/failed"] == 0
    assert "critic/served/mean" not in row
    assert (branch.output / "failures.jsonl").exists()
