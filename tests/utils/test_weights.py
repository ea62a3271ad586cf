"""Folders of weights as they arrive on a disk: whole ones load, all others are refused with the file and the tensor."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.cli import main
from burnish.config import load
from burnish.models.flow.loading import load_model
from burnish.models.language.loading import load_language_model
from burnish.options.flow import LoraOptions, ModelOptions
from burnish.options.language import LanguageModelOptions
from burnish.tasks.language.engine import Encoder
from burnish.types.prompt import Prompt
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.weights import complaints_about, pickle_complaint, refuse_oversized, vocabulary_complaint
from tests.support.factory import tiny_pipeline
from tests.support.tiny_language import tiny_language

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("whole")
    return {
        "pipeline": tiny_pipeline(folder, t5=True, layers=1),
        "language": tiny_language(folder / "language", "qwen2_vl"),
    }


@pytest.fixture
def damaged(whole: dict[str, Path], tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A copy whose files may be changed."""

    def copy(kind: str) -> Path:
        return Path(shutil.copytree(whole[kind], tmp_path / kind))

    return copy


def rewrite(folder: Path, change: Callable[[Tensors, str], None], like: str) -> str:
    """Change the tensor whose name holds ``like``, and give the name."""
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    name = next(name for name in sorted(tensors) if like in name)
    change(tensors, name)
    save_file(tensors, file, {"format": "pt"})
    return name


def leave_out(tensors: Tensors, name: str) -> None:
    del tensors[name]


def lengthen(tensors: Tensors, name: str) -> None:
    tensors[name] = torch.cat([tensors[name]] * 2)


def spoil(tensors: Tensors, name: str) -> None:
    tensors[name].view(-1)[0] = float("nan")


def another_layer(tensors: Tensors, name: str) -> None:
    tensors[name.replace(".0.", ".7.")] = tensors[name].clone()


PARTS = {  # a part of the pipeline, and a tensor of its first layer
    "text_encoder": "layers.0.",
    "text_encoder_3": "block.0.",
    "transformer": "transformer_blocks.0.",
    "vae": "down_blocks.0.",
}
DAMAGES = {
    leave_out: r"lacks {name}, which \w+ needs by its config\.json",
    lengthen: r"does not match config\.json in the shapes of {name}",
    spoil: r"has non-finite values in {name}",
    another_layer: r"layers that \w+ does not have by its config\.json",
}


