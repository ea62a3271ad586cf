"""What sample and eval refuse before anything is made."""

from __future__ import annotations

import pytest

from burnish.cli import main


@pytest.mark.parametrize("given", ["rollout.guidance_scale=4", "model.lora=null"])
def test_an_option_of_a_recipe_is_no_prompt(given, tmp_path, capsys):
    assert main(["sample", "quickstart", "the number 472", given, "--output", str(tmp_path / "out")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"'{given}' is an option of a recipe" in said
    assert "--prompt-file" in said
    assert not (tmp_path / "out").exists()


def test_a_response_beyond_the_positions_of_the_model_is_refused_by_eval(capsys):
    assert main(["eval", "vlm_quickstart", "rollout.max_new_tokens=5000", "model.device=cpu"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "rollout.max_new_tokens is 5000, but the model has 2048 positions" in said
    assert "lower rollout.max_new_tokens to 20" in said
