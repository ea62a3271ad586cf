"""From a description to a directory in transformers layout: configuration, weights of a seed, tokenizer, processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.language.model.processors import class_without_torchvision, real_class
from burnish.models.tiny import NOISE, Config, TinyLanguage, drawn, read
from burnish.models.tiny.tokenizers import made, pieces, talking
from burnish.utils.weights import quietly

if TYPE_CHECKING:
    from torch import nn

STD = 0.25  # of weights: far from flat, so that a slip shows in the logits
WIDE = 64  # inputs of a matrix from which on its weights become smaller, so that what passes through does not grow
TEXT = "text_config"  # the table of a model that has no parts


def build(tiny: TinyLanguage, seed: int) -> tuple[nn.Module, Any, Any]:
    """Network, tokenizer, and processor (None for a model that reads text alone).

    The weights depend on the seed and on their names alone.
    """
    tokenizer = tokenizer_of(tiny)
    network = _network(tiny, tokenizer, seed)
    draw_weights(network, seed)
    generation: Any = network.generation_config
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(generation, name, getattr(tokenizer, name))
    known = tokenizer.get_vocab()
    for name, value in tiny.generation.items():
        of_tokens = {inside: known[token] for inside, token in value.items()} if isinstance(value, Mapping) else value
        setattr(generation, name, of_tokens)
    return network, tokenizer, processor_of(tiny, tokenizer) if tiny.processor else None


def _network(tiny: TinyLanguage, tokenizer: Any, seed: int) -> nn.Module:
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    settings = CONFIG_MAPPING[tiny.name]
    given = tiny_config(settings().to_dict(), tiny.config)
    words = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    words["vocab_size"] = len(tokenizer)
    if "text_config" in given:
        given["text_config"] = {**words, **given["text_config"]}
        if "pad_token_id" in settings().to_dict():
            given["pad_token_id"] = words["pad_token_id"]
    else:
        given = {**words, **given}
    reading = given.get("text_config", given)
    if "hidden_size_per_layer_input" in reading:
        reading["vocab_size_per_layer_input"] = words["vocab_size"]
    known = tokenizer.get_vocab()
    for name, token in tiny.tokens.items():
        part, _, inside = name.rpartition(".")
        (given[part] if part else given)[inside] = known[token]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind: Any = getattr(transformers, tiny.kind)
        return kind(settings(**given)).eval()  # type: ignore[no-any-return]


def tiny_config(defaults: Mapping[str, Any], changes: Config, table: str = TEXT) -> dict[str, Any]:
    """Arguments of a configuration's class: what the tables have for its parts, and what differs.

    Args:
        defaults: the configuration as the class has it without arguments.
        changes: what differs from the tables, also inside parts.
        table: name of this part.
    """
    found = {} if "text_config" in defaults else _known(defaults, read("language")["sizes"][table])
    for name in read("language")["sizes"]:
        change = changes.get(name, {})
        if change is None:
            found[name] = None
        elif known := _defaults(defaults.get(name), change):
            found[name] = tiny_config(known, change, name)
            found[name].setdefault("model_type", known["model_type"])
    return {**found, **{name: value for name, value in changes.items() if name not in read("language")["sizes"]}}


def _known(defaults: Mapping[str, Any], table: Config) -> dict[str, Any]:
    """Of a table what a configuration has; a sliding window only where there is one."""
    known = {name: value for name, value in table.items() if name in defaults}
    if defaults.get("sliding_window") is None:
        known.pop("sliding_window", None)
    return known


def _defaults(known: Any, change: Config) -> Mapping[str, Any] | None:
    """A part's configuration as its class has it: of another class where its type is changed."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = change.get("model_type")
    if kind is not None and (known is None or known["model_type"] != kind):
        settings: Any = CONFIG_MAPPING[kind]
        return settings().to_dict()  # type: ignore[no-any-return]
    return known if isinstance(known, Mapping) else None


def draw_weights(network: nn.Module, seed: int) -> None:
    """Draw matrices anew, and vectors near the constant that a layer starts them with; others stay."""
    for value, noise in drawn(network, seed, "tiny"):
        if value.ndim > 1 and value.numel() > max(value.shape):
            inputs = value.shape[-1] if value.ndim < 4 else value[0].numel()
            value.copy_(noise * STD * min(1.0, (WIDE / inputs) ** 0.5))
        elif bool((value == value.flatten()[0]).all()):
            value.add_(NOISE * noise)


def processor_of(tiny: TinyLanguage, tokenizer: Any) -> Any:
    """Its processor, for a model that reads more than text."""
    parts = {name: _part_class(named)(**config) for name, (named, config) in tiny.parts.items()}
    kind = class_without_torchvision(tiny.processor)
    processor = kind(**parts, tokenizer=tokenizer, **tiny.values)
    processor.chat_template = tokenizer.chat_template  # which some don't take as an argument (Chameleon)
    return processor


def _part_class(named: str) -> Any:
    """The class of a part; of image processors the form that works with PIL, if there is one."""
    import transformers

    pillow = f"{named}Pil"
    return real_class(pillow if pillow in transformers._class_to_module else named)


def tokenizer_of(tiny: TinyLanguage) -> Any:
    """The tokenizer of a model, with its chat template: each image, video and sound at its place."""
    style, marks = read("language")["styles"][tiny.style], dict(tiny.marks)
    special = dict.fromkeys([*style["control"], *marks.values(), *tiny.further])
    kind: Callable[..., Any] = pieces if tiny.tokenizer == "pieces" else partial(made, tiny.tokenizer)
    tokenizer = kind(eos_token=style["end"], extra_special_tokens=marks)
    parts = "".join(f"{{% elif part['type'] == '{kind}' %}}{text}" for kind, text in tiny.places.items())
    template = style["template"].replace("CONTENT", read("language")["content"].replace("MEDIA", parts))
    return talking(tokenizer, [one for one in special if one != style["end"]], template)


def write(tiny: TinyLanguage, folder: Path, seed: int) -> None:
    """Build a model and write it to a folder, in transformers layout."""
    folder.mkdir(parents=True, exist_ok=True)
    with quietly():
        network, tokenizer, processor = build(tiny, seed)
        network.save_pretrained(folder)  # type: ignore[operator]
        (tokenizer if processor is None else processor).save_pretrained(folder)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes them for their owner alone
