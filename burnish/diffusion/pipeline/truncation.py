"""Prompts that the text encoders of a pipeline don't read in full: too long ones, and tokens that they don't know."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from heapq import nlargest
from pathlib import Path
from typing import Any

from burnish.diffusion.pipeline.loading import config_of, parts_of
from burnish.models.loading import quietly
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object
from burnish.utils.reading import understood

LENGTH = "max_sequence_length"
LOOKED_AT = 10_000  # texts that are tokenised: a million would take minutes


def tokenizers_of(path: Path, index: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizers of a pipeline by the names of its parts, and those of its processors; nothing else is loaded.

    Args:
        path: folder of the pipeline.
        index: its model_index.json.

    Raises:
        UserError: one can't be loaded.
    """
    import transformers

    found: dict[str, Any] = {}
    for name in parts_of(index):
        library, named = index[name]
        settings = path / name / "tokenizer_config.json"
        if library != "transformers" or not settings.is_file():
            continue
        read_object(settings)  # or its library would fail without naming it
        # processors have classes of their own, which need what reads pictures
        own = str(named) if "Tokenizer" in str(named) else "AutoTokenizer"
        kind = getattr(transformers, own, transformers.AutoTokenizer)
        with quietly(), understood(f"model.path is {path}, whose {name} can't be loaded"):
            found[name] = kind.from_pretrained(path / name, local_files_only=True)
    return found


def vocabularies_of(path: Path, index: Mapping[str, Any]) -> dict[str, int]:
    """How many tokens each text encoder of a pipeline knows, where its config.json says so; no weight is read."""
    sizes = {name: config_of(path, name).get("vocab_size") for name in parts_of(index) if "text_encoder" in name}
    return {name: size for name, size in sizes.items() if isinstance(size, int)}


def longer(tokenizer: Any, texts: Iterable[str], limit: int) -> dict[str, int]:
    """The texts of more than ``limit`` tokens, and how many each has; only the longest texts are tokenised."""
    spare = limit - tokenizer.num_special_tokens_to_add()  # a token has a byte at least
    sizes = {text: size for text in texts if (size := len(text.encode())) >= spare}
    longest = nlargest(LOOKED_AT, sizes, key=sizes.__getitem__)
    return {text: len(ids) for text, ids in _tokenised(tokenizer, longest) if len(ids) > limit}


def _tokenised(tokenizer: Any, texts: list[str]) -> Iterable[tuple[str, list[int]]]:
    """The texts with their token ids."""
    with quietly():  # what is too long is told by its caller, in the run's own terms
        return zip(texts, tokenizer(texts).input_ids if texts else [], strict=True)


def refuse_unknown(tokenizer: Any, texts: Iterable[str], encoder: str, size: int) -> None:
    """Refuse a tokenizer of another model: one that gives ids beyond the vocabulary of its text encoder.

    Raises:
        UserError: with the first such text.
    """
    if max(tokenizer.get_vocab().values()) < size:
        return
    for text, ids in _tokenised(tokenizer, list(texts)):
        if (token := max(ids, default=0)) >= size:
            raise UserError(
                f"prompt {text!r:.60} has token id {token}, but {encoder} has only {size}: the tokenizer belongs to "
                "another model; fetch the model again"
            )


def truncated(kind: type, tokenizers: Iterable[Any], length: int | None, texts: Iterable[str]) -> str:
    """What is said of texts that every text encoder truncates; nothing where each is read by one of them.

    Args:
        kind: class of the pipeline.
        tokenizers: its own. Those of several encoders read the same text: CLIP's sees the beginning alone.
        length: rollout.max_sequence_length, or None for the pipeline's own.
        texts: of prompts.
    """
    taken = inspect.signature(inspect.unwrap(kind.__call__)).parameters
    usual = taken[LENGTH].default if LENGTH in taken else None
    asked = usual if length is None else length
    limits = sorted(((min(one.model_max_length, asked or one.model_max_length), one) for one in tokenizers),
                    key=lambda pair: pair[0], reverse=True)  # fmt: skip
    if not limits:
        return ""
    limit, widest = limits[0]
    over = longer(widest, texts, limit)
    for other, tokenizer in limits[1:]:
        over = {text: over[text] for text in longer(tokenizer, over, other)}
    if not over:
        return ""
    count, text = max((count, text) for text, count in over.items())
    return (
        f"{len(over)} prompt{'s have' if len(over) > 1 else ' has'} more tokens than a {kind.__name__} reads, which "
        f"leaves out the end: {text!r:.60} has {count}, of which it reads {limit}; shorten them"
        f"{f', or set rollout.{LENGTH} higher' if LENGTH in taken else ''}"
    )
