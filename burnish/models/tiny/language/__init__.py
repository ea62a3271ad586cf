"""Tiny random language models of the real classes, with tokenizers, chat templates and processors."""

from burnish.models.tiny.base import read
from burnish.models.tiny.language.base import TinyLanguage

__all__ = ["LANGUAGE", "TinyLanguage"]

LANGUAGE: tuple[TinyLanguage, ...] = tuple(TinyLanguage(**one) for one in read("language")["models"])
