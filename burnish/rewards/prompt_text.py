"""Prompts as tokens of networks with published weights: cleaned as their authors cleaned them."""

from __future__ import annotations

import html
import re
import string
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

CLIP_LENGTH = 77
SIGLIP_LENGTH = 64
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def as_open_clip(text: str) -> str:
    """A prompt as open_clip's tokenizer cleans it: broken encodings mended, HTML entities resolved, twice.

    The tokenizer of transformers leaves all of that, so that typographic quotes become other tokens.
    """
    import ftfy

    return _plain(html.unescape(html.unescape(ftfy.fix_text(text))))


def as_siglip(text: str) -> str:
    """A prompt as SigLIP's tokenizer cleans it: small letters, no punctuation."""
    return _plain(text.lower().translate(_PUNCTUATION))


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


@cache
def tokenizer_of(folder: Path) -> Any:
    """The tokenizer of a folder, loaded once.

    Raises:
        UserError: there is none, or it can't be loaded.
    """
    from transformers import AutoTokenizer

    from burnish.utils.errors import UserError, first_line
    from burnish.utils.weights import tokenizer_complaint

    if complaint := tokenizer_complaint(folder):
        raise UserError(complaint)
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises anything for damaged files
        raise UserError(f"the tokenizer in {folder} can't be loaded: {first_line(error):.300}") from None


def token_ids(tokenizer: Any, texts: Sequence[str], length: int, *, fill: bool = False) -> tuple[Tensor, Tensor]:
    """Tokens and mask [B, T] of texts, none longer than ``length``.

    Args:
        tokenizer: of transformers.
        texts: a special token written in one is text, as any other word.
        length: that longer texts are cut to; their last token stays the end.
        fill: pad all to ``length``, not to the longest.
    """
    found = tokenizer(
        list(texts), padding="max_length" if fill else True, truncation=True, max_length=length, return_tensors="pt",
        split_special_tokens=True, return_attention_mask=True,
    )  # fmt: skip
    return found["input_ids"], found["attention_mask"]
