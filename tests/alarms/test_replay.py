"""The metrics of thirteen recorded runs: five spoiled ones are named by the rules of now, and honest ones are not.

They were recorded by ``python -m benchmarks.alarms --record tests/alarms/recorded.json``.
"""

import json
import sys
from pathlib import Path

from benchmarks import alarms


def test_spoiled_runs_are_named_before_half_of_the_gain_and_honest_ones_are_not(tmp_path, monkeypatch):
    recorded = json.loads(Path(__file__).with_name("recorded.json").read_text())
    assert recorded.keys() == alarms.RUNS.keys()
    for name, columns in recorded.items():
        (tmp_path / name).mkdir()
        lines = [json.dumps(row) + "\n" for row in alarms.rows_of(columns)]
        (tmp_path / name / "metrics.jsonl").write_text("".join(lines))
    found = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["alarms", "--replay", "--runs", str(tmp_path), "--output", str(found)])
    assert alarms.main() == 0
    outcomes = {one["run"]: one for one in json.loads(found.read_text())}
    for name in ("dark", "checkerboard"):
        rewards, first = recorded[name][alarms.REWARD], outcomes[name]["alarms"][0]
        assert rewards[first["update"] - 1] < (rewards[0] + rewards[-1]) / 2
