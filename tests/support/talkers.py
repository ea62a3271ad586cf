"""A language model as a run loads it, and what tests ask of its files: the one place of theirs that knows how."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from burnish.models.language.base import positions_within
from burnish.models.language.loading import load_language_model, load_outline, read_config
from burnish.models.language.overlaid import copy_words, reading_lines
from burnish.models.language.processors import audio_rate_of, load_processor
from burnish.models.language.universal import UniversalModel
from burnish.models.lora import add_adapters
from burnish.models.targets import language_targets
from burnish.models.tiny import describe_language
from burnish.models.tiny.language import TinyLanguage
from burnish.models.tiny.language.build import build, write
from burnish.models.tiny.language.calls import example_prompt
from burnish.options.language import LanguageLoraOptions, LanguageModelOptions
from burnish.tasks.language.dialogues import Dialogues
from burnish.tasks.language.engine import LanguageEngine
from burnish.types.prompt import Prompt


def options(path: Path, **given: Any) -> LanguageModelOptions:
    if isinstance(given.get("lora"), dict):
        given["lora"] = LanguageLoraOptions(**{"rank": 2} | given["lora"])
    return LanguageModelOptions(**{"path": str(path), "device": "cpu"} | given)


def load(path: Path, *names: str, **given: Any) -> Any:
    """A model, with adapters of these names, which begin as nothing."""
    chosen = options(path, **given)
    model: Any = load_language_model(chosen)
    if names:
        adapt(model.network, model.text(model.network), chosen.lora, *names)
    return model


def adapt(network: Any, decoder: Any, lora: LanguageLoraOptions | None, *names: str) -> set[str]:
    """Give a network adapters of these names; returns the layers that have some."""
    assert lora is not None
    add_adapters(network, lora, names, seed=0, default_targets=language_targets(network, decoder, lora))
    return {name for name, module in network.named_modules() if hasattr(module, "lora_A")}


def outline(path: Path, **given: Any) -> Any:
    """All of a model but its weights."""
    return load_outline(options(path, **given))


def moved(parameters: Any, by: float = 0.05) -> None:
    """Move what is trained at random."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(torch.randn(parameter.shape, generator=draw) * by)


def written(folder: Path, tiny: TinyLanguage | None = None, **described: Any) -> Path:
    """A tiny model of a class that is not among those of ``burnish tiny``, or one of these otherwise."""
    write(replace(tiny, **described) if tiny else TinyLanguage(**{"tokenizer": "pieces"} | described), folder, 0)
    return folder


def outlined(folder: Path) -> Any:
    """A model of the universal path that nothing was compared for."""
    return UniversalModel.load(folder, dtype=torch.float32, compute=torch.float32, device="cpu")


def class_that_reads(folder: Path, monkeypatch: Any) -> Any:
    """The class of transformers that would read the weights of a folder."""
    monkeypatch.setattr("burnish.models.language.universal.load_mapped", lambda kind, *_, **__: kind)
    return UniversalModel._network(folder, torch.float32)


def positions(config: Any) -> Any:
    return positions_within(config)


def processor(path: Path) -> Any:
    return load_processor(path)


def example(path: Path) -> dict[str, Any]:
    """What a processor makes of a prompt with two pictures and a video."""
    return dict(example_prompt(path, load_processor(path), ("image", "video", "image"), 1))


def told_of_tools(model: Any, tools: Any, text: str) -> list[int]:
    """Ids of a prompt of a dialogue whose environment has tools."""
    engine = LanguageEngine(SimpleNamespace(model=model), batch_size=4, seed=0)
    ids: list[int] = Dialogues(engine, tools).encode([Prompt(text=text)]).table.ids[0].tolist()
    return ids


def words_beside(model: Path, target: Path, **given: Any) -> list[str]:
    """Write what an adapter needs to be read with the user's tokenizer; returns code that reads it from "a"."""
    target.mkdir()
    chosen = options(model, **given)
    copy_words(chosen, read_config(chosen)[0], target)
    return reading_lines(chosen, Path("base"), Path("a") if given else None)


def network_of(name: str) -> Any:
    """Of a tiny class, in memory."""
    return build(describe_language(name), 0)[0]


def audio_rate(name: str) -> int | None:
    """That the processor of a tiny class takes."""
    return audio_rate_of(build(describe_language(name), 0)[2])
