"""Forms of judging, by name: what is asked about a sample, and how what comes back is one number.

A form is a template, answers whose probabilities are read or a parser of what is written. It doesn't know who answers:
Burnish's own decoder, or a server. What a judge wrote and can't be read has no value: the reward is then missing and
counted, never 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import permutations
from pathlib import Path
from statistics import fmean, mean
from typing import Any

from burnish.rewards.base import Score
from burnish.types.media import Media
from burnish.types.prompt import Prompt, about_media
from burnish.utils.errors import UserError
from burnish.utils.reading import read_text

PLACES = re.compile(r"\{(prompt|negative|response|other|answer|question)\}")
YES = ("Yes", "yes", " Yes", " yes")
NO = ("No", "no", " No", " no")
COUNTS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
]  # fmt: skip
NOTED = 4  # answers of several questions that a note names
LEAST = 0.01  # share of all that a judge may say below which its answers together are no score


@dataclass(frozen=True)
class Question:
    """One question of a form. Without answers the judge writes; with some, their probabilities are read instead."""

    words: Mapping[str, str] = field(default_factory=dict)  # for places of the template
    answers: tuple[tuple[str, ...], ...] = ()  # each with its spellings, whose probabilities are added
    first: bool = False  # of each spelling count the first token alone, and one that two share twice, as in GenEval2


@dataclass(frozen=True)
class Reply:
    """What a judge said: a text, or probabilities of the answers; neither where there is a problem."""

    text: str = ""
    shares: tuple[float, ...] = ()
    cut: bool = False  # the text ended at the limit of new tokens
    problem: str = ""  # why there is nothing
    fault: str = ""  # set where asking failed, as of a server that can't be reached


# whoever answers: a reply per question, in order, given text and images of each, and whether it writes or which
# probabilities are read; what can't be answered has a problem, and nothing raises for it
Ask = Callable[[Sequence[Prompt], Sequence[Question]], list[Reply]]


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a sample, or a pair of samples, becomes questions, and replies a score."""

    template: str | None = None  # a file of ours with the question; None: it belongs to the judge, the user gives it
    needs: tuple[str, ...] = ()  # places that its template must have
    pairs: bool = False  # compares two samples: 1 if the first is better
    parse: Parser | None = None  # of what is written; None: nothing is, and the probabilities of answers are read
    max_new_tokens: int = 0
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # spellings
    worths: Mapping[str, float] = field(default_factory=dict)
    normalise: bool = False
    least: float = 0.0  # missing where all answers together are less likely

    def questions(self, prompt: Prompt) -> list[Question]:
        """What is asked about one sample of a prompt.

        Raises:
            ValueError: the prompt lacks what the form asks about.
        """
        return [Question(answers=tuple(self.answers.values()))]

    def read(self, replies: Sequence[Reply], prompt: Prompt) -> Score:
        """The score of the replies to these questions, none of which has a problem."""
        reply = replies[0]
        if self.parse is not None:
            score = parsed(self.parse, reply.text)
            cut = score.value is None and reply.cut
            return replace(score, note=f"{score.note}; it was cut: raise max_new_tokens") if cut else score
        shares = dict(zip(self.answers, reply.shares, strict=True))
        note, total = ", ".join(f"{name} {share:.3f}" for name, share in shares.items()), math.fsum(reply.shares)
        if total < self.least or (self.normalise and not total):
            return Score(None, f"the judge says something else than {', '.join(shares)} ({note})")
        worth = math.fsum(share * self.worths[name] for name, share in shares.items())
        return Score(worth / total if self.normalise else worth, note)

    def question(self, file: Path | None) -> str:
        """The template.

        Raises:
            UserError: there is none, it can't be read, or lacks a place.
        """
        if file is None and self.template is None:
            raise UserError(
                "this form reads what its judge was trained to write, and the question belongs to the judge: save it "
                "from the judge's repository as a text file with {prompt} in it, and give it as question_file"
            )
        text = read_text(file or Path(__file__).parent / "templates" / f"{self.template}.txt").rstrip("\n")
        for place in self.needs:
            if f"{{{place}}}" not in text:
                raise UserError(f"{file} has no {{{place}}} in it, which this form needs")
        return text


