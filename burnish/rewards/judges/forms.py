"""Forms of judging, by name: what is asked about a sample, and how what comes back is one number.

A form doesn't know who answers: Burnish's own decoder, or a server.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.rewards.base import Verdict
from burnish.rewards.judges import verdicts
from burnish.rewards.judges.replies import Chance, Reply, shown, weighted
from burnish.utils.errors import UserError
from burnish.utils.reading import read_text

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt

TEMPLATES = Path(__file__).parent / "templates"
YES = ("Yes", "yes", " Yes", " yes")
NO = ("No", "no", " No", " no")
COUNTS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
]  # fmt: skip
NOTED = 4  # answers of several questions that a note names
WRITTEN = 256  # most tokens of a verdict that an own pattern reads, unless said otherwise
LONG = 2048  # of one with its reasons


@dataclass(frozen=True)
class Asked:
    """One question of a form: words for places of its template, and whose probabilities are read."""

    words: Mapping[str, str] = field(default_factory=dict)
    answers: tuple[tuple[str, ...], ...] = ()
    first: bool = False


@dataclass(frozen=True)
class Form(ABC):
    """How a sample, or a pair of samples, becomes questions, and replies a verdict."""

    name: str
    template: str | None  # a file of ours with the question; None: it belongs to the judge, and the user gives it
    pairs: bool = False  # compares two samples: 1 if the first is better
    max_new_tokens: int = 0  # 0: nothing is written
    needs: tuple[str, ...] = ()  # places that its template must have

    @property
    def writes(self) -> bool:
        return self.max_new_tokens > 0

    def questions(self, prompt: Prompt) -> list[Asked]:
        """What is asked about one sample of a prompt.

        Raises:
            ValueError: the prompt lacks what the form asks about.
        """
        return [Asked()]

    @abstractmethod
    def read(self, replies: Sequence[Reply], prompt: Prompt, tolerance: float) -> Verdict:
        """The verdict of the replies to these questions, none of which has a problem.

        Args:
            replies: one per question.
            prompt: that they are about.
            tolerance: how far apart the bounds of a value may be, of its range, where a server lists only some tokens.
        """

    def question(self, file: Path | None) -> str:
        """The template.

        Raises:
            UserError: there is none, it can't be read, or lacks a place.
        """
        if file is None and self.template is None:
            raise UserError(
                f"form {self.name} reads what that judge was trained to write, and its question belongs to the judge: "
                f"save it from the judge's repository as a text file{_with(self.needs)}, and give it as question_file"
            )
        text = read_text(file if file is not None else TEMPLATES / f"{self.template}.txt").rstrip("\n")
        for place in self.needs:
            if f"{{{place}}}" not in text:
                raise UserError(f"question_file is {file}, which has no {{{place}}} in it; form {self.name} needs it")
        return text


@dataclass(frozen=True)
class Likely(Form):
    """The worths of answers by their probabilities, without a word written."""

    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # spellings
    worths: Mapping[str, float] = field(default_factory=dict)
    normalise: bool = False
    least: float = 0.0  # missing where all answers together are less likely

    def questions(self, prompt: Prompt) -> list[Asked]:
        return [Asked(answers=tuple(self.answers.values()))]

    def read(self, replies: Sequence[Reply], prompt: Prompt, tolerance: float) -> Verdict:
        chances = replies[0].chances
        assert chances is not None, "no chances in the reply to a question about answers"
        named = dict(zip(self.answers, chances, strict=True))
        if math.fsum(one.high for one in chances) < self.least or (
            self.normalise and math.fsum(one.low for one in chances) <= 0
        ):
            return Verdict(None, (), f"the judge says something else than {', '.join(named)} ({shown(named)})")
        worths = [self.worths[name] for name in named]
        bounds = weighted(chances, worths, normalise=self.normalise)
        span = max(worths) - min(worths if self.normalise else (0.0, *worths))
        if bounds.high - bounds.low > tolerance * span and bounds.high > bounds.low:
            return Verdict(
                None, (), f"the value lies anywhere from {bounds.low:.3g} to {bounds.high:.3g}, as not all answers are "
                f"among the tokens that the server lists ({shown(named)})",
            )  # fmt: skip
        known = weighted([Chance.known(one.low) for one in chances], worths, normalise=self.normalise)
        return Verdict(known.low, (), shown(named))


@dataclass(frozen=True)
class SoftTifa(Form):
    """GenEval2: the probability of the right answer to each of the prompt's questions, and one mean of them."""

    geometric: bool = True

    def questions(self, prompt: Prompt) -> list[Asked]:
        return [
            Asked({"question": question}, (spellings(question, answer),), first=True)
            for question, answer in vqa_list(prompt)
        ]

    def read(self, replies: Sequence[Reply], prompt: Prompt, tolerance: float) -> Verdict:
        chances = [reply.chances[0] for reply in replies if reply.chances is not None]
        loose = [one for one in chances if one.high - one.low > tolerance]
        if loose:
            return Verdict(
                None, (), f"{len(loose)} of {len(chances)} right answers are not among the tokens that the server lists"
            )
        likely = [one.low for one in chances]
        arithmetic = math.fsum(likely) / len(likely)
        geometric = math.exp(math.fsum(map(math.log, likely)) / len(likely)) if min(likely) > 0 else 0.0
        each = ", ".join(f"{answer} {p:.3f}" for (_, answer), p in zip(vqa_list(prompt)[:NOTED], likely, strict=False))
        note = f"AM {arithmetic:.3f}, GM {geometric:.3f} ({each}{', ...' if len(likely) > NOTED else ''})"
        value = geometric if self.geometric else arithmetic
        return Verdict(value, (), note, named={"am": arithmetic, "gm": geometric})


