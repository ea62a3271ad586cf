"""What a tiny pipeline is: its class, its parts and the arguments of its call. All are data: assets/tiny."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeAlias

import yaml

from burnish.utils.paths import ASSETS

Config: TypeAlias = Mapping[str, Any]
# of a part: another class than the signature names, changes to its configuration, both, or None to leave it out
Change: TypeAlias = str | Config | Sequence[Any] | None
Media: TypeAlias = Literal["image", "images", "mask", "video", "video mask", "text"]
Inputs: TypeAlias = Mapping[str, Media]
Parts: TypeAlias = Mapping[str, Change]


@cache
def read(name: str) -> Any:
    """A file of tiny models: parts, pipelines or language."""
    return yaml.load((ASSETS / "tiny" / f"{name}.yaml").read_text(), yaml.CSafeLoader)


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A pipeline class of diffusers at a size that a CPU runs in seconds."""

    name: str
    """By which ``burnish tiny`` knows it: a model that people name so."""
    pipeline: str
    """Its class in diffusers."""
    makes: Literal["images", "videos", "sound"] = "images"
    also: Sequence[str] = ()
    """Further names."""
    parts: Parts = field(default_factory=dict)
    """Where a part differs from what the signature of the class and the tables of parts give."""
    values: Config = field(default_factory=dict)
    """Arguments of the class that are not parts."""
    height: int | None = 32
    """In pixels; None if the call takes no size."""
    width: int | None = 32
    num_frames: int | None = None
    """Of a video; None if the call takes no number of frames."""
    inputs: Inputs = field(default_factory=dict)
    """Arguments of the call beside the prompt that bring pictures and the like, and what each of them is."""
    call: Config = field(default_factory=dict)
    """Further arguments of the call, without which it would not run, or not at this size."""
    prompt: bool = True
    """Whether the call takes a prompt."""
    needs: Sequence[str] = ()
    """Packages that diffusers or transformers import for it, and that Burnish does not install."""

    @property
    def kind(self) -> str:
        """Its class."""
        return self.pipeline
