"""A run that is asked to stop while it samples, of either task: it goes on to the numbers of one that never was."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from burnish.commands.train import train
from burnish.config import load
from burnish.hooks.stop import EXIT_STOPPED
from burnish.session import Session
from tests.factory import tiny_pipeline
from tests.system.runs import last_state, metrics_of
from tests.tiny_language import tiny_language

REWARD = "def odd(responses, prompts):\n    return [sum(map(ord, one.text)) % 11 / 10 for one in responses]\n"
STEPS = 3
SHARED = {
    "scoring": {"processes": 0},
    "checkpoint": {"every": 2},
    "validation": {"every": 0, "n": 1, "max_prompts": 1},
    "steps": STEPS,
}


@pytest.fixture(scope="module", params=["flow", "language", "dialogue"])
def recipe(request, tmp_path_factory):
    """A recipe, with adapters that are folded into the weights while samples are made."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "flow":
        (folder / "prompts.txt").write_text("a cat\ntwo dogs\nthree\n")
        tree = {
            "model": {"path": str(tiny_pipeline(folder, vae=False)), "device": "cpu", "lora": {"rank": 2}},
            "data": {"train_files": str(folder / "prompts.txt"), "train_batch_size": 2},
            "algorithm": {"name": "flow_grpo"},
            "rewards": {"jpeg_compressibility": {}},
            "rollout": {"n": 2, "num_inference_steps": 4, "max_sequence_length": 3, "batch_size": 2},
        }
    else:
        (folder / "rewards.py").write_text(REWARD)
        lines = [json.dumps({"prompt": text}) + "\n" for text in ("What?", "Which?", "Who?")]
        (folder / "questions.jsonl").write_text("".join(lines))
        tiny_language(folder / "llama", "llama")
        tree = {
            "task": "image-text-to-text",
            "model": {"path": str(folder / "llama"), "device": "cpu", "lora": {"rank": 2}},
            "data": {"train_files": str(folder / "questions.jsonl"), "train_batch_size": 2},
            "algorithm": {"name": "grpo"},
            "rewards": {"odd": {"name": "function", "path": f"{folder / 'rewards.py'}:odd"}},
            "rollout": {"n": 2, "max_new_tokens": 3, "min_new_tokens": 3, "batch_size": 2},
        }
        if request.param == "dialogue":
            tree["environment"] = {
                "name": "function",
                "path": "tests.environments.games:Show",
                "arguments": {"opening": False, "pictures": False, "fails": "", "turns": 2},
                "max_turns": 2,
            }
    (folder / "recipe.yaml").write_text(json.dumps(tree | SHARED))
    return folder


@pytest.fixture(scope="module")
def whole(recipe):
    """The run that nobody stops, and how often it asked whether it should."""
    asked = 0
    ask = Session.between

    def counting(self: Session) -> None:
        nonlocal asked
        asked += 1
        ask(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "between", counting)
        assert start(recipe, recipe / "whole") == 0
    return recipe / "whole", asked


def start(recipe: Path, output: Path, *more: str) -> int:
    return train(load(str(recipe / "recipe.yaml"), [f"output_dir={output}", *more]))


def stopped_at(place: int, patch: pytest.MonkeyPatch) -> None:
    """SIGTERM comes when the run asks for the so-manieth time."""
    ask, asked = Session.between, 0

    def counting(self: Session) -> None:
        nonlocal asked
        asked += 1
        if asked == place:
            os.kill(os.getpid(), signal.SIGTERM)
        ask(self)

    patch.setattr(Session, "between", counting)


@pytest.mark.parametrize("part", [0.0, 0.4, 0.99], ids=["first", "middle", "last"])
def test_samples_are_given_up_at_once_and_made_again(recipe, whole, part, tmp_path, capsys):
    expected, asked = whole
    assert asked >= 3 * STEPS
    place = 1 + int(part * asked)
    with pytest.MonkeyPatch.context() as patch:
        stopped_at(place, patch)
        assert start(recipe, tmp_path / "run") == EXIT_STOPPED
    done = len(metrics_of(tmp_path / "run")) - 1
    assert done == (place - 1) * STEPS // asked, "the update whose samples were being made has not happened"
    assert f"Stopped by SIGTERM after {done} of {STEPS} updates" in " ".join(capsys.readouterr().out.split())
    saved = [path.name for path in (tmp_path / "run").glob("checkpoints/0*")]
    assert (f"{done:08d}" in saved) == (done > 0)
    assert start(recipe, tmp_path / "run") == 0
    assert metrics_of(tmp_path / "run") == metrics_of(expected)
    assert last_state(tmp_path / "run") == last_state(expected)


def test_a_machine_that_is_taken_away_too_soon(recipe, tmp_path, capsys):
    soon = ["trainer.expires_at=2999-01-31T18:00:00Z", "trainer.expiry_margin=1e12"]
    assert start(recipe, tmp_path / "run", *soon) == EXIT_STOPPED
    said = " ".join(capsys.readouterr().out.split())
    assert "Stopped by the machine's expiry at 2999-01-31 18:00:00 UTC (trainer.expires_at) after 0 of 3" in said
    late = ["trainer.expires_at=2999-01-31T18:00:00Z", "checkpoint.every=9", "checkpoint.keep_last=9"]
    assert start(recipe, tmp_path / "run", *late) == 0
    saved = sorted(path.name for path in (tmp_path / "run").glob("checkpoints/0*"))
    assert saved == ["00000001", "00000003"], "the first one tells how long saving takes"


def test_saving_meanwhile_changes_nothing(recipe, whole, tmp_path):
    expected, _ = whole
    assert start(recipe, tmp_path / "run", "checkpoint.asynchronous=true", "checkpoint.every=1") == 0
    assert metrics_of(tmp_path / "run") == metrics_of(expected)
    assert last_state(tmp_path / "run") == last_state(expected)
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert saved == ["00000002", "00000003"]
