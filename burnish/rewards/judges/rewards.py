"""Generative reward models: a model is asked about an image or a response, and what it says is the reward.

It runs in Burnish's own decoder, or behind an address with OpenAI's /chat/completions, and sees the images of the
prompt. Its score is the probability of its answers, without a word written (VQAScore, Lin et al. 2024,
arXiv:2404.01291), or what it writes, read by a pattern.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
import sqlite3
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from burnish.options import BelowOne, Count, Finite, Threads
from burnish.registry import ReadIf, options, register
from burnish.rewards.base import NOTHING, Compared, Reward, RewardInputs, Score, images_of
from burnish.rewards.judges import forms
from burnish.rewards.judges.forms import Question, Reply, Subject
from burnish.rewards.networks.language import LoadedOptions, encode, sees
from burnish.rewards.remote import ServerOptions, Url
from burnish.rewards.text.base import LanguageReward, Response
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.samples import Kind
from burnish.utils.errors import UserError
from burnish.utils.paths import resolve

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.model.universal import LanguageModel
    from burnish.types.batch import Gathered
    from burnish.types.completion import Encoded

OF_ANSWERS = ReadIf("form", "answers")

ResponseForm = Annotated[
    Literal["answers", "yes", "yes_no", "scores", "pair"],
    Field(
        description="What is asked, and how the reply is read: answers (yours, by probability or by a pattern), yes: "
        "P(yes), yes_no: P(yes) / (P(yes) + P(no)), scores: the expected digit of 1 to 5, pair: the share of "
        "comparisons with the other responses of its group that it wins."
    ),
]


@options
class FormOptions:
    """What a judge is asked, and how its reply is read."""

    subject: ClassVar[Literal["image", "response"]]
    name: ClassVar[str]
    form: str  # the classes that are registered list what they know

    question_file: str | None = None
    """Text file with the question, whose places {prompt}, {answer}, {response} and others of the form are replaced;
    null takes the question that comes with the form."""
    answers: Annotated[dict[Annotated[str, Field(pattern=r"\S")], Finite], OF_ANSWERS] = Field(
        default_factory=lambda: {"Yes": 1.0, "No": 0.0}, min_length=1
    )
    """Form answers: what the judge may answer, and what each is worth. Without a pattern nothing is written: the reward
    is the mean of the worths by the probabilities of the answers."""
    normalise: Annotated[bool, OF_ANSWERS] = True
    """Form answers: divide by the sum of these probabilities, P(Yes) / (P(Yes) + P(No)); false takes P(Yes) as is."""
    least: Annotated[BelowOne, OF_ANSWERS] = forms.LEAST
    """Form answers: missing where the answers together are less likely than this: the judge says something else."""
    pattern: Annotated[str | None, OF_ANSWERS] = None
    """Form answers: regular expression of the score. The judge writes, greedily, and the first group of the last
    match is a number, or one of the answers; where nothing matches, the reward is missing. null reads probabilities."""
    max_new_tokens: Count | None = None
    """Most tokens that the judge writes, for forms that write; null takes 256 with a pattern, and 2048 otherwise."""

    @model_validator(mode="after")
    def _form_reads(self) -> Self:
        if self.pattern is not None:
            try:
                groups = re.compile(self.pattern).groups
            except re.error as error:
                raise ValueError(f"pattern is {self.pattern!r}, which is not a regular expression: {error}") from None
            if not groups:
                raise ValueError(f"pattern is {self.pattern!r}; it must have a group around the score, as in (\\d+)")
            if not self.normalise or self.least != forms.LEAST:
                raise ValueError("normalise and least are never read with a pattern; remove them")
        if self.max_new_tokens is not None and self._form.parse is None:
            without = "without a pattern" if self.form == "answers" else f"when form is {self.form}"
            raise ValueError(f"max_new_tokens is never read {without}, as nothing is written; remove it")
        return self

    @property
    def _form(self) -> forms.Form:
        if self.form == "answers":
            return forms.own(
                self.subject, self.answers, normalise=self.normalise, least=self.least, pattern=self.pattern
            )
        return forms.named(self.form, self.subject)

    def _question(self) -> str:
        try:
            return self._form.question(None if self.question_file is None else Path(resolve(self.question_file)))
        except UserError as error:
            raise UserError(f"question_file of reward {self.name} is {self.question_file}: {error}") from None

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that lack what the question asks about."""
        super().check(prompts)  # type: ignore[misc]
        needs_answer = "{answer}" in self._question()
        for prompt in filter(self.applies_to, prompts):  # type: ignore[attr-defined]
            if needs_answer and prompt.answer is None:
                raise UserError(f"{prompt.name} has no answer, which the question of reward {self.name} names; add it")
            try:
                self._form.questions(prompt)
            except ValueError as error:
                raise UserError(f"reward {self.name} with form {self.form}: {error}") from None

    def compares(self) -> Compared:
        """What it judges."""
        return "groups" if self._form.pairs else "samples"

    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt], inputs: RewardInputs = NOTHING) -> list[Score]:
        """One score per sample, of each by itself or against the others of its group."""
        subjects = [self._subject(sample, prompt) for sample, prompt in zip(samples, prompts, strict=True)]
        form, question = self._form, self._question()
        ask = partial(self.replies, max_new_tokens=self.max_new_tokens or form.max_new_tokens)
        return forms.scored(ask, form, question, subjects, prompts, inputs.groups(prompts))

    @abstractmethod
    def replies(self, shown: Sequence[Prompt], questions: Sequence[Question], max_new_tokens: int) -> list[Reply]:
        """Whoever answers, see ``forms.Ask``."""

    @abstractmethod
    def _subject(self, sample: Any, prompt: Prompt) -> Subject:
        """A sample as the judge meets it."""


