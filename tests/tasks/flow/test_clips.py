"""From what an engine draws to rewards, metrics, validation folders and the report, for clips and sounds."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from burnish.config import load
from burnish.config.run_folder import RunFolder
from burnish.options import ScoringOptions
from burnish.registry import lookup
from burnish.report.samples import read_samples
from burnish.rewards.frames import FrameOptions
from burnish.rewards.scoring import Scorer
from burnish.tasks import assemble
from burnish.tasks.flow.evaluate import FlowEvaluation
from burnish.training.ranks import SINGLE_RANK
from burnish.training.sharding import Shards
from burnish.types.clips import Clip, Sample
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from tests.support.clips import brightness_of_clips, moving_square, tone
from tests.support.drawing import noise

PROMPTS = [
    Prompt(text="moves right", images=(Media.array(noise(0)),), inputs=(("mask_image", Media.array(noise(1))),)),
    Prompt(text="stands still"),
]
NOTHING = SimpleNamespace(num_inference_steps=None, guidance_scale=None, solver="euler", height=None, width=None)


def evaluation(draw: Callable[[int], Sample], rewards: dict[str, Any]) -> FlowEvaluation:
    """Of two prompts, with an engine that takes two rows at a time."""

    def sample(job):
        for start in range(0, len(job.prompts), 2):
            yield slice(start, start + 2), None, [draw(i) for i in range(start, start + 2)]

    assembly = SimpleNamespace(
        ranks=SINGLE_RANK,
        roles=SimpleNamespace(shards=Shards()),
        val_prompts=PROMPTS,
        check_cancelled=lambda: None,
        config=SimpleNamespace(validation=NOTHING, output_dir="elsewhere"),
        engine=SimpleNamespace(sample=sample),
        tell=lambda done, whole: None,
        scorer=Scorer(rewards, ScoringOptions(processes=0)),
        normaliser=None,
        validation_files=None,
    )
    return FlowEvaluation(assembly)


def test_clips_are_scored_written_measured_and_read_again(tmp_path: Path):
    path = f"{brightness_of_clips.__module__}:{brightness_of_clips.__name__}"
    rewards = {
        "dark": lookup("flow reward", "border_darkness")(frames=FrameOptions(every=2)),
        "whole": lookup("flow reward", "function")(path=path, weight=0.0),
    }
    clips = [moving_square(6, sound=i == 0) for i in range(3)] + [Clip(frames=moving_square(6).frames // 2, fps=4)]
    target = RunFolder(tmp_path).validation(3)
    metrics = evaluation(clips.__getitem__, rewards)(target, n=2)
    assert metrics["val-aux/default/whole/mean@2"] == pytest.approx(
        np.mean([clip.frames.mean() + (clip.sound.samples.mean() if clip.sound else 0) for clip in clips])
    )
    assert metrics["val-aux/variety"] > 0
    names = {path.name for path in (target / "pictures").iterdir()}
    assert names == {f"00{row}-0{n}.mp4" for row in (0, 1) for n in (0, 1)} | {
        "000-input-0.png", "000-input-mask_image.png"
    }  # fmt: skip
    assert (target / "grid.png").is_file()
    kept = read_samples(target)
    assert [sample.picture.name for sample in kept.values()] == ["000-00.mp4", "000-01.mp4", "001-00.mp4", "001-01.mp4"]
    assert [len(sample.shown) for sample in kept.values()] == [2, 2, 0, 0]
    assert all(sample.reward is not None for sample in kept.values())


def test_a_clip_with_values_that_are_not_finite_is_shown_and_not_scored(tmp_path: Path):
    rewards = {"dark": lookup("flow reward", "border_darkness")()}
    clips = [moving_square(4, finite=i > 0) for i in range(4)]
    metrics = evaluation(clips.__getitem__, rewards)(tmp_path / "v", n=2)
    first, *others = map(json.loads, (tmp_path / "v" / "samples.jsonl").read_text().splitlines())
    assert (first["reward"], first["note"]) == (None, "the clip has non-finite values")
    assert all(other["reward"] is not None for other in others)
    assert metrics["val-aux/missing"] == 0.25
    assert metrics["val-aux/num_samples"] == 4


def test_sounds_too(tmp_path: Path):
    path = "tests.tasks.flow.test_clips:loudness"
    metrics = evaluation(lambda i: tone(0.5 + i / 4), {"loud": lookup("flow reward", "function")(path=path)})(
        tmp_path / "v", n=1
    )
    assert metrics["val-core/default/reward/mean@1"] > 0
    assert (tmp_path / "v" / "pictures" / "001-00.wav").is_file()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("rewards.ocr.frames={every: 2}", r"rewards.ocr: frames is given, but the model draws images"),
        ("rewards.motion.weight=1", r"rewards.motion: motion scores clips, but the model draws images"),
    ],
)
def test_rewards_that_can_not_score_what_the_model_draws_are_refused_with_the_data(given: str, said: str):
    with pytest.raises(UserError, match=said):
        assemble(load("quickstart", ["scoring.processes=0", given])).check_data()


def loudness(samples, prompts):
    """Root mean square of sounds."""
    return [float(np.sqrt(np.square(sample.samples).mean())) for sample in samples]