@dataclass(frozen=True, kw_only=True)
class SoftTifa(Form):
    """GenEval2: the probability of the right answer to each of the prompt's questions, and one mean of them."""

    geometric: bool = True

    def questions(self, prompt: Prompt) -> list[Question]:
        return [Question({"question": asked}, (spellings(asked, answer),), True) for asked, answer in vqa_list(prompt)]

    def read(self, replies: Sequence[Reply], prompt: Prompt) -> Score:
        likely = [reply.shares[0] for reply in replies]
        arithmetic = math.fsum(likely) / len(likely)
        geometric = math.exp(math.fsum(map(math.log, likely)) / len(likely)) if min(likely) > 0 else 0.0
        each = ", ".join(f"{answer} {p:.3f}" for (_, answer), p in zip(vqa_list(prompt)[:NOTED], likely, strict=False))
        note = f"AM {arithmetic:.3f}, GM {geometric:.3f} ({each}{', ...' if len(likely) > NOTED else ''})"
        value = geometric if self.geometric else arithmetic
        return Score(value, note, {"am": arithmetic, "gm": geometric})


def vqa_list(prompt: Prompt) -> list[tuple[str, str]]:
    """The questions of a prompt with their right answers, from its record's ``vqa_list``, or that of its extra_info.

    Raises:
        ValueError: there is none, or it is no list of [question, answer].
    """
    within: Any = prompt.info.get("extra_info")
    listed: Any = prompt.info.get("vqa_list") or (within.get("vqa_list") if isinstance(within, dict) else None)
    pairs = listed if isinstance(listed, list) else []
    if not pairs or not all(
        isinstance(pair, list) and [*map(type, pair)] in ([str, str], [str, int]) for pair in pairs
    ):
        raise ValueError(f"{prompt.name} has no vqa_list, [[question, answer], ...], in its record")
    return [(question, str(answer)) for question, answer in pairs]


def spellings(question: str, answer: str) -> tuple[str, ...]:
    """How GenEval2 spells a right answer: yes in four ways, a number as word and as digits, with and without space."""
    plain = answer.strip().lower()
    if plain.isdigit() and int(plain) < len(COUNTS):
        plain = COUNTS[int(plain)]
    if plain in COUNTS and question.strip().lower().startswith("how many"):
        digits = str(COUNTS.index(plain))
        return (plain, plain.capitalize(), f" {plain}", f" {plain.capitalize()}", digits, f" {digits}")
    if plain in ("yes", "no"):
        return YES if plain == "yes" else NO
    return (answer, answer.capitalize(), f" {answer}", f" {answer.capitalize()}")


@cache
def named(name: str, subject: str) -> Form:
    """A form of a name that needs no options; ``subject`` is image or response."""
    yes_no, normal = f"{subject}_yes_no", partial(Form, normalise=True, least=LEAST)
    scores, order = ({str(score): (str(score), f" {score}") for score in range(1, n)} for n in (6, 3))
    made: dict[str, Form] = {
        "yes": Form(template=yes_no, answers={"yes": YES}, worths={"yes": 1.0}),
        "yes_no": normal(template=yes_no, answers={"yes": YES, "no": NO}, worths={"yes": 1.0, "no": 0.0}),
        "scores": normal(template=f"{subject}_scores", answers=scores, worths={n: float(n) for n in scores}),
        "pair": normal(template=f"{subject}_pair", pairs=True, answers=order, worths={"1": 1.0, "2": 0.0}),
        "vqascore": Form(template="vqascore", needs=("prompt",), answers={"Yes": ("Yes",)}, worths={"Yes": 1.0}),
        "soft_tifa_gm": SoftTifa(template="soft_tifa", needs=("question",)),
        "soft_tifa_am": SoftTifa(template="soft_tifa", needs=("question",), geometric=False),
    }
    if name in made:
        return made[name]
    return Form(needs=("prompt",), pairs=name in PAIRS, parse=PARSERS[name], max_new_tokens=2048)


def own(subject: str, answers: Mapping[str, float], *, normalise: bool, least: float, pattern: str | None) -> Form:
    """Form ``answers``: the user's own answers and their worths, by probability, or written and read by a pattern."""
    template, needs = f"{subject}_yes_no", ("response",) if subject == "response" else ()
    if pattern is not None:
        return Form(template=template, needs=needs, parse=by_pattern(pattern, answers), max_new_tokens=256)
    spelt = {text: (text,) for text in answers}
    return Form(template=template, needs=needs, answers=spelt, worths=answers, normalise=normalise, least=least)


@dataclass(frozen=True)
class Subject:
    """A sample as a judge meets it: words for the places of a template, and what is shown of it."""

    words: Mapping[str, str]
    images: tuple[Media, ...] = ()
    videos: tuple[Media, ...] = ()
    given: int = 0  # of the images, how many come first and are the prompt's own: a pair shows them once

    def asked(self, template: str, question: Question, other: Subject | None = None) -> Prompt:
        """What a judge is shown and asked, about this sample, or about it and another one.

        What looks like a place of the template in what fills one stays as it is.
        """
        words, images = {**self.words, **question.words}, self.images
        if other is not None:
            words["other"], images = other.words.get("response", ""), (*images, *other.images[other.given :])
        return about_media(PLACES.sub(lambda place: words.get(place[1], place[0]), template), images, self.videos)