# who answers: Burnish's own decoder

Spelt = list[list[list[int]]]  # ids of each spelling of each answer


@options
class DecoderOptions(LoadedOptions):
    """A judge that Burnish loads, whose probabilities are read without a word written; one that sees is shown the
    images."""

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
    from burnish.language.decoders import decode
    from burnish.language.sampling import Sampling

    completion = decode(
        model, model.network, encoded.table, encoded.index.tolist(), [0] * len(encoded.index),
        Sampling(max_new_tokens=limit, temperature=0.0), batch_size=batch_size,
    )  # fmt: skip
    texts = [model.decode(ids[mask].tolist()) for ids, mask in zip(completion.ids, completion.mask, strict=True)]
    ended = completion.finished.tolist()
    return [Reply(text=text, cut=not end) for text, end in zip(texts, ended, strict=True)]


# who answers: a server

CHAT = "/chat/completions"


class Kept:
    """Replies by question: in a file of SQLite that processes and later runs share, or the last ones in memory."""

    def __init__(self, file: Path | None = None) -> None:
        self.bounded = file is None
        # another process has 30 seconds to finish its write
        self.base = sqlite3.connect(file or ":memory:", timeout=30, isolation_level=None, check_same_thread=False)
        self.base.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, content TEXT NOT NULL)")

    def find(self, key: str) -> Any:
        """A reply that was given before, or None."""
        row = self.base.execute("SELECT content FROM replies WHERE key = ?", (key,)).fetchone()
        return row and json.loads(row[0])

    def put(self, key: str, reply: Mapping[str, Any]) -> None:
        """Keep a reply."""
        self.base.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, json.dumps(reply)))
        if self.bounded:
            self.base.execute("DELETE FROM replies WHERE rowid <= (SELECT max(rowid) FROM replies) - 4096")


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
        except sqlite3.Error as error:
            raise UserError(
                f"store of reward {self.name} is {self.store}, which can't keep replies: {error}; give another file"
            ) from None

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
            prompt: text and images.
        """
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": content(prompt)}],
            "temperature": 0,
            "max_tokens": limit or 1,
            **({} if limit else {"logprobs": True, "top_logprobs": 20}),  # servers of this protocol list no more
            **self.extra,
        }
        try:
            reply = self.post({name: value for name, value in body.items() if value is not None}, until, CHAT)
            return _short(reply, listed=not limit)
        except (OSError, ValueError) as error:
            why = f"{', '.join(self.urls)}: {error}"
            return {"problem": why, "fault": why}


def content(prompt: Prompt) -> list[dict[str, Any]]:
    """The parts of a question, images as PNG."""
    images = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_png(media)}"}} for media in prompt.images
    ]
    return [*images, {"type": "text", "text": prompt.text}]


@lru_cache(32)  # images that samples of a group begin from are sent with each of them
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
        if (share := may_be(spelling, kept["tokens"])) > 0.05:
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


# the rewards


@options
class ImageJudge(FormOptions, Reward):
    """Shows an image, or frames of a clip, to a judge."""

    subject: ClassVar[Literal["image", "response"]] = "image"
    reads: ClassVar[tuple[Kind, ...]] = ("image", "clip")

    form: Literal[
        "answers", "yes", "yes_no", "scores", "pair", "vqascore", "soft_tifa_gm", "soft_tifa_am", "unified_reward",
        "unified_reward_2", "unified_reward_think", "unified_reward_flex", "unified_reward_edit", "rational_rewards",
        "rational_rewards_edit", "qwen_aesthetic",
    ] = "vqascore"  # fmt: skip
    """What is asked, and how the reply is read: vqascore: P("Yes"); yes, yes_no, scores, pair and answers as for
    responses; soft_tifa_gm and soft_tifa_am: GenEval2's mean over the questions in vqa_list of the record; the others
    read what the judge of that name writes, and need its question_file."""

    def _subject(self, sample: Any, prompt: Prompt) -> Subject:
        words = {"prompt": prompt.text, "negative": prompt.negative, "answer": prompt.answer or ""}
        return Subject(words, (*prompt.images, *map(Media.array, images_of(sample))), given=len(prompt.images))


@register("flow reward", "judge")
class Judge(DecoderOptions, ImageJudge):
    """What a vision-language model answers when it is asked about the image."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        if not sees(self.folder()):
            raise UserError(
                f"path of reward judge is {self.path!r}, which has no processor, so that it can't see what it judges; "
                "give a vision-language model"
            )


