"""From a description to a pipeline: parts named by the signature of its class, weights drawn from a seed."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.models.modular import pipeline_class
from burnish.models.processors import class_without_videos
from burnish.models.tiny import NOISE, Change, Config, Tiny, drawn, read
from burnish.models.tiny.tokenizers import TOKENIZERS, made, of_class, pieces, talking
from burnish.utils.weights import quietly

if TYPE_CHECKING:
    from torch import nn


def qwen_vl(named: str, patch: int, **config: Any) -> Any:
    """Of a vision-language model of Qwen: images and text."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = made("Qwen2Tokenizer")
    size = {"shortest_edge": (2 * patch) ** 2, "longest_edge": (8 * patch) ** 2}
    pixels = Qwen2VLImageProcessorPil(**{
        "patch_size": patch, "temporal_patch_size": 2, "merge_size": 2, "size": size, **config,
    })  # fmt: skip
    return class_without_videos(named)(pixels, tokenizer, tokenizer.chat_template)


def glm_image() -> Any:
    """Of GLM-Image's autoregressive half: an image begins and ends with a token, which are those of texts, too."""
    from transformers.models.glm_image.image_processing_pil_glm_image import GlmImageImageProcessorPil

    marks = {"image_token": "<|image_pad|>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
    tokenizer = talking(pieces("<|dit_token_16385|>", "<|dit_token_16384|>", extra_special_tokens=marks), [])
    pixels = GlmImageImageProcessorPil(patch_size=16, merge_size=1)
    return of_class(
        "GlmImageProcessor", image_processor=pixels, tokenizer=tokenizer, chat_template=tokenizer.chat_template
    )


PROCESSORS: dict[str, Callable[..., Any]] = {
    **{name: partial(of_class, **given) for name, given in read("parts")["processors"].items()},
    "GlmImageProcessor": glm_image,
    "Qwen2VLProcessor": partial(qwen_vl, "Qwen2VLProcessor", 14),
    "Qwen2_5_VLProcessor": partial(qwen_vl, "Qwen2_5_VLProcessor", 14),
    "Qwen3VLProcessor": partial(qwen_vl, "Qwen3VLProcessor", 16),
}

DENOISERS, ENCODERS = read("parts")["denoisers"], read("parts")["encoders"]
OTHERS: dict[str, Config] = {**read("parts")["networks"], **read("parts")["others"], **DENOISERS}
KNOWN = {*ENCODERS, *OTHERS, *TOKENIZERS, *PROCESSORS}
# of a class that encodes text: each has the tokenizer of the same number
ENCODER, TOKENIZER = "text_encoder", "tokenizer"


def build(tiny: Tiny, seed: int) -> Any:
    """The pipeline; its weights depend on the seed, their names and the name of their part alone."""
    kind = pipeline_class(tiny.kind)
    chosen = parts_of(tiny, kind)
    made: dict[str, Any] = {name: None for name, part in chosen.items() if part is None}
    # what reads text first: what encodes it has as many words
    readers = {*TOKENIZERS, *PROCESSORS}
    for name, part in sorted(chosen.items(), key=lambda item: item[1] is None or item[1][0] not in readers):
        if part is not None:
            made[name] = _part(name, *part, made, kind)
    for name, part in made.items():
        if hasattr(part, "named_parameters"):
            draw_weights(part, seed, name)
    return kind(**made, **tiny.values)


def parts_of(tiny: Tiny, kind: type) -> dict[str, tuple[str, Config] | None]:
    """Class and configuration of every part; None for one that is left out.

    Args:
        tiny: description.
        kind: class of the pipeline, whose signature names the classes of its parts.
    """
    chosen: dict[str, tuple[str, Config] | None] = {}
    for name, parameter in list(inspect.signature(kind).parameters.items()):
        if name in tiny.values or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        change: Change = tiny.parts.get(name, {})
        if change is None:
            chosen[name] = None
            continue
        own, config = _class_and_changes(change)
        named = own or _named(parameter.annotation)
        if not named and name.startswith(TOKENIZER):
            encoder = chosen_encoder(tiny, kind, name)
            named = read("parts")["tokenizer_of"].get(encoder, "")
        if parameter.default is not inspect.Parameter.empty and name not in tiny.parts and named not in DENOISERS:
            continue
        assert named in KNOWN, f"{tiny.kind}: {name} is {parameter.annotation}, which has no description"
        chosen[name] = (named, config)
    return chosen


def chosen_encoder(tiny: Tiny, kind: type, tokenizer: str) -> str:
    """The class of the text encoder that a tokenizer is for."""
    name = tokenizer.replace(TOKENIZER, ENCODER)
    own, _ = _class_and_changes(tiny.parts.get(name))
    return own or _named(inspect.signature(kind).parameters[name].annotation)


def _class_and_changes(change: Change) -> tuple[str, Config]:
    """What describes a part: its class ("" where the signature names it), and changes to its configuration."""
    if isinstance(change, str):
        return change, {}
    if isinstance(change, Mapping):
        return "", change
    own, config = list(change) if change else ("", {})
    return own, config


def _named(annotation: Any) -> str:
    """The first class of a type hint that is described."""
    return next((word for word in re.findall(r"\w+", str(annotation)) if word in KNOWN), "")


def _part(name: str, named: str, config: Config, made: Mapping[str, Any], pipeline: type) -> Any:
    import diffusers
    import transformers

    if named in TOKENIZERS:
        tokenizer = TOKENIZERS[named]()
        vars(tokenizer).update(config)
        return tokenizer
    if named in PROCESSORS:
        return PROCESSORS[named](**config)
    if named in ENCODERS:
        own = (name.replace(ENCODER, TOKENIZER), f"{name}_{TOKENIZER}", f"{name}_processor", "processor")
        readers = (getattr(made.get(part), "tokenizer", made.get(part)) for part in own if part != name)
        tokenizer = next((one for one in readers if hasattr(one, "get_vocab")), None)  # others read images
        kind = getattr(transformers, named, None) or vars(sys.modules[pipeline.__module__])[named]
        return _encoder(kind, merged(ENCODERS[named], config), tokenizer)
    # some are in their pipeline's module alone, or of blocks
    kind = getattr(diffusers, named, None) or vars(sys.modules[pipeline.__module__]).get(named)
    kind = kind or inspect.signature(pipeline).parameters[name].annotation
    return kind(**merged(OTHERS[named], config))


def merged(base: Config, changes: Config) -> dict[str, Any]:
    """A configuration with changes, also within the configurations that it contains."""
    found = dict(base)
    for name, value in changes.items():
        found[name] = merged(found[name], value) if isinstance(value, Mapping) and name in found else value
    return found


def _encoder(kind: Any, config: dict[str, Any], tokenizer: Any) -> nn.Module:
    """A network of transformers, with as many words as its tokenizer has, and the ids of its special tokens."""
    settings: Any = kind.config_class
    if tokenizer is not None:
        words = {end: getattr(tokenizer, end) for end in ("bos_token_id", "eos_token_id", "pad_token_id")}
        words["vocab_size"] = config.get("vocab_size", len(tokenizer))
        known = tokenizer.get_vocab()
        config |= {
            name: known[token]
            for name, token in read("parts")["tokens"].items()
            if token in known and hasattr(settings(), name)
        }
        if "text_config" in config:
            config["text_config"] = {**config["text_config"], **words}
            config.setdefault("pad_token_id", words["pad_token_id"])
        else:
            config |= words
    return kind(settings(**config)).eval()  # type: ignore[no-any-return]


def draw_weights(network: nn.Module, seed: int, name: str) -> None:
    """Draw every parameter anew, so that no output is zero because a layer starts as zeros.

    Matrices and kernels keep the size of what passes through; vectors stay near the constant that they start with.
    """
    for value, noise in drawn(network, seed, "tiny", name):
        if value.ndim > 1:
            value.copy_(noise * (len(value) / value.numel()) ** 0.5)
        else:
            value.copy_(float(bool((value == 1).all())) + NOISE * noise)


def write(tiny: Tiny, folder: Path, seed: int) -> None:
    """Build a pipeline and write it to a folder, in diffusers layout."""
    with quietly():
        pipeline = build(tiny, seed)
        pipeline.save_pretrained(folder)
        for name, listed in pipeline.config.items():
            # diffusers lists parts that a class makes for itself, and leaves out to save them
            if isinstance(listed, list | tuple) and isinstance(listed[0], str) and not (folder / name).exists():
                getattr(pipeline, name).save_pretrained(folder / name)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes them for their owner alone
