"""burnish init: a recipe from answers, which is composed and fits, or is not written at all."""

import pytest

from burnish.config import load
from tests.support.tiny_run import burnish


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["24GB", pytest.param("0.1GB", marks=pytest.mark.thorough)])
def test_a_recipe_of_answers_fits_or_is_not_written(memory, tmp_path, monkeypatch):
    (tmp_path / "prompts.txt").write_text("the number 1\nthe number 2\n")
    answers = ["burnish:quickstart/model", "", tmp_path / "prompts.txt", "", "jpeg_compressibility", "", memory]
    monkeypatch.setattr("builtins.input", lambda question: str(answers.pop(0)))
    place = tmp_path / "mine.yaml"
    if memory == "0.1GB":
        assert "nothing makes it fit" in burnish("init", place, status=2).message
        assert not place.exists()
        return
    assert f"burnish train {place} gpus=1" in burnish("init", place).out
    config = load(str(place))
    assert [name for name, reward in config.rewards.items() if reward.counts] == ["jpeg_compressibility"]
    assert (config.model.path, config.data.val_files) == ("burnish:quickstart/model", None)
    assert "mine.yaml" in burnish("init", place, status=2).message, "nothing is replaced"
