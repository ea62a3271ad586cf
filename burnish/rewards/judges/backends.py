"""Who answers a judge's questions: Burnish's own decoder, or any server with OpenAI's /chat/completions."""

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
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from burnish.options import Threads
from burnish.registry import options
from burnish.rewards.judges.forms import Question, Reply
from burnish.rewards.networks.language import LoadedOptions, encode, sees
from burnish.rewards.remote import ServerOptions, Url
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from burnish.utils.paths import resolve

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.model.universal import LanguageModel
    from burnish.types.batch import Gathered
    from burnish.types.completion import Encoded

Spelt = list[list[list[int]]]  # ids of each spelling of each answer


@options
class DecoderOptions(LoadedOptions):
    """A judge that Burnish loads, whose probabilities are read without a word written; one that sees is shown the
    pictures."""

    @property
    def _sees(self) -> bool:
        return sees(self.folder())

    def replies(self, shown: Sequence[Prompt], questions: Sequence[Question], max_new_tokens: int) -> list[Reply]:
        """See ``forms.Ask``."""
        if not questions:
            return []
        model = self.load()
        encoded = encode(model, shown)
        lengths = [encoded.table.lengths[row] for row in encoded.index.tolist()]

        def answered(batch: Sequence[int]) -> list[Reply]:
            part, own = encoded.select(batch), [questions[i] for i in batch]
            if not own[0].answers:  # questions of a form are all answered alike
                return written(model, part, max_new_tokens, self.batch_size)
            spelt = [spelt_of(model, question) for question in own]
            single = all(len(ids) == 1 for row in spelt for answer in row for ids in answer)
            likely = (first_tokens if single else whole_answers)(model, part, spelt)
            return [Reply(shares=tuple(row)) for row in likely]

        replies = self.by_length(model.network, lengths, min(self.max_length, model.max_positions), answered)
        return [Reply(problem=reply) if isinstance(reply, str) else reply for reply in replies]


def spelt_of(model: LanguageModel, question: Question) -> Spelt:
    """Spellings as tokens; different spellings of the same tokens count once, unless only the first ones count."""
    ids = [[model.response_ids(text)[: -len(model.end)] for text in spellings] for spellings in question.answers]
    if question.first:
        return [[tokens[:1] for tokens in answer] for answer in ids]
    return [[list(tokens) for tokens in dict.fromkeys(map(tuple, answer))] for answer in ids]


def first_tokens(model: LanguageModel, encoded: Gathered[Encoded], spelt: Sequence[Spelt]) -> list[list[float]]:
    """Probabilities of single tokens, of one forward pass per question."""
    import torch

    from burnish.language.logprobs import response_states, scaled_logits
    from burnish.language.offline import offline_completion

    trace = offline_completion(model, encoded, [[model.end[0]]] * len(spelt))  # which nothing reads
    states = response_states(model, model.network, trace)
    if states.logits is not None:
        logits = states.logits.float()
        logits[:, model.banned.to(logits.device)] = -torch.inf
    else:
        head = model.head(model.network)
        banned = model.banned.to(states.hidden.device)
        logits = scaled_logits(states.hidden, head.weight, 1 / head.scale, banned, head.cap)
    shares: Tensor = logits.softmax(-1).cpu()
    return [
        [math.fsum(float(row[ids[0]]) for ids in answer) for answer in answers]
        for row, answers in zip(shares, spelt, strict=True)
    ]


def whole_answers(model: LanguageModel, encoded: Gathered[Encoded], spelt: Sequence[Spelt]) -> list[list[float]]:
    """Probabilities of answers of several tokens, every one of which is read."""
    import torch

    from burnish.language.logprobs import response_logprobs
    from burnish.language.offline import offline_completion

    flat = [(row, ids) for row, answers in enumerate(spelt) for answer in answers for ids in answer]
    place = torch.tensor([row for row, _ in flat])
    trace = offline_completion(model, encoded.select(place), [ids for _, ids in flat])
    scores = response_logprobs(model, model.network, trace, temperature=1.0)
    likely = iter(scores.logprob.sum(1).exp().cpu().tolist())
    return [[math.fsum(next(likely) for _ in answer) for answer in answers] for answers in spelt]


