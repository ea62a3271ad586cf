"""Pictures that were drawn for prompts, as what a reward model is asked about: one picture, or two to compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from burnish.data.conversation import asked
from burnish.data.language.prompts import fit_of, text_at
from burnish.data.pictures import BEGINNING, KEYS, Holds, picture_at
from burnish.data.pixels import images_of
from burnish.data.records import Record
from burnish.data.values import find, listed, shown, templated
from burnish.models.language.reward_head import about_picture
from burnish.options.language import LanguageDataOptions
from burnish.types.prompt import Prompt, about_media

TEXT = ("prompt", "text", "caption")
MOVING = (".mp4", ".webm", ".mov", ".mkv", ".avi", ".gif")


def drawn(
    record: Record, options: LanguageDataOptions, question: str, holds: Holds
) -> tuple[Prompt, tuple[Prompt, ...]]:
    """All that a record shows, and the question about each of its pictures, behind those that its prompt begins from.

    Args:
        record: a prompt with its picture, or with ``chosen`` and ``rejected``, under the keys that generators' data
            have them.
        options: under which key it has its prompt, and of which size pictures are shown.
        question: a text with ``{prompt}`` in it.
        holds: single pictures or pairs.

    Raises:
        ValueError: something is missing, has the wrong type, or both pictures are the same.
    """
    key, value = asked(record.values, TEXT, options.prompt_key)
    if not key:
        raise ValueError(f"has no {options.prompt_key or 'prompt'}; {listed(record.values)}")
    value = templated(options.template, value, record.values)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key!r} is {shown(value)}; with algorithm.question it must be the text drawn for")
    for usual in KEYS[holds]:
        _refuse_clip(*find(record.values, usual))
    pictures = [picture_at(record, usual) for usual in KEYS[holds]]
    if len(pictures) == 2 and pictures[0] == pictures[1]:
        raise ValueError("has the same picture as chosen and as rejected, which prefers nothing")
    _, before = find(record.values, BEGINNING[holds], options.images_key, "images_key")
    fit = fit_of(options)
    begun = () if before is None else images_of(before, record.folder)
    begun, after = (tuple(replace(media, fit=fit) for media in some) for some in (begun, pictures))
    source = text_at(record.values, "data_source") or "default"
    every = replace(about_media(value, (*begun, *after)), source=source, where=record.where, part=record.part)
    return every, tuple(about_picture(question, value, (*begun, one)) for one in after)


def _refuse_clip(key: str | None, value: Any) -> None:
    """A clip would be judged by its first frame, if at all."""
    held = isinstance(value, Mapping) and any(name in value for name in ("frames", "video"))
    several = isinstance(value, list | tuple) and value and isinstance(value[0], str | Mapping)  # else pixels
    path = value.get("path") if isinstance(value, Mapping) else value
    if held or several or (isinstance(path, str) and path.lower().endswith(MOVING)):
        raise ValueError(
            f"{key!r} is {shown(value)}: algorithm.question is asked about single pictures; give a frame of each clip "
            "(as a reward, the model then scores clips by their frames)"
        )
