"""The quickstart learns, by both algorithms, and keeps its pictures clean."""

from __future__ import annotations

import json

import pytest

from burnish.cli import main

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("algorithm", "steps", "gain"), [("diffusion_nft", 14, 0.1), ("flow_grpo", 20, 0.08)])
def test_the_quickstart_learns_to_write(tmp_path, algorithm, steps, gain):
    overrides = [f"algorithm={algorithm}", f"steps={steps}", "validation.every=0", "validation.n=3",
                 "validation.reference_guidance=null",
        "optimizer.schedule=constant", f"output_dir={tmp_path / 'run'}"]  # fmt: skip
    assert main(["train", "quickstart", *overrides]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    before, after = lines[0], lines[-1]
    exact = "val-aux/default/ocr_exact/mean@3"
    assert 0.3 <= before[exact] <= 0.6
    assert after[exact] >= before[exact] + gain
    assert after["val-core/default/reward/mean@3"] > before["val-core/default/reward/mean@3"]
    assert after["val-aux/default/border_darkness/mean@3"] < 0.01
    assert (tmp_path / "run" / "report.html").stat().st_size > 20_000
