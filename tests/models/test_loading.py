"""Folders and files that are no model as they are: what they are is said, with the way to one."""

from __future__ import annotations

import json

import pytest

from burnish.models.flow.loading import read_index
from burnish.models.language.loading import check_files, read_config
from burnish.options.flow import ModelOptions
from burnish.options.language import LanguageModelOptions
from burnish.utils.errors import UserError
from tests.support.language_samples import folder_of


@pytest.mark.parametrize("name", ["adapter_config.json", "pytorch_lora_weights.safetensors"])
def test_an_adapter_is_told_where_it_belongs(tmp_path, name):
    (tmp_path / name).touch()
    for read, options in ((read_config, LanguageModelOptions), (read_index, ModelOptions)):
        with pytest.raises(UserError, match=r"model\.lora\.path"):
            read(options(path=str(tmp_path)))


def test_a_single_file_is_told_how_it_becomes_a_folder(tmp_path):
    file = tmp_path / "sdxl.safetensors"
    file.touch()
    with pytest.raises(UserError, match=r"from_single_file.*save_pretrained"):
        read_index(ModelOptions(path=str(file)))
    with pytest.raises(UserError, match=r"config\.json"):
        read_config(LanguageModelOptions(path=str(file)))


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "awq", "compressed-tensors", "torchao"])
def test_weights_of_few_bits_are_refused_by_their_configuration(tmp_path, method):
    config = json.loads((folder_of("llama") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": method}}))
    with pytest.raises(UserError, match=f"{method}.*model that it was made from"):
        check_files(LanguageModelOptions(path=str(tmp_path)))