@pytest.mark.parametrize("change", DAMAGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_part_of_a_pipeline_is_refused_by_file_and_tensor(damaged, part, change):
    pipeline = damaged("pipeline")
    name = rewrite(pipeline / part, change, PARTS[part])
    with pytest.raises(UserError, match=DAMAGES[change].format(name=name)) as refused:
        load_model(ModelOptions(path=str(pipeline), lora=LoraOptions(rank=2)))
    assert part in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("change", DAMAGES, ids=lambda change: change.__name__)
def test_a_damaged_language_model_is_refused_by_file_and_tensor(damaged, change):
    folder = damaged("language")
    # messages have the library's name of it, which is longer than that in the file
    name = rewrite(folder, change, "layers.0.").replace("model.", r"model\.language_model\.")
    with pytest.raises(UserError, match=DAMAGES[change].format(name=name)):
        load_language_model(LanguageModelOptions(path=str(folder)))


def test_what_a_network_has_no_use_for_is_told_and_does_no_harm(damaged, caplog):
    folder = damaged("language")
    rewrite(folder, lambda tensors, name: tensors.update({"value_head.weight": torch.zeros(2)}), "")
    load_language_model(LanguageModelOptions(path=str(folder)))
    assert "value_head.weight" in caplog.text


def test_infinities_that_cancel_out_are_found_and_large_numbers_are_none(damaged):
    folder = damaged("language")

    def overflow(tensors: Tensors, name: str) -> None:
        tensors[name].fill_(3e38)  # whose sum is infinite

    rewrite(folder, overflow, "layers.0.input_layernorm")
    load_language_model(LanguageModelOptions(path=str(folder)))

    def cancel(tensors: Tensors, name: str) -> None:
        tensors[name][:2] = torch.tensor([float("inf"), -float("inf")])

    rewrite(folder, cancel, "layers.0.input_layernorm")
    with pytest.raises(UserError, match="non-finite"):
        load_language_model(LanguageModelOptions(path=str(folder)))


def test_files_are_judged_by_their_heads(damaged):
    folder = damaged("language")
    assert list(complaints_about(folder)) == []
    file = folder / "model.safetensors"
    content = file.read_bytes()
    for kept, why in (
        (len(content) - 100, "is truncated: 100 of"), (40, "is no safetensors file, or truncated: 40 bytes"),
        (3, "3 bytes"), (0, "0 bytes"),
    ):  # fmt: skip
        file.write_bytes(content[:kept])
        (found,) = complaints_about(folder)
        assert why in found
        assert str(file) in found
    file.write_bytes(content[:8] + b"x" * 200 + content[208:])
    assert "damaged head" in next(complaints_about(folder))
    file.unlink()
    assert "has no weights" in next(complaints_about(folder))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    assert "lacks model-1.safetensors" in next(complaints_about(folder))
    (folder / "model.safetensors.index.json").write_text("{")
    assert "index.json that can be read" in next(complaints_about(folder))


ABSENT = {
    "tokenizer.json": "has no tokenizer",
    "preprocessor_config.json": "configures its processor",
    "chat_template.jinja": "has no chat template",
    "model.safetensors": "has no weights",
}


@pytest.mark.parametrize("file", ABSENT)
def test_a_vision_language_folder_that_lacks_a_file_is_refused_before_torch_is_needed(damaged, capsys, tmp_path, file):
    folder = damaged("language")
    (folder / file).unlink()
    code = main(["train", "vlm_quickstart", f"model.path={folder}", f"output_dir={tmp_path / 'run'}"])
    told = capsys.readouterr().err
    assert code == 2
    assert ABSENT[file] in " ".join(told.split())
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_without_words_is_refused(damaged, capsys, tmp_path):
    pipeline = damaged("pipeline")
    (pipeline / "tokenizer" / "tokenizer.json").unlink()
    for there, why in ((None, "has no tokenizer"), ("vocab.json", "but no merges.txt")):
        if there is not None:
            (pipeline / "tokenizer" / there).write_text("{}")
        code = main(["train", "quickstart", f"model.path={pipeline}", f"output_dir={tmp_path / 'run'}"])
        told = " ".join(capsys.readouterr().err.split())
        assert code == 2
        assert f"{pipeline / 'tokenizer'} " in told
        assert why in told


def test_a_tokenizer_of_another_model_is_found_by_the_prompts(damaged):
    pipeline = damaged("pipeline")
    model = load_model(ModelOptions(path=str(pipeline)))
    model.check_texts(["a cat"])
    model.pipeline.text_encoder.set_input_embeddings(torch.nn.Embedding(20, 16))
    with pytest.raises(UserError, match=r"prompt 'a cat' has token id \d+, but text_encoder has only 20"):
        model.check_texts(["a cat"])
    language = load_language_model(LanguageModelOptions(path=str(damaged("language"))))
    language.readable_ids = 10
    with pytest.raises(UserError, match=r"has token \d+, but the model knows only 10"):
        Encoder(language)([Prompt(text="what?")])


def test_a_truncated_part_of_a_pipeline_is_refused_before_torch_is_needed(damaged, capsys, tmp_path):
    pipeline = damaged("pipeline")
    (file,) = (pipeline / "text_encoder_2").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-10])
    code = main(["train", "quickstart", f"model.path={pipeline}", f"output_dir={tmp_path / 'run'}"])
    told = " ".join(capsys.readouterr().err.split())
    assert code == 2
    assert f"{file} is truncated: 10 of" in told


