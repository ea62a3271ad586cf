"""Layers that options name are matched without a weight, by the code that matches them when weights are there."""

from __future__ import annotations

import pytest

import burnish.tasks.flow.assembly
import burnish.tasks.language.assembly
from burnish.commands.opening import open_model
from burnish.config import load
from burnish.tasks import assemble
from burnish.tasks.outline import check_layers
from burnish.utils.errors import UserError
from burnish.utils.paths import resolve
from tests.support.tiny_language import tiny_language

ADAPTED = ["model.device=cpu", "model.lora={rank: 2}"]
FULL = ["model.device=cpu", "model.lora=null"]
# each is refused with the same words where weights are loaded: what is wrong, and how such layers are called
REFUSED = {
    "targets": ("quickstart", [*ADAPTED, "model.lora.targets=[to_q, nope]"], "targets has 'nope'.*linear_1"),
    "exclude": ("quickstart", [*ADAPTED, "model.lora.exclude=['nope.*']"], r"exclude has 'nope\.\*'.*attn.to_q"),
    "all excluded": ("quickstart", [*ADAPTED, "model.lora.exclude=['*']"], "exclude .* leaves no layer"),
    "blocks": ("quickstart", [*FULL, "model.gradient_checkpointing=99"], "99, but the network has 4 blocks"),
    "quantised": (
        "quickstart", [*ADAPTED, "model.quantization={weights: fp8_cast, exclude: [nope]}"],
        "quantization.exclude has 'nope'.*norm1",
    ),
    "language targets": ("vlm_quickstart", [*ADAPTED, "model.lora.targets=[nope]"], "targets has 'nope'.*attn.qkv"),
    "head": ("vlm_quickstart", [*ADAPTED, "model.lora.targets=[lm_head]"], "'lm_head', the language head"),
    "language exclude": ("vlm_quickstart", [*ADAPTED, "model.lora.exclude=[nope]"], "exclude has 'nope'.*layers.0"),
    "saved": ("vlm_quickstart", [*ADAPTED, "model.lora.modules_to_save=[nope]"], "modules_to_save has 'nope'"),
    "frozen": ("vlm_quickstart", [*FULL, "model.freeze=[nope]"], "freeze has 'nope'.*like model"),
    "all frozen": ("vlm_quickstart", [*FULL, "model.freeze=['*']"], "leaves nothing to train"),
    "language blocks": ("vlm_quickstart", [*FULL, "model.gradient_checkpointing=99"], "99, but the network has"),
    "language quantised": (
        "vlm_quickstart", [*ADAPTED, "model.quantization={weights: fp8_cast, exclude: [nope]}"],
        "quantization.exclude has 'nope'.*layers.0",
    ),
}  # fmt: skip
TAKEN = {
    "flow": ("quickstart", [*ADAPTED, "model.lora={targets: [to_q, to_v], exclude: ['transformer_blocks.0.*']}"]),
    "dora": ("quickstart", [*ADAPTED, "model.lora={targets: [to_q], dora: true}"]),
    "language": ("vlm_quickstart", [*ADAPTED, "model.lora={vision: true}"]),
    "critic": ("vlm_quickstart", [*FULL, "algorithm=ppo", "model.freeze=['*.embed_tokens*']"]),
}


def forbid_weights(monkeypatch):
    def read(*args, **more):
        raise AssertionError("weights are loaded")

    monkeypatch.setattr(burnish.tasks.flow.assembly, "load_model", read)
    monkeypatch.setattr(burnish.tasks.language.assembly, "load_language_model", read)


@pytest.mark.parametrize(("recipe", "options", "said"), REFUSED.values(), ids=list(REFUSED))
def test_what_matches_nothing_is_refused_without_weights(recipe, options, said, monkeypatch):
    forbid_weights(monkeypatch)
    assembly = assemble(load(recipe, options))
    with pytest.raises(UserError, match=said):
        check_layers(assembly)


@pytest.mark.parametrize(("recipe", "options"), TAKEN.values(), ids=list(TAKEN))
def test_what_matches_is_taken_and_the_run_stays_as_it_is(recipe, options, monkeypatch):
    forbid_weights(monkeypatch)
    assembly = assemble(load(recipe, options))
    before = repr(assembly.config)
    check_layers(assembly)
    assert repr(assembly.config) == before
    assert "roles" not in vars(assembly)


def test_the_outline_has_the_names_the_shapes_and_the_ties_of_the_network_itself(tmp_path):
    tied = tiny_language(tmp_path / "qwen3", "qwen3")
    for recipe, more in (("quickstart", []), ("vlm_quickstart", []), ("vlm_quickstart", [f"model.path={tied}"])):
        assembly = assemble(load(recipe, [*FULL, *more]))
        outline, network = assembly.outline().network, assembly.roles.model.network
        assert all(weight.is_meta for weight in outline.parameters())
        assert _shapes(outline) == _shapes(network)
    tying = ["model.lora={rank: 2, modules_to_save: [embed_tokens]}", f"model.path={tied}"]
    with pytest.raises(UserError, match="are one weight"):
        check_layers(assemble(load("vlm_quickstart", tying)))


def test_an_adapter_of_another_model_is_refused_without_weights(tmp_path, monkeypatch):
    theirs = assemble(load("vlm_quickstart", [*ADAPTED, f"model.path={tiny_language(tmp_path / 'llama', 'llama')}"]))
    theirs.save_adapter(tmp_path / "adapter")
    forbid_weights(monkeypatch)
    options = [*ADAPTED, f"model.lora.path={tmp_path / 'adapter'}", "data.decode_check=false"]
    with pytest.raises(UserError, match=r"adapter in model\.lora\.path"):
        check_layers(assemble(load("vlm_quickstart", options)))
    model = resolve("burnish:vlm_quickstart/model")
    with pytest.raises(UserError, match=r"SOURCE is .* is not one of the model .* trained on"):
        open_model(f"{model}+{tmp_path / 'adapter'}", "image-text-to-text")


def test_files_that_are_wrong_are_left_to_those_who_load_them(tmp_path, caplog):
    folder = tiny_language(tmp_path / "llama", "llama")
    (folder / "tokenizer.json").write_text("{}")
    with caplog.at_level("DEBUG", logger="burnish.tasks.outline"):
        check_layers(assemble(load("vlm_quickstart", [*FULL, "model.freeze=[nope]", f"model.path={folder}"])))
    assert "can't be loaded" in caplog.text


def _shapes(network):
    """Every weight's shape by its name, and by which others it is named."""
    named = list(network.named_parameters(remove_duplicate=False))
    first = {}
    return [(name, tuple(value.shape), first.setdefault(id(value), name)) for name, value in named]