@register("flow reward", "judge_endpoint")
class JudgeEndpoint(EndpointOptions, ImageJudge):
    """What a vision-language model behind an OpenAI-compatible address answers when it is asked about the image."""


@options
class ResponseJudge(FormOptions, LanguageReward):
    """Shows a response to a judge."""

    subject: ClassVar[Literal["image", "response"]] = "response"

    def _subject(self, sample: Response, prompt: Prompt) -> Subject:
        text = prompt.turns[0].text
        if len(prompt.turns) > 1:
            text = "\n".join(f"{message.role}: {message.said}" for message in prompt.turns)
        words = {"prompt": text, "response": sample.text, "answer": prompt.answer or ""}
        if vars(self)["media"] == "leave_out":
            return Subject(words)
        return Subject(words, prompt.images, prompt.videos, given=len(prompt.images))


@register("language reward", "judge")
class LanguageJudge(DecoderOptions, ResponseJudge):
    """What a language model answers when it is asked about the response."""

    form: ResponseForm = "answers"
    media: Literal["refuse", "leave_out"] = "refuse"
    """Prompts with images or videos where the judge can't see them: refuse them, or leave_out the media."""

    def unfit(self, prompt: Prompt) -> str:
        unseen = self.media == "refuse" and (prompt.images or prompt.videos) and not sees(self.folder())
        ways = "give a model that sees, or set media=leave_out to judge the text alone"
        return f"the judge can't see the images; {ways}" if unseen else ""


@register("language reward", "judge_endpoint")
class LanguageJudgeEndpoint(EndpointOptions, ResponseJudge):
    """What a language model behind an OpenAI-compatible address answers when it is asked about the response."""

    form: ResponseForm = "yes_no"
    media: Literal["show", "leave_out"] = "show"
    """show sends the images of prompts, and refuses prompts with videos or sounds; leave_out judges the text."""

    def unfit(self, prompt: Prompt) -> str:
        unsent = self.media == "show" and (prompt.videos or prompt.audios)
        return "its videos and sounds can't be sent; set media=leave_out to judge the text" if unsent else ""
