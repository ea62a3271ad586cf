"""The table of runs reads metrics line by line, however many there are."""

from __future__ import annotations

import json

from burnish.config.run_folder import STEP
from burnish.report.run_list import run_row


def test_a_run_with_more_metrics_than_fit_into_memory_is_listed(tmp_path):
    rows = [{STEP: update, "timing_s/step": 0.5} for update in range(1, 9)]
    rows[3]["val-core/x/reward/mean@4"] = 0.25
    (tmp_path / "config.yaml").write_text("steps: 9\n")
    with (tmp_path / "metrics.jsonl").open("wb") as file:
        file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows[:4]))
        for _ in range(300):  # above 256 MiB, without disk space
            file.seek(1 << 20, 1)
            file.write(b"\n")
        file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows[4:]) + b'{"half')
    row = run_row("mine", tmp_path)
    assert (row["updates"], row["seconds"], row["best"]) == (8, 4.0, {"update": 4, "reward": 0.25})
