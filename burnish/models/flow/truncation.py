"""Prompts that are longer than what the text encoders of a pipeline read."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from burnish.models.loading import quietly
from burnish.utils.reading import understood

LENGTH = "max_sequence_length"


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
    for name, value in index.items():
        library, named = value if isinstance(value, list) and len(value) == 2 else (None, None)
        if library != "transformers" or not (path / name / "tokenizer_config.json").is_file():
            continue
        # processors have classes of their own, which need what reads pictures
        own = str(named) if "Tokenizer" in str(named) else "AutoTokenizer"
        kind = getattr(transformers, own, transformers.AutoTokenizer)
        with quietly(), understood(f"model.path is {path}, whose {name} can't be loaded"):
            found[name] = kind.from_pretrained(path / name, local_files_only=True)
    return found


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
    limits = [(one, min(one.model_max_length, asked or one.model_max_length)) for one in tokenizers]
    distinct = sorted(set(texts))
    over: list[tuple[int, int, str]] = []  # tokens, limit, text
    for text in distinct if limits else ():
        with quietly():  # it is told here, in the run's own terms
            each = [(len(tokenizer(text).input_ids), limit) for tokenizer, limit in limits]
        if all(count > limit for count, limit in each):
            count, limit = max(each, key=lambda one: one[1])
            over.append((count, limit, text))
    if not over:
        return ""
    count, limit, text = max(over)
    return (
        f"{len(over)} of {len(distinct)} prompts have more tokens than a {kind.__name__} reads, which leaves out their "
        f"ends: {text!r:.60} has {count}, of which it reads {limit}; shorten them"
        f"{f', or set rollout.{LENGTH} higher' if LENGTH in taken else ''}"
    )
