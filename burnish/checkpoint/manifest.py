"""The manifest of a checkpoint: its files with sizes and hashes.

Its own hash detects damage, not forgery, so everything in it is checked before it is used: names stay inside the
folder, numbers are numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json

NAME = "manifest.json"
FIRST, FORMAT = 1, 2  # formats that can be read; the second is written
LARGEST = 256 << 20  # bytes: a line for each of a million files
VISIBLE = re.compile(r"(\d{8,})")  # folder names of complete checkpoints
_FILE = re.compile(r"state\.json|tensors/[\w-][\w.-]*\.safetensors|[\w-][\w.-]*\.pt|shards/[\w.-]*\w")
_HASH = re.compile(r"[0-9a-f]{64}")


def numbered(folder: Path) -> list[Path]:
    """Checkpoints of a folder by their names, in no order; none if there is no such folder."""
    return [path for path in folder.iterdir() if VISIBLE.fullmatch(path.name)] if folder.is_dir() else []


def render(content: dict[str, Any]) -> bytes:
    """A manifest with its own hash, which detects any change."""
    digest = hashlib.sha256(json.dumps(content, allow_nan=False).encode()).hexdigest()
    return json.dumps({"sha256": digest} | content, indent=1, allow_nan=False).encode() + b"\n"


def read(path: Path) -> dict[str, Any]:
    """The manifest in a checkpoint's folder: ``update``, ``identity``, ``score`` and ``files``.

    Raises:
        OSError: it can't be read.
        UserError: it is missing, damaged, or not written by a run.
    """
    file = path / NAME
    try:
        size = file.stat().st_size
        raw = file.read_bytes() if size <= LARGEST else b""
    except FileNotFoundError:
        raise UserError(
            f"{path} is not a complete checkpoint: {file} is missing; give a numbered folder in a run's checkpoints"
        ) from None
    return parse(raw, str(file), size)


def parse(raw: bytes, file: str, size: int | None = None) -> dict[str, Any]:
    """The manifest that a file holds.

    Args:
        raw: what was read of it.
        file: its name, for messages.
        size: its length in bytes, where not all of it was read.

    Raises:
        UserError: it is damaged, or not written by a run.
    """
    try:
        content: dict[str, Any] = parse_json(raw)
        content.pop("sha256")
        intact = render(content) == raw
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise UserError(f"{file} is damaged: its {len(raw) if size is None else size} bytes do not match its sha256")
    if type(content.get("format")) is not int or content["format"] not in (FIRST, FORMAT):
        raise UserError(f"{file} has format {content.get('format')!r:.40}, not {FORMAT}; a newer Burnish wrote it")
    if wrong := _wrong(content):
        raise UserError(f"{file} was not written by Burnish: {wrong}; use another checkpoint")
    return content


def _wrong(content: dict[str, Any]) -> str:
    """What is wrong with a manifest's content, or ""."""
    identity, score, files = content.get("identity"), content.get("score"), content.get("files")
    if not _count(content.get("update")):
        return "update is not a count"
    if not isinstance(identity, dict) or not all(isinstance(value, str) for value in identity.values()):
        return "identity is not a map of strings"
    if score is not None and not _number(score):
        return "score is not a number"
    metrics = content.get("unvalidated", {})
    if not isinstance(metrics, dict) or not all(value is None or _number(value) for value in metrics.values()):
        return "unvalidated is not a map of numbers"
    if not isinstance(files, dict) or not files:
        return "it lists no files"
    for name, about in files.items():
        if not _FILE.fullmatch(name):
            return f"{name!r:.80} is not a file name of a checkpoint"
        if not isinstance(about, dict) or not _count(about.get("size")):
            return f"{name} has no size"
        if not isinstance(about.get("sha256"), str) or not _HASH.fullmatch(about["sha256"]):
            return f"{name} has no sha256"
    return ""


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63