def written(model: LanguageModel, encoded: Gathered[Encoded], limit: int, batch_size: int) -> list[Reply]:
    """What the model writes, greedily."""
    from burnish.language.decoding import Sampling, decode

    completion = decode(
        model, model.network, encoded.table, encoded.index.tolist(), [0] * len(encoded.index),
        Sampling(max_new_tokens=limit, temperature=0.0), batch_size=batch_size,
    )  # fmt: skip
    texts = [model.decode(ids[mask].tolist()) for ids, mask in zip(completion.ids, completion.mask, strict=True)]
    ended = completion.finished.tolist()
    return [Reply(text=text, cut=not end) for text, end in zip(texts, ended, strict=True)]


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

    def find(self, key: str) -> Any:
        """A reply that was given before, or None."""
        row = self.base.execute("SELECT content FROM replies WHERE key = ?", (key,)).fetchone()
        return row and json.loads(row[0])

    def put(self, key: str, reply: Mapping[str, Any]) -> None:
        """Keep a reply."""
        self.base.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, json.dumps(reply)))
        if self.bounded:
            self.base.execute("DELETE FROM replies WHERE rowid <= (SELECT max(rowid) FROM replies) - ?", (KEPT,))


@cache
def kept(urls: tuple[str, ...]) -> Kept:
    """Replies of these servers, in memory."""
    return Kept()


@options
class EndpointOptions(ServerOptions):
    """A judge behind one or several addresses."""

    url: Url | Annotated[list[Url], Field(min_length=1)]
    """Address of a server with OpenAI's protocol, up to /v1; or several that serve the same model: the one with the
    fewest requests under way is asked, and one that fails rests for a while."""
    model: Annotated[str, Field(min_length=1)]
    """Name of the model, as the server knows it."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further keys of the request, as {chat_template_kwargs: {enable_thinking: false}}; null leaves one of ours out."""
    concurrency: Threads = 16
    """Concurrent requests."""
    store: str | None = None
    """File that keeps replies, by model, question and images, for all processes of a machine and for later runs; null
    keeps the last 4096 in memory alone."""

    @property
    def urls(self) -> list[str]:
        """Of all servers, up to /v1."""
        return [url.rstrip("/").removesuffix(CHAT) for url in super().urls]

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse addresses, a token and a store that can't be used."""
        super().check(prompts)
        try:
            self._kept()
        except OSError as error:
            raise UserError(f"store of reward {self.name} is {self.store}: {error}; give another file") from None

    def _kept(self) -> Kept:
        return kept(tuple(self.urls)) if self.store is None else Kept(resolve(self.store))

    def replies(self, shown: Sequence[Prompt], questions: Sequence[Question], max_new_tokens: int) -> list[Reply]:
        """See ``forms.Ask``; replies are kept, and equal questions are asked once."""
        until = time.monotonic() + self.deadline
        # questions of a form are answered alike: where probabilities are read, nothing is written
        limit = 0 if any(question.answers for question in questions) else max_new_tokens
        store, keys = self._kept(), [self._key(prompt, limit) for prompt in shown]
        known = {key: store.find(key) for key in keys}
        asked = {key: prompt for key, prompt in zip(keys, shown, strict=True) if known[key] is None}
        with ThreadPoolExecutor(self.concurrency) as pool:
            for key, reply in zip(asked, pool.map(partial(self._ask, limit, until), asked.values()), strict=True):
                known[key] = reply
                if "problem" not in reply:
                    store.put(key, reply)
        return [_reply(question, known[key]) for question, key in zip(questions, keys, strict=True)]

    def _key(self, prompt: Prompt, limit: int) -> str:
        """Of what the server is asked: answers don't count, as one list of tokens serves them all."""
        what = json.dumps([self.model, prompt.uid, limit, self.extra], sort_keys=True)
        return hashlib.blake2b(what.encode(), digest_size=16).hexdigest()

    def _ask(self, limit: int, until: float, prompt: Prompt) -> dict[str, Any]:
        """What a server says, in short, or ``problem``; nothing raises.

        Args:
            limit: tokens that it writes; 0 where the first one's probabilities are read.
            until: when it has to be there.
            prompt: text and pictures.
        """
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": content(prompt)}],
            "temperature": 0,
            "max_tokens": limit or 1,
            **({} if limit else {"logprobs": True, "top_logprobs": LISTED}),
            **self.extra,
        }
        try:
            reply = self.post({name: value for name, value in body.items() if value is not None}, until, CHAT)
            return _short(reply, listed=not limit)
        except (OSError, ValueError) as error:
            why = f"{', '.join(self.urls)}: {error}"
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
