"""Published models without their weights: directories from which a model's own code builds the network it describes.

Configurations are the published ones; tokenizers, chat templates and limits of processors stand in for the real ones,
with the classes that the model has and few words.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from burnish.config.yaml_text import parse
from burnish.utils.errors import UserError
from burnish.utils.hub import PIPELINE, hub_model
from burnish.utils.paths import ASSETS
from burnish.utils.terminal import loading_pytorch

FOLDER = ASSETS / "published"
CONFIG = "config.json"
VERSION = "_diffusers_version"


@dataclass(frozen=True)
class Published:
    """A model as its authors describe it."""

    name: str  # on the hub
    index: str  # the file that describes it
    about: Mapping[str, Any]

    @property
    def weights(self) -> dict[str, float]:
        """Weights that its networks are known to have, by the names of its parts; "" is a model of one part."""
        given = self.about["weights"]
        return dict(given) if isinstance(given, Mapping) else {"": given}

    def write(self, folder: Path) -> None:
        """Write its directory: everything but weights."""
        folder.mkdir(parents=True, exist_ok=True)
        write = _write_pipeline if self.index == PIPELINE else _write_language_model
        write(self.about, folder)


@cache
def published() -> dict[str, Published]:
    """Every published model whose configuration ships with Burnish, by its name on the hub."""
    found: dict[str, Published] = {}
    for file, index in (("pipelines.yaml", PIPELINE), ("language.yaml", CONFIG)):
        models = parse((FOLDER / file).read_text(encoding="utf-8"))["models"]
        found |= {name: Published(name, index, about) for name, about in models.items()}
    return found


def published_model(name: str, index: str) -> Published | None:
    """The published model of that name that is described by such a file; None if it does not ship with Burnish.

    Args:
        name: on the hub.
        index: model_index.json of a pipeline, config.json of a language model.
    """
    model = published().get(name)
    return model if model is not None and model.index == index else None


@loading_pytorch()
def located(config: Any, scratch: Path) -> Any:
    """The configuration with models that can be read here without a network, on a device that every machine has.

    Args:
        config: of the run; it stays as it is.
        scratch: folder for the directories of published models.

    Raises:
        UserError: a model is neither a directory, nor in the hub's cache, nor published with Burnish.
    """
    found = deepcopy(config)
    sections = [("model.path", vars(found.model), config.model_index), *_further(found)]
    for number, (option, section, index) in enumerate(sections):
        if section["path"] is None or (model := hub_model(section["path"], index=index, option=option)) is None:
            continue
        folder = model.cached()
        if folder is None:
            described = published_model(model.name, model.index)
            if described is None:
                raise UserError(
                    f"{option} is {model.name}, whose configuration is neither in the hub's cache nor shipped with "
                    f"Burnish; where the hub can be reached, run: {model.command()}, and set {option}=DIR"
                )
            folder = scratch / f"model_{number}"
            described.write(folder)
        section["path"] = str(folder)
    found.model.device = "cpu"
    if found.model.lora is not None:
        found.model.lora.path = None  # the weights of an adapter to go on from take no memory of their own
    return found


def _further(config: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Options of models beside the policy's, by the option that names them, and the file that describes such."""
    for number, teacher in enumerate(getattr(config.algorithm, "teachers", None) or ()):
        yield f"algorithm.teachers[{number}].path", vars(teacher), config.model_index
    environment = getattr(config, "environment", None)
    for arguments in environment.generators() if environment is not None else ():
        arguments["device"] = "cpu"
        yield "environment.arguments.path", arguments, PIPELINE


def _write_pipeline(about: Mapping[str, Any], folder: Path) -> None:
    import diffusers
    import transformers

    own = sys.modules[
        getattr(diffusers, about["pipeline"]).__module__.rpartition(".")[0]
    ]  # with parts that no other has
    libraries = {"diffusers": diffusers, "transformers": transformers, own.__name__.rpartition(".")[2]: own}
    index: dict[str, Any] = {"_class_name": about["pipeline"], VERSION: diffusers.__version__}
    for name, part in about["parts"].items():
        named, config = part["class"], part.get("config", {})
        library = next(name for name, module in libraries.items() if hasattr(module, named))
        index[name] = [library, named]
        place = folder / name
        place.mkdir(exist_ok=True)
        if name.startswith(("tokenizer", "processor")):
            _reader(part).save_pretrained(place)
        elif name == "scheduler":
            _write(place / "scheduler_config.json", {"_class_name": named, VERSION: diffusers.__version__, **config})
        elif library != "transformers":
            _write(place / CONFIG, {"_class_name": named, VERSION: diffusers.__version__, **config})
        else:
            kind: Any = getattr(transformers, named)
            tokenizer = about["parts"].get(name.replace("text_encoder", "tokenizer"))
            given = config if tokenizer is None else _with_ends(config, _reader(tokenizer))
            _write(place / CONFIG, {**kind.config_class(**given).to_dict(), "architectures": [named]})
    for name in getattr(diffusers, about["pipeline"])._optional_components:  # which it lacks
        index.setdefault(name, [None, None])
    _write(folder / PIPELINE, {**index, **about.get("values", {})})


def _reader(part: Mapping[str, Any]) -> Any:
    """What reads the prompts: a tokenizer, or a processor with its limits."""
    from burnish.models.tiny.build import PROCESSORS
    from burnish.models.tiny.tokenizers import TOKENIZERS

    named = part["class"]
    if named in PROCESSORS:
        return PROCESSORS[named](**{name: value for name, value in part.items() if name != "class"})
    return TOKENIZERS[named]()


def _with_ends(config: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """A text encoder's configuration, with the special tokens that the tokenizer beside it has."""
    from burnish.models.tiny import read

    ends = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    if "text_config" not in config:
        return {**config, **ends}
    known, tokens = tokenizer.get_vocab(), read("parts")["tokens"].items()
    seen = {name: known[token] for name, token in tokens if token in known and not name.endswith("_index")}
    return {**config, **seen, "text_config": {**config["text_config"], **ends}}


def _write_language_model(about: Mapping[str, Any], folder: Path) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from burnish.models.tiny import LANGUAGE, describe
    from burnish.models.tiny.language import processor_of, tokenizer_of
    from burnish.utils.weights import quietly

    tiny = describe(about["model_type"], LANGUAGE)
    limits = about.get("processor", {})
    parts = {name: (named, limits.get(name, config)) for name, (named, config) in tiny.parts.items()}
    tiny = replace(tiny, parts=parts, values=about.get("values", tiny.values))
    tokenizer = tokenizer_of(tiny)
    ends = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config: dict[str, Any] = deepcopy(about["config"])
    text = config.setdefault("text_config", {})
    text |= ends
    known = tokenizer.get_vocab()
    for name, token in tiny.tokens.items():
        part, _, inside = name.rpartition(".")
        (config[part] if part else config)[inside] = known[token]
    if len(tokenizer) > text["vocab_size"]:
        raise UserError(f"{about['model_type']} has {text['vocab_size']} tokens, fewer than the stand-in's")
    settings = CONFIG_MAPPING[about["model_type"]](**config)
    with quietly():
        (processor_of(tiny, tokenizer) if tiny.processor else tokenizer).save_pretrained(folder)
    _write(folder / CONFIG, {**settings.to_dict(), "architectures": [tiny.kind]})


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