@dataclass(frozen=True)
class Written(Form):
    """What the judge writes, read by a parser."""

    parse: Callable[[str], verdicts.Read] = verdicts.unified_reward

    def read(self, replies: Sequence[Reply], prompt: Prompt, tolerance: float) -> Verdict:
        text = replies[0].text
        assert text is not None, "no text in the reply of a judge that writes"
        found = self.parse(text)
        if found.value is None and replies[0].cut:
            return Verdict(None, (), f"{found.note}; it was cut: raise max_new_tokens")
        return Verdict(found.value, (), found.note, named=found.named)


def vqa_list(prompt: Prompt) -> list[tuple[str, str]]:
    """The questions of a prompt with their right answers, from its record's ``vqa_list``, or that of its extra_info.

    Raises:
        ValueError: there is none, or it is no list of [question, answer].
    """
    info = prompt.info
    within = info.get("extra_info")
    found: Any = info.get("vqa_list") or (within.get("vqa_list") if isinstance(within, dict) else None)
    pairs = found if isinstance(found, list) else []
    if not pairs or not all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], str | int)
        for pair in pairs
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


SHOWN = {"yes": YES, "no": NO}
SCORES = {str(score): (str(score), f" {score}") for score in range(1, 6)}
ORDER = {"1": ("1", " 1"), "2": ("2", " 2")}


@cache
def named(name: str, subject: str) -> Form:
    """A form of a name that needs no options; ``subject`` is picture or response."""
    yes = {"yes": 1.0}
    made: dict[str, Form] = {
        "yes": Likely("yes", f"{subject}_yes_no", answers={"yes": YES}, worths=yes),
        "yes_no": Likely(
            "yes_no", f"{subject}_yes_no", answers=SHOWN, worths={"yes": 1.0, "no": 0.0}, normalise=True, least=0.01
        ),
        "scores": Likely(
            "scores", f"{subject}_scores", answers=SCORES, worths={one: float(one) for one in SCORES}, normalise=True,
            least=0.01,
        ),
        "pair": Likely(
            "pair", f"{subject}_pair", pairs=True, answers=ORDER, worths={"1": 1.0, "2": 0.0}, normalise=True,
            least=0.01,
        ),
        "vqascore": Likely("vqascore", "vqascore", needs=("prompt",), answers={"Yes": ("Yes",)}, worths={"Yes": 1.0}),
        "soft_tifa_gm": SoftTifa("soft_tifa_gm", "soft_tifa", needs=("question",)),
        "soft_tifa_am": SoftTifa("soft_tifa_am", "soft_tifa", needs=("question",), geometric=False),
    }  # fmt: skip
    if name in made:
        return made[name]
    pairs = name in ("unified_reward_think", "unified_reward_flex")
    return Written(name, None, pairs, LONG, needs=("prompt",), parse=getattr(verdicts, name))


def own(subject: str, answers: Mapping[str, float], *, normalise: bool, least: float, pattern: str | None) -> Form:
    """Form ``answers``: the user's own answers and their worths, by probability, or written and read by a pattern."""
    needs = ("response",) if subject == "response" else ()
    template = f"{subject}_yes_no"
    if pattern is None:
        spelt = {text: (text,) for text in answers}
        return Likely(
            "answers", template, needs=needs, answers=spelt, worths=dict(answers), normalise=normalise, least=least
        )
    return Written(
        "answers", template, max_new_tokens=WRITTEN, needs=needs, parse=verdicts.by_pattern(pattern, dict(answers))
    )


def _with(places: Sequence[str]) -> str:
    return f" with {' and '.join(f'{{{place}}}' for place in places)} in it" if places else ""
