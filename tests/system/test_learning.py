"""Runs learn what their rewards pay for, and alarms name what a bad one really pays."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.shown import ROOT, blocks
from tests.support.tiny_run import burnish

pytestmark = pytest.mark.slow

PARTIAL = ["runtime=ray", "pools.rollout.processes=1", "async_rollout={depth: 1, partial: 4}"]
SPOILED = ROOT / "benchmarks" / "spoiled_rewards.py"


def trained(recipe: str, output: Path, *options: str) -> list[dict[str, Any]]:
    burnish("train", recipe, *options, f"output_dir={output}")
    assert (output / "report.html").stat().st_size > 20_000
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.thorough
@pytest.mark.parametrize(("algorithm", "steps", "gain"), [("diffusion_nft", 14, 0.1), ("flow_grpo", 20, 0.08)])
def test_the_quickstart_learns_to_write(tmp_path, algorithm, steps, gain):
    lines = trained(
        "quickstart", tmp_path / "run", f"algorithm={algorithm}", f"steps={steps}", "validation.every=0",
        "validation.n=3", "validation.reference_guidance=null", "optimizer.schedule=constant",
    )  # fmt: skip
    before, after = lines[0], lines[-1]
    exact = "val-aux/default/ocr_exact/mean@3"
    assert 0.3 <= before[exact] <= 0.6
    assert after[exact] >= before[exact] + gain
    assert after["val-core/default/reward/mean@3"] > before["val-core/default/reward/mean@3"]
    assert after["val-aux/default/border_darkness/mean@3"] < 0.01


def accuracy(line: dict[str, float]) -> float:
    """Share of right answers in the right form, over all kinds of questions."""
    found = [value for name, value in line.items() if name.startswith("val-aux/") and name.endswith("/exact/mean@2")]
    assert len(found) == 3
    return sum(found) / 3


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "steps", "least"), [
    (["algorithm=grpo"], 24, 0.7), (["algorithm=ppo"], 14, 0.65), (["algorithm=grpo", *PARTIAL], 24, 0.7),
])  # fmt: skip
def test_the_second_quickstart_learns_to_reason(tmp_path, options, steps, least):
    often = ["validation.every=0", "validation.n=2"]
    lines = trained("vlm_quickstart", tmp_path / "run", *options, f"steps={steps}", *often)
    assert 0.4 <= accuracy(lines[0]) <= 0.6
    assert accuracy(lines[-1]) >= least


@pytest.mark.thorough
def test_the_second_quickstart_learns_to_see(tmp_path):
    lines = trained("vlm_quickstart_turned", tmp_path / "run")
    in_form = [line[name] for line in lines if (name := "val-aux/turned/exact_given_format/mean@4") in line]
    assert 0.3 <= in_form[0] <= 0.5
    assert in_form[-1] >= 0.65


def alarmed(caplog, name: str) -> str:
    (text,) = [r.getMessage() for r in caplog.records if name in r.getMessage() and ": alarm " in r.getMessage()]
    return text


def words_of(alarm: str) -> list[str]:
    """An alarm without its numbers and responses, as far as the page shows it."""
    return re.sub(r'"[^"]*"|[-\d.]+', "#", alarm).partition("); see")[0].split()


@pytest.mark.thorough
def test_empty_answers_that_please_a_broken_scorer_are_noticed(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        trained(
            "vlm_quickstart", tmp_path / "run", "rewards.format.weight=0", "rewards.exact.weight=0",
            f"rewards.little_said={{name: function, path: {SPOILED}:little_said}}", "steps=8",
            "optimizer.schedule_updates=40", "validation.before=false", "validation.every=null",
            "scoring.processes=0",
        )  # fmt: skip
    length = alarmed(caplog, "response_length fell")
    assert "the reward pays for it" in length
    (shown,) = [block.text for block in blocks(ROOT / "docs" / "monitoring.md") if block.kind == "text"]
    assert words_of(shown) == words_of(length)
    assert "best rewarded at first: " in length
    (file,) = (tmp_path / "run").rglob("alarms.jsonl")
    (one,) = [line for line in map(json.loads, file.read_text().splitlines()) if line.get("name") == "response_length"]
    first, now = ([quote["response"] for quote in some] for some in one["quotes"])
    assert len(first) == len(now) == 8
    assert len("".join(now)) < len("".join(first))
