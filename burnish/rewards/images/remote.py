"""Rewards on what a generator draws, from the HTTP servers that ``burnish serve-reward`` starts."""

from __future__ import annotations

from typing import ClassVar

from burnish.registry import register
from burnish.rewards.base import Reward
from burnish.rewards.remote import RemoteOptions
from burnish.types.clips import Kind


@register("flow reward", "remote")
class Remote(RemoteOptions, Reward):
    """What a server of burnish serve-reward makes of images, clips or sounds."""

    reads: ClassVar[tuple[Kind, ...]] = ("image", "clip", "sound")