def scored(
    ask: Ask, form: Form, template: str, subjects: Sequence[Subject], prompts: Sequence[Prompt],
    groups: Sequence[Sequence[int]],
) -> list[Score]:  # fmt: skip
    """Scores on samples, each by itself; or, of a form that compares, the share of comparisons that each wins in its
    group. All questions are asked at once.

    Every pair is shown in both orders, which cancels what a judge gives to the first or the second place.
    """
    pairs = [(i, i) for i in range(len(subjects))]  # of samples that are shown together
    if form.pairs:
        pairs = [pair for rows in groups for pair in permutations(rows, 2)]
    questions = [form.questions(prompts[i]) for i, _ in pairs]
    asked = [
        (subjects[i].asked(template, question, subjects[j] if form.pairs else None), question)
        for (i, j), own in zip(pairs, questions, strict=True)
        for question in own
    ]
    replies = iter(ask([shown for shown, _ in asked], [question for _, question in asked]))
    scores = {
        pair: _score(form, [next(replies) for _ in own], prompts[pair[0]])
        for pair, own in zip(pairs, questions, strict=True)
    }
    if not form.pairs:
        return list(scores.values())
    shares = {i: _share([(scores[i, j], scores[j, i]) for j in rows if j != i]) for rows in groups for i in rows}
    return [shares[row] for row in range(len(subjects))]


def _share(both: Sequence[tuple[Score, Score]]) -> Score:
    """Of a sample, where it stood first and where it stood second against each other one.

    Missing where nothing was compared, or a comparison has no score: others had all of theirs.
    """
    if not both:
        return Score(None, "there is no other sample of its prompt in the batch to compare it with")
    scores = [score for pair in both for score in pair]
    lacking = next((score for score in scores if score.value is None), None)
    if lacking is not None:
        return lacking
    values = [score.value or 0.0 for score in scores]
    place = fmean(values)  # what stood first won by so much
    share = fmean((1 + ahead - behind) / 2 for ahead, behind in zip(values[::2], values[1::2], strict=True))
    return Score(share, f"{len(both)} comparisons; what stood first got {place:.2f}", {"first": place})


def _score(form: Form, replies: Sequence[Reply], prompt: Prompt) -> Score:
    lacking = next((reply for reply in replies if reply.problem), None)
    return form.read(replies, prompt) if lacking is None else Score(None, lacking.problem, fault=lacking.fault)


# None: there is no score in the text. Patterns are possessive: a judge that writes a million spaces is read once, not
# once for each of them
Parser = Callable[[str], Score | None]
NUMBER = r"[-+]?\d+(?:\.\d+)?"


def one_number(pattern: str, low: float, high: float) -> Parser:
    """The last match of a pattern, a number within limits, divided by the upper one as in flow_grpo."""
    compiled = re.compile(pattern)

    def parse(text: str) -> Score | None:
        numbers = compiled.findall(_without_thoughts(text))
        right = numbers and low <= float(numbers[-1]) <= high
        return Score(float(numbers[-1]) / high, numbers[-1]) if right else None

    return parse


def unified_reward_2(text: str) -> Score | None:
    """``Alignment Score (1-5): x`` and the same of Coherence and Style: their mean, from 1..5 to 0..1."""
    aspect = rf"(Alignment|Coherence|Style)\s+Score\s*+(?:\(1-5\))?\s*+:\s*({NUMBER})"
    scores = {name.lower(): float(score) for name, score in re.findall(aspect, _without_thoughts(text))}
    if len(scores) < 3 or not all(1 <= score <= 5 for score in scores.values()):
        return None
    note = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
    return Score((mean(scores.values()) - 1) / 4, note, scores)


def unified_reward_think(text: str) -> Score | None:
    """``<answer>Image 1 is better</answer>``: 1 if the first of two images wins, 0 if the second does."""
    closed = (piece.partition("<answer>") for piece in reversed(text.split("</answer>")[:-1]))
    answer = next((inside for _, opened, inside in closed if opened), "")
    return _winner(re.search(r"(?i)Image\s*([12])\s+is\s+better", answer))


