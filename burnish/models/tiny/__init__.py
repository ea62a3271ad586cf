"""Tiny random pipelines and language models of the real classes, to try a recipe with on a CPU in seconds.

What each is is data: assets/tiny."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from burnish.utils.errors import UserError
from burnish.utils.paths import ASSETS

if TYPE_CHECKING:
    from torch import Tensor, nn

NOISE = 0.1  # of parameters that a network starts with as zeros or ones

Config: TypeAlias = Mapping[str, Any]
# of a part: another class than the signature names, changes to its configuration, both, or None to leave it out
Change: TypeAlias = str | Config | Sequence[Any] | None


@cache
def read(name: str) -> Any:
    """A file of tiny models: parts, pipelines or language."""
    return yaml.load((ASSETS / "tiny" / f"{name}.yaml").read_text(), yaml.CSafeLoader)


def drawn(network: nn.Module, *key: int | str) -> Iterator[tuple[Tensor, Tensor]]:
    """The numbers of every parameter, and noise [...] for them that depends on the key and the name alone."""
    import torch

    from burnish.utils.random import generator

    for path, parameter in network.named_parameters():
        if parameter.is_floating_point() and parameter.numel():
            noise = torch.randn(parameter.shape, generator=generator(*key, path))
            yield parameter.data, noise.to(parameter.dtype)


@dataclass(frozen=True, kw_only=True)
class Described:
    """A model by its class."""

    name: str
    """By which ``burnish tiny`` knows it: as people name a pipeline, or the model_type of a language model."""
    kind: str
    """Its class in diffusers or transformers."""
    also: Sequence[str] = ()
    """Further names."""
    values: Config = field(default_factory=dict)
    """Arguments of the class, or of its processor's, that are not parts."""
    needs: Sequence[str] = ()
    """Packages that its library imports for it, and that Burnish does not install."""

    def missing(self) -> list[str]:
        """Those that are not installed."""
        return [package for package in self.needs if find_spec(package) is None]


@dataclass(frozen=True, kw_only=True)
class Tiny(Described):
    """A pipeline of diffusers at a size that a CPU runs in seconds."""

    makes: str = "images"
    """images, videos or sound."""
    parts: Mapping[str, Change] = field(default_factory=dict)
    """Where a part differs from what the signature of the class and the tables of parts give."""
    height: int | None = 32
    """In pixels; None if the call takes no size."""
    width: int | None = 32
    num_frames: int | None = None
    """Of a video; None if the call takes no number of frames."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Arguments of the call beside the prompt that bring images and the like, and what each of them is."""
    call: Config = field(default_factory=dict)
    """Further arguments of the call, without which it would not run, or not at this size."""
    prompt: bool = True
    """Whether the call takes a prompt."""


@dataclass(frozen=True, kw_only=True)
class TinyLanguage(Described):
    """A language model of transformers at a size that a CPU runs in milliseconds."""

    config: Config = field(default_factory=dict)
    """Where its configuration differs from what the tables of parts give."""
    tokenizer: str = "qwen"
    style: str = "chatml"
    """How its chat template writes a conversation."""
    places: Mapping[str, str] = field(default_factory=dict)
    """What its chat template writes for an image, a video and sound: what it can read."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Special tokens, by the attributes under which its processor finds them at the tokenizer."""
    further: Sequence[str] = ()
    """Special tokens without such an attribute."""
    tokens: Mapping[str, str] = field(default_factory=dict)
    """Tokens whose ids its configuration has, by the names there; a dot leads into a part."""
    generation: Config = field(default_factory=dict)
    """Entries of its generation_config.json; a token stands for its id."""
    processor: str = ""
    """Its class in transformers; "" for a model that reads text alone."""
    parts: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Parts of the processor beside the tokenizer, by the names of its arguments: class and configuration."""


ALL = tuple(Tiny(**one) for one in read("pipelines"))
LANGUAGE = tuple(TinyLanguage(**one) for one in read("language")["models"])


def describe(name: str, among: Sequence[Described] = (*ALL, *LANGUAGE)) -> Any:
    """The tiny pipeline or language model of that name.

    Args:
        name: of a model, such as wan2.2, a model_type such as qwen3_vl, or a class; of several models of a class it is
            the first.
        among: those that it may be.

    Raises:
        UserError: there is none; the message suggests the nearest.
    """
    known: dict[str, tuple[str, Described]] = {}
    for tiny in among:
        for own in (tiny.name, *tiny.also, tiny.kind):
            known.setdefault(own.lower(), (own, tiny))
    if name.lower() in known:
        return known[name.lower()][1]
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(known[one][0] for one in near)}? " if near else ""
    raise UserError(f"{name!r} is not a tiny model; {hint}'burnish tiny --list' shows all {len(among)}")
