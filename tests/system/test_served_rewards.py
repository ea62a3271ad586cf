"""A run whose rewards are of every kind, one of them behind a service that is killed in its course and comes back."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from burnish.cli import main
from burnish.rewards.tiny import scorer_named
from tests.support.chat_server import listing
from tests.support.http_servers import json_server
from tests.support.reward_service import Started
from tests.support.runs import metrics_of
from tests.support.scorers import checkpoint

pytestmark = pytest.mark.slow


def prompts(folder: Path) -> Path:
    file = folder / "prompts.jsonl"
    lines = [
        {"prompt": f"the number {number}", "answer": str(number), "data_source": "odd" if number % 2 else "even"}
        for number in (472, 815, 186, 903)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def options(folder: Path, service: str, judge: str) -> list[str]:
    return [
        f"data.train_files={prompts(folder)}", "data.val_files=null", "data.train_batch_size=2", "rollout.n=2",
        "rollout.batch_size=4", "validation.every=0", "optimizer.schedule=constant",
        "steps=3", "checkpoint.every=1", "validation.n=1",
        "validation.max_prompts=1", "scoring.processes=2", f"output_dir={folder / 'run'}",
        "rewards.ocr.weight_by={even: 2.0}",
        f"rewards.pickscore={json.dumps({'weight': 0.1} | scorer_named('pickscore').given(checkpoint('pickscore')))}",
        f"rewards.served={{name: remote, url: '{service}', weight: 0.5, deadline: 20, retries: 30, "
        "on_failure: drop_group}",
        f"rewards.judge={{name: judge_endpoint, url: '{judge}/v1', model: m, form: yes_no, weight: 0.2}}",
    ]  # fmt: skip


def test_a_service_that_is_killed_is_asked_again_and_what_stays_away_is_dropped_and_counted(tmp_path, capsys, caplog):
    names = ("jpeg_compressibility",)
    service = Started(*names)
    again: list[Started] = []

    def back_later() -> None:
        time.sleep(0.5)
        # the same port: run's addresses do not change
        again.append(Started(*names, port=service.port))

    asked: list[int] = []

    def judged(request, count):
        """The judge is asked about every picture; at the first of update 2 the service dies, and comes back."""
        asked.append(count)
        update = len(metrics_of(tmp_path / "run")) if (tmp_path / "run" / "metrics.jsonl").exists() else 0
        if update >= 2 and not killed:
            killed.append(update)
            service.kill()
            threading.Thread(target=back_later, daemon=True).start()
        return 200, listing({"Yes": 0.7, "No": 0.2999})

    killed: list[int] = []
    with json_server(judged) as judge:
        try:
            code = main(["train", "quickstart", *options(tmp_path, service.url, judge.url)])
        finally:
            for one in [service, *again]:
                one.kill()
    rows = [row for row in metrics_of(tmp_path / "run") if "reward/served/failed" in row]
    assert code == 0, capsys.readouterr().err
    assert killed
    assert again
    assert len(rows) == 3
    for row in rows:
        assert {"critic/ocr/mean", "critic/pickscore/mean", "critic/served/mean", "critic/judge/mean"} <= row.keys()
        assert (row["reward/served/failed"], row["reward/served/dropped"], row["critic/missing_count"]) == (0, 0, 0)

    # a branch of it, with nobody there any more: what has no value is dropped with its group, counted, and never zero
    with json_server(judged) as judge:
        further = [
            one.replace("deadline: 20", "deadline: 2").replace("steps=3", "steps=4").replace("/run", "/branch")
            for one in options(tmp_path, service.url, judge.url)
        ]
        code = main(
            ["train", "quickstart", *further, f"resume={tmp_path}/run/checkpoints/00000003", "scoring.probe=false"]
        )
    assert code == 0, capsys.readouterr().err
    row = metrics_of(tmp_path / "branch")[-1]
    assert row["reward/served/failed"] == row["reward/served/dropped"] == row["critic/missing_count"] == 4
    assert row["reward/ocr/failed"] == 0
    assert "critic/served/mean" not in row
    assert os.path.exists(tmp_path / "branch" / "failures.jsonl")
