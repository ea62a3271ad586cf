from __future__ import annotations

import json
from importlib.machinery import ModuleSpec

import pytest

from burnish.cli import main
from burnish.models.tiny import ALL, build
from burnish.models.tiny.language import LANGUAGE


def test_writes_a_pipeline_and_says_how_it_is_used(tmp_path, capsys):
    folder = tmp_path / "wan"
    assert main(["tiny", "wan2.2", str(folder)]) == 0
    index = json.loads((folder / "model_index.json").read_text())
    assert index["_class_name"] == "WanPipeline"
    assert index["transformer_2"] == ["diffusers", "WanTransformer3DModel"]
    told = capsys.readouterr().out
    assert "a video of 5 frames of 32 x 32 pixels in 2 steps" in told
    assert f"model.path={folder} rollout.height=32 rollout.width=32 rollout.num_frames=5" in told


def test_writes_a_language_model_and_says_how_it_is_used(tmp_path, capsys):
    folder = tmp_path / "qwen"
    assert main(["tiny", "qwen3_vl", str(folder)]) == 0
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3_vl"
    told = capsys.readouterr().out
    assert f"{folder} is a Qwen3VLForConditionalGeneration" in told
    assert "read prompts with a picture, a video in" in told
    assert f"In a recipe: model.path={folder}" in told
    assert main(["tiny", "llama", str(folder)]) == 2
    assert main(["tiny", "llama", str(folder), "--force"]) == 0
    assert not (folder / "processor_config.json").exists()
    # its processor takes pictures or a video, and drops the pictures of a prompt with both
    assert main(["tiny", "smolvlm", str(folder), "--force"]) == 0


def test_says_what_else_the_call_takes(tmp_path, capsys):
    assert main(["tiny", "FluxKontextPipeline", str(tmp_path / "kontext")]) == 0
    assert "Its prompts bring image." in capsys.readouterr().out


def test_the_same_seed_writes_the_same_weights(tmp_path):
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))
    for folder, seed in ((first, 5), (again, 5), (other, 6)):
        assert main(["tiny", "sana", str(folder), "--seed", str(seed)]) == 0
    weights = [
        (folder / "transformer" / "diffusion_pytorch_model.safetensors").read_bytes()
        for folder in (first, again, other)
    ]
    assert weights[0] == weights[1] != weights[2]


def test_replaces_a_pipeline_only_when_told(tmp_path, capsys):
    folder = str(tmp_path / "model")
    assert main(["tiny", "sana", folder]) == 0
    assert main(["tiny", "flux", folder]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["tiny", "flux", folder, "--force"]) == 0
    assert json.loads((tmp_path / "model" / "model_index.json").read_text())["_class_name"] == "FluxPipeline"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_never_replaces_what_is_no_pipeline(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main(["tiny", "flux", str(tmp_path), "--force"]) == 2
    assert "DIR" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").exists()


def test_lists_every_name(capsys):
    assert main(["tiny", "--list"]) == 0
    told = capsys.readouterr().out
    assert all(one.name in told for one in (*ALL, *LANGUAGE))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["wan2.2"], "takes a name and a folder"),
        (["wan", "one", "two"], "unrecognized arguments"),
        (["stable-difusion", "folder"], "did you mean"),
        (["flux", "folder", "--seed", "-1"], "--seed"),
    ],
)
def test_refuses(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tiny", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_names_a_package_that_is_missing(tmp_path, monkeypatch, capsys):
    def absent(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(build, "find_spec", absent)
    assert main(["tiny", "wan-vace", str(tmp_path / "model")]) == 2
    assert "pip install ftfy" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
