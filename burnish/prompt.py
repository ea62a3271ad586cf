"""What a user asks for; free of torch, because processes that only score pictures read it too."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a user asks for. ``uid`` is a hash of the content: stable across runs, files and machines."""

    text: str
    negative: str = ""
    answer: str | None = None
    source: str = "default"

    @cached_property
    def uid(self) -> str:
        content = json.dumps([self.text, self.negative, self.answer, self.source], ensure_ascii=False)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
