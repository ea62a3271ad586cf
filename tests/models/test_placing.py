"""Weights that are mapped and converted when they are placed are those that the libraries would have converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from burnish.models.flow.loading import read_index
from burnish.models.flow.pipeline import _networks
from burnish.models.placing import as_placed, load_mapped, place, resting, twin
from burnish.models.tiny import ALL
from burnish.models.tiny.build import missing, write
from burnish.models.tiny.language import LANGUAGE
from burnish.models.tiny.language.build import write as write_language
from burnish.options.flow import ModelOptions
from burnish.utils.weights import file_precision, load_network
from tests.support.tiny_language import tiny_language

OFTEN = {"sd3", "z-image", "wan2.2"}
PAIRS = {torch.float32: (torch.bfloat16, torch.float16), torch.bfloat16: (torch.float32,)}  # of a file, of a run


def often(tinies: Any, names: set[str]) -> list[Any]:
    return [pytest.param(one, id=one.name, marks=[] if one.name in names else [pytest.mark.thorough]) for one in tinies]


def convert(folder: Path, dtype: torch.dtype) -> None:
    """What a folder's files hold, in another precision."""
    for file in sorted(folder.glob("*.safetensors")):
        held = {
            name: value.to(dtype) if value.is_floating_point() else value for name, value in load_file(file).items()
        }
        file.unlink()  # it may be mapped
        save_file(held, file, {"format": "pt"})


def tensors(network: nn.Module) -> dict[str, Tensor]:
    """All that a network has, in files or not."""
    found = dict(network.named_parameters(remove_duplicate=False)) | dict(network.named_buffers())
    for path, module in network.named_modules():
        found |= {f"{path} {name}": value for name, value in vars(module).items() if isinstance(value, Tensor)}
        for name, value in vars(module).items():
            if isinstance(value, list | tuple):
                found |= {f"{path} {name} {i}": one for i, one in enumerate(value) if isinstance(one, Tensor)}
    return found


def compare(kind: Any, folder: Path, **options: Any) -> None:
    for held, wanted in PAIRS.items():
        convert(folder, held)
        for dtype in wanted:
            expected = tensors(load_network(kind, folder, dtype=dtype, **options))
            network = load_mapped(kind, folder, dtype=dtype, **options)
            place(network, "cpu")
            found = tensors(network)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert found[name].dtype == value.dtype, (held, dtype, name)
                assert torch.equal(found[name].nan_to_num(), value.nan_to_num()), (held, dtype, name)


@pytest.mark.parametrize("tiny", often(ALL, OFTEN))
def test_the_networks_of_a_pipeline_are_those_that_diffusers_converts(tiny, tmp_path):
    if absent := missing(tiny):
        pytest.skip(f"needs {', '.join(absent)}")
    write(tiny, tmp_path, seed=0)
    _, index = read_index(ModelOptions(path=str(tmp_path)))
    for name, kind in _networks(index).items():
        compare(kind, tmp_path / name)


@pytest.mark.parametrize("tiny", often(LANGUAGE, {"gemma3"}))
def test_a_language_model_of_any_class_is_what_transformers_converts(tiny, tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

    write_language(tiny, tmp_path, seed=0)
    config = AutoConfig.from_pretrained(tmp_path)
    several = type(config) in MODEL_FOR_MULTIMODAL_LM_MAPPING
    compare(AutoModelForMultimodalLM if several else AutoModelForCausalLM, tmp_path, trust_remote_code=False)


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl", pytest.param("qwen3_moe", marks=pytest.mark.thorough)])
def test_a_language_model_of_a_family_too(family, tmp_path):
    from burnish.models.language.loading import family_of, read_config

    folder = tiny_language(tmp_path / family, family)
    options = ModelOptions(path=str(folder))
    convert(folder, torch.bfloat16)
    network = family_of(options, read_config(options)[1])._network(folder, torch.float32)
    place(network, "cpu")
    assert network.config.dtype == torch.float32
    convert(folder, torch.float32)
    expected = tensors(family_of(options, read_config(options)[1])._network(folder, torch.float32))
    assert all(torch.equal(value, expected[name]) for name, value in tensors(network).items())


def bf16(folder: Path) -> Any:
    write(next(one for one in ALL if one.name == "sd3"), folder, seed=0)
    convert(folder / "transformer", torch.bfloat16)
    from diffusers import SD3Transformer2DModel

    return load_mapped(SD3Transformer2DModel, folder / "transformer", dtype=torch.float32)


def test_a_twin_shares_the_memory_until_it_is_placed(tmp_path):
    network = bf16(tmp_path)
    other = twin(network)
    for own, its in zip(network.parameters(), other.parameters(), strict=True):
        assert own is not its
        assert own.data_ptr() == its.data_ptr()
        assert resting(its) == torch.float32
    place(other, "cpu")
    assert all(its.dtype == torch.float32 for its in other.parameters())
    assert all(own.dtype == torch.bfloat16 for own in network.parameters())


def test_adapters_are_made_for_weights_as_they_will_be(tmp_path):
    network = bf16(tmp_path)
    before = {name: value.clone() for name, value in network.named_parameters()}
    with as_placed(network):
        assert all(value.dtype == torch.float32 for value in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.named_parameters())


def test_a_folder_of_several_precisions_has_none(tmp_path):
    save_file({"a": torch.zeros(2), "n": torch.zeros(1, dtype=torch.int64)}, tmp_path / "model.safetensors")
    assert file_precision(tmp_path) == "F32"
    save_file({"a": torch.zeros(2), "b": torch.zeros(2).bfloat16()}, tmp_path / "model.safetensors")
    assert file_precision(tmp_path) is None
