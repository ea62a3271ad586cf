"""The number of prompt tokens that a model states itself, in place of the recipe that draws with it."""

from __future__ import annotations

import json
import shutil

import pytest

from burnish.config import load
from burnish.models.flow.loading import LENGTH, load_model
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.options.flow import ModelOptions, RolloutOptions
from burnish.tasks import assemble
from burnish.utils.errors import UserError
from burnish.utils.paths import resolve


@pytest.mark.parametrize("name", ["sd3", "wan"])
def test_a_recipe_for_another_model_leaves_the_length_of_prompts_to_it(name, tmp_path):
    """The tiny model that ships with the quickstart reads none."""
    tiny = describe(name)
    write(tiny, tmp_path / "model", seed=0)
    size = [f"rollout.{key}={value}" for key in ("height", "width", "num_frames") if (value := getattr(tiny, key))]
    assembly = assemble(load("quickstart", [f"model.path={tmp_path / 'model'}", *size, "scoring.processes=0"]))
    prompt = assembly.train_prompts[0]
    model = assembly.roles.model
    model.condition([prompt], assembly.engine.drawing())
    assert model.rollout.max_sequence_length is None


@pytest.mark.parametrize("family", ["auto", "pipeline"])
def test_the_length_that_a_model_states_is_drawn_with_and_exported(family, tmp_path):
    options = ModelOptions(path="burnish:quickstart/model", family=family, lora=None)
    model = load_model(options, RolloutOptions(batch_size=96, height=16, width=32))
    assert model.rollout.max_sequence_length == 0
    assert load_model(options, RolloutOptions(batch_size=96, max_sequence_length=8)).rollout.max_sequence_length == 8
    model.save_pipeline(tmp_path / "out", dict(model.network.state_dict()))
    assert load_model(ModelOptions(path=str(tmp_path / "out"))).rollout.max_sequence_length == 0


def test_a_length_that_is_no_number_is_refused(tmp_path):
    folder = shutil.copytree(resolve("burnish:quickstart/model"), tmp_path / "model")
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {LENGTH: "long"}))
    with pytest.raises(UserError, match=f"{LENGTH} 'long'"):
        load_model(ModelOptions(path=str(folder)))
