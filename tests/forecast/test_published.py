"""Configurations of published models: they have the weights that their models are known to have, and load as theirs."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.config.load import load, recipe_names
from burnish.forecast.published import Published, published, published_model
from burnish.utils.hub import PIPELINE, is_hub_id
from burnish.utils.json_text import read_object

NETWORKS = [(name, part) for name, model in published().items() for part in model.weights]


def network_of(folder: Path, named: tuple[str, str] | None) -> torch.nn.Module:
    """A network without memory, from the config.json of its folder."""
    import diffusers
    import transformers

    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if named is None:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            kind: Any = getattr(transformers, config.architectures[0])
            made: torch.nn.Module = kind(config)
        elif named[0] == "diffusers":
            kind = getattr(diffusers, named[1])
            made = kind.from_config(read_object(folder / "config.json"))
        else:
            kind = getattr(transformers, named[1])
            made = kind(kind.config_class.from_pretrained(folder, local_files_only=True))
    return made


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every published model, written."""
    written = {}
    for name, model in published().items():
        written[name] = tmp_path_factory.mktemp("published") / "model"
        model.write(written[name])
    return written


@pytest.mark.parametrize(("name", "part"), NETWORKS)
def test_a_configuration_has_the_weights_of_its_model(folders: dict[str, Path], name: str, part: str) -> None:
    folder, known = folders[name], published()[name].weights[part]
    named = read_object(folder / PIPELINE)[part] if part else None
    made = network_of(folder / part, named)
    assert sum(weight.numel() for weight in made.parameters()) == pytest.approx(known, rel=5e-3)


def test_every_shipped_recipe_of_a_real_model_names_one_whose_configuration_ships() -> None:
    for name in recipe_names():
        config = load(name, ["data.train_files=x.jsonl"] if "watched" in name else [])
        if is_hub_id(config.model.path):
            assert published_model(config.model.path, config.model_index), f"{name} has {config.model.path}"


def test_a_language_model_is_none_where_a_pipeline_is_asked_for() -> None:
    assert published_model("Qwen/Qwen-Image", "config.json") is None
    assert isinstance(published_model("Qwen/Qwen-Image", PIPELINE), Published)
    assert published_model("nobody/nothing", PIPELINE) is None
