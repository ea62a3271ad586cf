"""The quickstarts learn: one keeps its pictures clean, the other learns nothing from rewards of other responses."""

from __future__ import annotations

import json

import pytest

from burnish.cli import main

pytestmark = pytest.mark.slow


FLOW_GRPO = pytest.param("flow_grpo", 20, 0.08, marks=pytest.mark.thorough)


@pytest.mark.parametrize(("algorithm", "steps", "gain"), [("diffusion_nft", 14, 0.1), FLOW_GRPO])
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


def test_the_report_of_the_video_quickstart_plays_its_clips(tmp_path):
    overrides = [
        "steps=2", "data.train_batch_size=2", "rollout.n=4", "rollout.batch_size=8", "validation.n=2",
        "validation.max_prompts=2", "validation.reference_guidance=null", f"output_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    assert main(["train", "video_quickstart", *overrides]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for line in (lines[0], lines[-1]):
        assert line["val-aux/default/motion/mean@2"] > 0.6
        assert line["val-aux/default/border_darkness/mean@2"] < 0.01
    assert lines[-1]["actor/grad_norm"] > 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert page.count("<video") == page.count('src="data:video/mp4;base64,') > 0


SHUFFLED = """import re

TAGGED = re.compile("<answer>(.*?)</answer>", re.DOTALL)


def shuffled(responses, prompts):
    found = [TAGGED.search(one.text) for one in responses]
    right = [float(bool(one) and one[1] == prompt.answer) for one, prompt in zip(found, prompts)]
    return right[len(right) // 2 :] + right[: len(right) // 2]
"""


def accuracy(line: dict[str, float]) -> float:
    """Share of right answers in the right form, over all kinds of questions."""
    found = [value for name, value in line.items() if name.startswith("val-aux/") and name.endswith("/exact/mean@2")]
    assert len(found) == 3
    return sum(found) / 3


@pytest.mark.parametrize(
    ("algorithm", "steps", "least"), [("grpo", 24, 0.7), pytest.param("ppo", 14, 0.65, marks=pytest.mark.thorough)]
)
def test_the_second_quickstart_learns_to_reason(tmp_path, algorithm, steps, least):
    overrides = [f"algorithm={algorithm}", f"steps={steps}", "validation.every=0", "validation.n=2",
                 f"output_dir={tmp_path / 'run'}"]  # fmt: skip
    assert main(["train", "vlm_quickstart", *overrides]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert 0.4 <= accuracy(lines[0]) <= 0.6
    assert accuracy(lines[-1]) >= least
    assert (tmp_path / "run" / "report.html").stat().st_size > 20_000


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_second_quickstart_learns_to_see(tmp_path, seed):
    assert main(["train", "vlm_quickstart_turned", f"seed={seed}", f"output_dir={tmp_path / 'run'}"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    in_form = [line[name] for line in lines if (name := "val-aux/turned/exact_given_format/mean@4") in line]
    assert 0.3 <= in_form[0] <= 0.5
    assert in_form[-1] >= 0.65


@pytest.mark.thorough
def test_rewards_of_other_responses_teach_nothing(tmp_path):
    (tmp_path / "control.py").write_text(SHUFFLED)
    overrides = ["algorithm=grpo", "steps=24", "validation.every=0", "validation.n=2", "rewards.format=null",
                 "rewards.exact.weight=0", f"output_dir={tmp_path / 'run'}",
                 "scoring.processes=0",  # it gets all responses of an update at once
                 f"rewards.shuffled={{name: function, path: '{tmp_path / 'control.py'}:shuffled'}}"]  # fmt: skip
    assert main(["train", "vlm_quickstart", *overrides]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert accuracy(lines[-1]) < 0.68  # chance moves it; what the true rewards reach lies above
