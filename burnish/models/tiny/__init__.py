"""Tiny random pipelines and language models of the real classes, to try a recipe with on a CPU in seconds."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TypeVar

from burnish.models.tiny.base import Tiny, read
from burnish.models.tiny.language import LANGUAGE, TinyLanguage
from burnish.utils.errors import UserError

ALL: tuple[Tiny, ...] = tuple(Tiny(**one) for one in read("pipelines"))
Described = TypeVar("Described", bound=Tiny | TinyLanguage)


def describe(name: str) -> Tiny:
    """The tiny pipeline of that name.

    Args:
        name: of a model, such as wan2.2, or of a pipeline's class; of several models of a class it is the first.

    Raises:
        UserError: there is none; the message suggests the nearest.
    """
    return _named(name, ALL, "tiny pipeline")


def describe_language(name: str) -> TinyLanguage:
    """The tiny language model of that name.

    Args:
        name: its model_type, such as qwen3_vl, or its class.

    Raises:
        UserError: there is none; the message suggests the nearest.
    """
    return _named(name, LANGUAGE, "tiny language model")


def describe_any(name: str) -> Tiny | TinyLanguage:
    """The tiny pipeline or language model of that name.

    Raises:
        UserError: there is none; the message suggests the nearest.
    """
    every: tuple[Tiny | TinyLanguage, ...] = (*ALL, *LANGUAGE)
    return _named(name, every, "tiny pipeline or language model")


def _named(name: str, every: Sequence[Described], what: str) -> Described:
    known: dict[str, tuple[str, Described]] = {}
    for tiny in every:
        for own in (tiny.name, *tiny.also, tiny.kind):
            known.setdefault(own.lower(), (own, tiny))
    if name.lower() in known:
        return known[name.lower()][1]
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(known[one][0] for one in near)}? " if near else ""
    raise UserError(f"{name!r} is no {what}; {hint}'burnish tiny --list' shows all {len(every)}")