def unified_reward_flex(text: str) -> Score | None:
    """The last JSON object with a ``winner``, "Image 1" or "Image 2": 1 if the first image wins, 0 otherwise."""
    names = [str(value.get("winner")) for value in _objects(text)]
    winners = [score for name in names if (score := _winner(re.fullmatch(r"(?i)\s*Image\s*([12])\s*", name)))]
    return winners[-1] if winners else None


def _winner(match: re.Match[str] | None) -> Score | None:
    return match and Score(float(match[1] == "1"), f"image {match[1]} of 2 is better")


def unified_reward_edit(text: str) -> Score | None:
    """The last JSON object with ``score``, a list of numbers from 0 to 25: their mean, divided by 25."""
    for value in reversed(list(_objects(text))):
        scores = value.get("score")
        if isinstance(scores, list) and scores and all(type(n) in (int, float) and 0 <= n <= 25 for n in scores):
            return Score(mean(scores) / 25, ", ".join(f"{score:g}" for score in scores))
    return None


def sections(*aspects: str) -> Parser:
    """``## Score`` of numbered sections, 1..4 or N/A, between the headings ``# Detailed Judgement`` and ``# Summary``:
    the mean of those that have one as 0..1."""

    def parse(text: str) -> Score | None:
        body = _without_thoughts(text)
        body = body.partition("# Detailed Judgement")[2] or body
        body = re.split(r"^#\s*Summary", body, maxsplit=1, flags=re.MULTILINE)[0]
        starts: list[re.Match[str]] = []
        for match in re.finditer(r"^[^\w\n]*+(\d)\.\s*+\**+([A-Z][\w &/-]*)", body, re.MULTILINE):
            if len(starts) < len(aspects) and int(match[1]) == len(starts) + 1:  # lists within a section are none
                starts.append(match)
        ends = [*(match.start() for match in starts), len(body)][1:]
        sub_score = re.compile(rf"##\s*Score:\s*+\**+\s*+({NUMBER}|N/?A)", re.IGNORECASE)
        scores = [sub_score.search(body, start.end(), end) for start, end in zip(starts, ends, strict=True)]
        written = {name: score[1] for name, score in zip(aspects, scores, strict=False) if score is not None}
        named = {
            name: min(4.0, max(1.0, float(score)))
            for name, score in written.items()
            if not score.upper().startswith("N")
        }
        if len(written) < len(aspects) or not named:
            return None
        note = ", ".join(f"{name} {f'{named[name]:g}' if name in named else 'N/A'}" for name in written)
        return Score((mean(named.values()) - 1) / 3, note, named)

    return parse


def by_pattern(pattern: str, answers: Mapping[str, float]) -> Parser:
    """The first group of the last match: a number, or one of the answers with its worth."""

    def parse(text: str) -> Score | None:
        matches = [match[1].strip() for match in re.finditer(pattern, text) if match[1] is not None]
        if not matches:
            return None
        last = matches[-1]
        with suppress(ValueError):
            value = float(answers.get(last, last))
            if math.isfinite(value):
                return Score(value, last)
        return Score(None, f"the judge's verdict is {last!r}, neither a number nor one of its answers")

    return parse


def _without_thoughts(text: str) -> str:
    """A text without the thoughts before it, which may name scores that are not the score."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in the last 16384 characters of a text, in order; fences and words around them are left out, and
    so are objects within."""
    decoder, place, text = json.JSONDecoder(), 0, _without_thoughts(text)[-(1 << 14) :]
    while (start := text.find("{", place)) >= 0:
        try:
            value, place = decoder.raw_decode(text, start)
            yield value
        except (ValueError, RecursionError):
            place = start + 1


def parsed(parse: Parser, text: str) -> Score:
    """The score in a text, which is missing where there is none."""
    end = " ".join(text.split())[-60:]
    return parse(text) or Score(None, f"the judge's verdict can't be read: ...{end!r}")


PARSERS: Mapping[str, Parser] = {
    "unified_reward": one_number(rf"Final Score:\s*+\**+\s*+({NUMBER})", 1, 5),
    "unified_reward_2": unified_reward_2,
    "unified_reward_think": unified_reward_think,
    "unified_reward_flex": unified_reward_flex,
    "unified_reward_edit": unified_reward_edit,
    "rational_rewards": sections("faithfulness", "quality", "text"),
    "rational_rewards_edit": sections("aspect_1", "aspect_2", "aspect_3", "aspect_4"),  # by their numbers
    "qwen_aesthetic": one_number(rf"(?i)<Score>\s*({NUMBER})\s*</Score>", 0, 5),
}
PAIRS: Sequence[str] = ("unified_reward_think", "unified_reward_flex")  # that compare two samples