def test_a_model_without_a_chat_template_may_read_and_not_see(damaged):
    folder = damaged("language")
    (folder / "chat_template.jinja").unlink()
    written = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(written | {"chat_template": "{{ messages }}"}))
    from burnish.models.language.loading import check_files

    check_files(LanguageModelOptions(path=str(folder)))


def test_unreadable_settings_of_a_model_are_a_message(damaged):
    folder = damaged("language")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="can't be loaded as qwen2_vl"):
        load_language_model(LanguageModelOptions(path=str(folder)))


@pytest.mark.parametrize("family", ["auto", "transformers"])
def test_a_folder_does_not_choose_kernels_which_would_be_fetched_and_run(damaged, monkeypatch, tmp_path, family):
    from transformers.integrations import hub_kernels

    def fetched(*given, **named):
        raise AssertionError(given)

    monkeypatch.setattr(hub_kernels, "load_and_register_attn_kernel", fetched)
    folder = damaged("language")
    written = json.loads((folder / "config.json").read_text())
    written |= {"_attn_implementation": "somebody/kernels", "_experts_implementation": "somebody/kernels"}
    (folder / "config.json").write_text(json.dumps(written))
    model = load_language_model(LanguageModelOptions(path=str(folder), device="cpu", family=family))
    model.save(tmp_path / "saved", dict(model.network.state_dict()))
    assert "somebody" not in (tmp_path / "saved" / "config.json").read_text()


def test_damaged_settings_of_generation_are_refused_with_the_ends_that_they_would_name(damaged):
    from burnish.models.language.loading import check_files

    folder = damaged("language")
    (folder / "generation_config.json").write_text('{"eos_token_id": [1')
    with pytest.raises(UserError, match=r"generation_config\.json is not JSON"):
        check_files(LanguageModelOptions(path=str(folder)))


def test_recipes_that_ship_with_their_weights_pass():
    from burnish.config.disk import check_disk

    for recipe in ("quickstart", "vlm_quickstart"):
        try:
            check_disk(load(recipe))
        except ConfigError as error:
            pytest.fail(str(error))


def test_numbers_of_layers_are_bounded_and_not_the_size_of_what_each_has(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"text_config": {"vocab_size_per_layer_input": 262144, "num_hidden_layers": 42}}')
    refuse_oversized(file)
    file.write_text('{"text_config": {"num_hidden_layers": 42000}}')
    with pytest.raises(UserError, match="num_hidden_layers 42000; it must be at most 10000"):
        refuse_oversized(file)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["../../elsewhere.safetensors"], r"lacks \.\./\.\./elsewhere\.safetensors, listed"),
        ([3, None, ["x"], "a\0b"], "lacks 3, None, .* and 1 more, listed"),
        ([f"{i}.safetensors" for i in range(100_000)], "and 99997 more, listed in its index"),
    ],
)
def test_an_index_names_files_beside_it_and_few_of_those_that_are_missing_are_told(tmp_path, names, said):
    (tmp_path.parent / "elsewhere.safetensors").touch()
    index = {"weight_map": {str(i): name for i, name in enumerate(names)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (complaint,) = complaints_about(tmp_path)
    assert re.search(said, complaint)
    assert len(complaint) < 400 + len(str(tmp_path))


def test_pickles_under_names_that_no_library_reads_are_no_weights(tmp_path):
    (tmp_path / "model.ckpt").touch()
    assert "model.ckpt alone, a pickle that no library loads from there" in pickle_complaint(tmp_path)
    (tmp_path / "pytorch_model-00001-of-00002.bin").touch()
    assert pickle_complaint(tmp_path) == ""


def test_a_tokenizer_of_bytes_has_no_vocabulary(tmp_path):
    from transformers import ByT5Tokenizer

    ByT5Tokenizer(extra_ids=0).save_pretrained(tmp_path)
    assert vocabulary_complaint(tmp_path) == ""
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": ["ByT5Tokenizer"]}')
    assert "has no tokenizer" in vocabulary_complaint(tmp_path)
