"""A judge behind an address: any server with OpenAI's /chat/completions, as vLLM, SGLang and llama.cpp have it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import sqlite3
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.rewards.judges.forms import Question, Reply
from burnish.types.media import Media
from burnish.types.prompt import Prompt

if TYPE_CHECKING:
    from burnish.rewards.judges.options import EndpointOptions

CHAT = "/chat/completions"
LISTED = 20  # likeliest tokens that servers of this protocol list at most
PICTURES = 32  # encoded ones that are kept: those that samples of a group begin from are sent with each of them
HIDDEN = 0.05  # probability that a spelling which is not listed may have at most; more makes the reward missing
PATIENCE = 30.0  # seconds for another process to finish its write
KEPT = 4096  # replies in memory


class Kept:
    """Replies by question: in a file of SQLite that processes and later runs share, or the last ones in memory."""

    def __init__(self, file: Path | None = None) -> None:
        """Raises:
        OSError: the file can't keep replies.
        """
        self.bounded = file is None
        try:
            self.base = sqlite3.connect(
                file or ":memory:", timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
            self.base.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, content TEXT NOT NULL)")
        except sqlite3.Error as error:
            raise OSError(f"{file} can't keep replies: {error}") from None

    def find(self, key: str) -> dict[str, Any] | None:
        """A reply that was given before."""
        row = self.base.execute("SELECT content FROM replies WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def put(self, key: str, reply: Mapping[str, Any]) -> None:
        """Keep a reply."""
        self.base.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, json.dumps(reply)))
        if self.bounded:
            self.base.execute("DELETE FROM replies WHERE rowid <= (SELECT max(rowid) FROM replies) - ?", (KEPT,))


@cache
def kept(urls: tuple[str, ...]) -> Kept:
    """Replies of these servers, in memory."""
    return Kept()


@dataclass(frozen=True)
class EndpointOracle:
    """Asks servers that serve the same model; replies are kept, and equal questions are asked once."""

    options: EndpointOptions
    max_new_tokens: int
    kept: Kept

    def replies(self, shown: Sequence[Prompt], questions: Sequence[Question]) -> list[Reply]:
        until = time.monotonic() + self.options.deadline
        # questions of a form are answered alike: where probabilities are read, nothing is written
        limit = 0 if any(question.answers for question in questions) else self.max_new_tokens
        keys = [self._key(prompt, limit) for prompt in shown]
        known = {key: self.kept.find(key) for key in keys}
        asked = {key: prompt for key, prompt in zip(keys, shown, strict=True) if known[key] is None}
        with ThreadPoolExecutor(self.options.concurrency) as pool:
            replies = pool.map(partial(self._ask, limit, until), asked.values())
            for key, reply in zip(asked, replies, strict=True):
                known[key] = reply
                if "problem" not in reply:
                    self.kept.put(key, reply)
        return [_reply(question, known[key] or {}) for question, key in zip(questions, keys, strict=True)]

    def _key(self, prompt: Prompt, limit: int) -> str:
        """Of what the server is asked: answers don't count, as one list of tokens serves them all."""
        what = [self.options.model, prompt.uid, limit, self.options.extra]
        return hashlib.blake2b(json.dumps(what, sort_keys=True).encode(), digest_size=16).hexdigest()

    def _ask(self, limit: int, until: float, prompt: Prompt) -> dict[str, Any]:
        """What a server says, in short, or ``problem``; nothing raises.

        Args:
            limit: tokens that it writes; 0 where the first one's probabilities are read.
            until: when it has to be there.
            prompt: text and pictures.
        """
        body = {
            "model": self.options.model,
            "messages": [{"role": "user", "content": content(prompt)}],
            "temperature": 0,
            "max_tokens": limit or 1,
            **({} if limit else {"logprobs": True, "top_logprobs": LISTED}),
            **self.options.extra,
        }
        try:
            reply = self.options.post({name: value for name, value in body.items() if value is not None}, until, CHAT)
            return _short(reply, listed=not limit)
        except (OSError, ValueError) as error:
            why = f"{', '.join(self.options.urls)}: {error}"
            return {"problem": why, "fault": why}


def content(prompt: Prompt) -> list[dict[str, Any]]:
    """The parts of a question, pictures as PNG."""
    pictures = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_png(media)}"}} for media in prompt.images
    ]
    return [*pictures, {"type": "text", "text": prompt.text}]


@lru_cache(PICTURES)
def _png(media: Media) -> str:
    buffer = io.BytesIO()
    media.image().save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _short(reply: Any, *, listed: bool) -> dict[str, Any]:
    """What of a reply is kept: a text, or the likeliest first tokens; ``problem`` where the judge refused.

    Raises:
        ValueError: it is no reply of this protocol.
    """
    try:
        choice = reply["choices"][0]
        message = choice["message"]
    except (TypeError, KeyError, IndexError):
        raise ValueError("its reply has no choices with a message") from None
    refusal = message.get("refusal")
    if refusal or choice.get("finish_reason") == "content_filter":
        return {"problem": f"the judge refused: {str(refusal or 'filtered')[:80]}"}
    if not listed:
        return {"text": str(message.get("content") or ""), "cut": choice.get("finish_reason") == "length"}
    try:
        first = choice["logprobs"]["content"][0]
        return {"tokens": {one["token"]: math.exp(one["logprob"]) for one in [first, *first["top_logprobs"]]}}
    except (TypeError, KeyError, IndexError, OverflowError):
        raise ValueError(
            "its reply has no logprobs with top_logprobs, which this form reads; let the server give them, or take a "
            "form that writes"
        ) from None


def _reply(question: Question, kept: Mapping[str, Any]) -> Reply:
    if "problem" in kept:
        return Reply(problem=str(kept["problem"]), fault=str(kept.get("fault", "")))
    if not question.answers:
        return Reply(text=kept["text"], cut=kept["cut"])
    for spelling in {spelling for spellings in question.answers for spelling in spellings}:
        if (share := may_be(spelling, kept["tokens"])) > HIDDEN:
            return Reply(problem=f"the server lists too few tokens: {spelling!r} may be as likely as {share:.2f}")
    return Reply(
        shares=tuple(math.fsum(kept["tokens"].get(text, 0.0) for text in answer) for answer in question.answers)
    )


def may_be(spelling: str, tokens: Mapping[str, float]) -> float:
    """The probability that a spelling may have besides, which counts as 0: at most that of the least likely token that
    is listed, or that of one which it begins with."""
    if spelling in tokens:
        return 0.0
    begun = [share for token, share in tokens.items() if token and spelling.startswith(token)]
    return max([min(*tokens.values(), 1 - math.fsum(tokens.values())), *begun], default=0.0)
