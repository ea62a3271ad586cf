"""burnish check-reward: what it says of scorers that are right, and that it finds what is wrong."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from burnish.cli import main
from burnish.rewards import originals
from burnish.rewards.tiny import scorer_named
from tests.support.scorers import checkpoint

MINE = ("pickscore", "clip", "siglip", "siglip2", "hpsv2", "imagereward", "aesthetic", "image_similarity")


def arguments(name, folder=None):
    folder = folder or checkpoint(name)
    given = scorer_named(name).given(folder)
    own = [f"{option}={value}" for option, value in given.items() if option not in ("path", "tokenizer")]
    return ["check-reward", name, "--weights", str(folder), *own]


@pytest.mark.parametrize("name", MINE)
def test_a_scorer_that_is_right_passes(name, capsys):
    assert main(arguments(name)) == 0
    told = capsys.readouterr().out
    assert "ok   values: all are finite" in told
    assert "ok   gradients" in told
    assert "Nothing is wrong with it." in told
    if name in ("pickscore", "clip", "siglip", "siglip2"):
        assert "ok   original: transformers, called as the model's card does: differs by" in told
    else:
        assert "info original: not compared: " in told
    assert ("README of THUDM/ImageReward" in told) == (name == "imagereward")


def test_wrong_pixels_are_found(monkeypatch, capsys):
    plain = torch.nn.functional.interpolate
    monkeypatch.setattr(torch.nn.functional, "interpolate", lambda *a, antialias, **k: plain(*a, **k))
    assert main(arguments("clip")) == 1
    told = capsys.readouterr().out
    assert "fail gradients: the score with gradients differs by" in told
    assert "1 of" in told


def test_another_value_than_the_original_s_is_found(monkeypatch, capsys):
    from burnish.rewards.images.clip_scores import ClipScore

    monkeypatch.setattr(ClipScore, "words", lambda self, text: text.upper()[:5])
    real = originals._contrastive

    def theirs(reward, images, texts):
        monkeypatch.undo()
        return real(reward, images, texts)

    monkeypatch.setattr(originals, "_contrastive", theirs)
    assert main(arguments("clip")) == 1
    assert "fail original" in capsys.readouterr().out


def test_a_scorer_that_does_not_look_is_found(tmp_path, capsys):
    folder = shutil.copytree(checkpoint("imagereward"), tmp_path / "blind")
    weights = torch.load(folder / "ImageReward.pt", weights_only=True)
    blind = {name: value * 0 if "crossattention.output.dense" in name else value for name, value in weights.items()}
    torch.save(blind, folder / "ImageReward.pt")
    assert main(arguments("imagereward", folder)) == 1
    told = capsys.readouterr().out
    assert "fail pictures: change it by 0 or more for a prompt" in told


def test_a_card_s_numbers_are_compared_with_its_pictures(tmp_path, monkeypatch, capsys):
    card = originals.PUBLISHED["imagereward"]
    for i, name in enumerate(card.values):
        Image.fromarray(np.full((40, 40, 3), 50 * i, np.uint8)).save(tmp_path / name)
    assert main([*arguments("imagereward"), "--pictures", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "fail numbers: README of THUDM/ImageReward" in told, "its weights are random"
    assert card.prompt.split()[-1] in told


def test_a_package_that_can_t_be_imported_is_said_to_be(monkeypatch, capsys):
    monkeypatch.setattr(originals, "find_spec", lambda name: object())
    assert main(arguments("hpsv2")) == 0
    assert "not compared: open_clip can't be imported here: No module named 'open_clip'" in capsys.readouterr().out


def test_a_reward_without_weights_is_tried_too(capsys):
    assert main(["check-reward", "jpeg_compressibility"]) == 0
    assert "no other code is known for jpeg_compressibility" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["pickscor"], "did you mean pickscore"),
        (["clip", "scale=x3"], "rewards.clip.scale is x3"),
        (["clip", "scale"], "it has no '='"),
        (["clip", "--weights", "nowhere"], "path of reward clip: nowhere does not exist"),
        (["clip", "--pictures", "nowhere"], "--pictures is nowhere, which is no folder with pictures"),
        (["jpeg_compressibility", "--weights", "x"], "rewards.jpeg_compressibility.path"),
    ],
)
def test_what_is_refused(given, said, capsys):
    options = [] if "--weights" in given or given[0] != "clip" else ["--weights", str(checkpoint("clip"))]
    assert main(["check-reward", *given, *options]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_scorer_that_compares_pictures_is_not_asked_about_one_alone(capsys):
    assert main(arguments("image_variety")) == 0
    told = capsys.readouterr().out
    assert "ok   pictures: change it by" in told
    assert "info batches: not looked at: it compares groups, and none is alone" in told


@pytest.mark.parametrize("name", MINE)
def test_tiny_writes_them(name, tmp_path, capsys):
    folder = tmp_path / name
    assert main(["tiny", name, str(folder)]) == 0
    told = capsys.readouterr().out
    assert f"is a checkpoint of reward {name} with random weights" in told
    assert f"rewards.{name}.path={folder}" in told
    assert main(["tiny", name, str(folder)]) == 2
    assert main(["tiny", name, str(folder), "--force", "--seed", "1"]) == 0


def test_a_misspelt_scorer_is_suggested(tmp_path, capsys):
    assert main(["tiny", "pickscor", str(tmp_path / "x")]) == 2
    assert "did you mean pickscore?" in capsys.readouterr().err
