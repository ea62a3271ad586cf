"""What a tiny language model is: its class, its configuration, its tokenizer and its processor, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from burnish.models.tiny.base import Config

Kind: TypeAlias = Literal["image", "video", "audio"]
Tokenizer: TypeAlias = Literal["qwen", "gemma", "llama", "pieces"]
Style: TypeAlias = Literal["chatml", "gemma", "llama3", "mistral", "plain"]


@dataclass(frozen=True, kw_only=True)
class TinyLanguage:
    """A language model of transformers at a size that a CPU runs in milliseconds."""

    name: str
    """Its model_type in config.json."""
    model: str
    """Its class in transformers."""
    also: Sequence[str] = ()
    """Further names."""
    config: Config = field(default_factory=dict)
    """Where its configuration differs from what the tables of parts give."""
    tokenizer: Tokenizer = "qwen"
    style: Style = "chatml"
    """How its chat template writes a conversation."""
    places: Mapping[Kind, str] = field(default_factory=dict)
    """What its chat template writes for a picture, a video and sound: what it can read."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Special tokens, by the attributes under which its processor finds them at the tokenizer."""
    further: Sequence[str] = ()
    """Special tokens without such an attribute."""
    tokens: Mapping[str, str] = field(default_factory=dict)
    """Tokens whose ids its configuration has, by the names there; a dot leads into a part."""
    processor: str = ""
    """Its class in transformers; "" for a model that reads text alone."""
    values: Config = field(default_factory=dict)
    """Arguments of the processor that are not parts."""
    parts: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Parts of the processor beside the tokenizer, by the names of its arguments: class and configuration."""
    needs: Sequence[str] = ()
    """Packages that transformers imports for it, and that Burnish does not install."""

    @property
    def kind(self) -> str:
        """Its class."""
        return self.model

    @property
    def reads(self) -> tuple[str, ...]:
        """What its prompts may bring beside text."""
        return tuple(self.places)
