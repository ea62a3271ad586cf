"""Answers in responses, and rewards that compare them with the right one: text, boxes, and letters of choices."""

from __future__ import annotations

import re
import string
from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from burnish.registry import options, register
from burnish.rewards.base import Score
from burnish.rewards.text.base import LanguageReward, Response
from burnish.types.prompt import Prompt

Where = Literal["tag", "boxed", "tag_or_boxed", "last_line", "all"]


def extract(text: str, where: Where) -> str | None:
    r"""The answer in a text, without white space around it; None if there is none.

    Args:
        text: a response, or a reference answer that may be wrapped as responses are.
        where: ``tag`` the first <answer>...</answer>; ``boxed`` the last \boxed{...}; ``tag_or_boxed`` the one that
            is there; ``last_line`` the last line that is not blank; ``all`` the full text.
    """
    match where:
        case "tag":
            _, _, behind = text.partition("<answer>")
            inside, closed, _ = behind.partition("</answer>")
            return inside.strip() if closed else None
        case "boxed":
            return boxed(text)
        case "tag_or_boxed":
            tagged = extract(text, "tag")
            return boxed(text) if tagged is None else tagged
        case "last_line":
            lines = text.strip().splitlines()
            return lines[-1].strip() if lines else None
        case "all":
            return text.strip() or None


def boxed(text: str) -> str | None:
    r"""The content of the last closed \boxed{...}, nested braces included; None if there is none."""
    opened: list[tuple[int, bool]] = []  # not closed yet: where their content begins, and if it is a box
    last = (-1, -1)
    for brace in re.finditer(r"\\boxed\{|[{}]", text):
        if brace[0] != "}":
            opened.append((brace.end(), brace[0] != "{"))
        elif opened:
            begin, box = opened.pop()
            last = max(last, (begin, brace.start())) if box else last
    return None if last[0] < 0 else text[last[0] : last[1]].strip()


def reference(answer: str, where: Where) -> str:
    """A right answer, which may be written in the same form as in responses."""
    inner = extract(answer, where) if where != "last_line" else None
    return answer.strip() if inner is None else inner


@options
class AnswerReward(LanguageReward):
    """Base of rewards that compare a response's answer with the prompt's."""

    extract: Where = "tag"
    r"""Where the answer is: tag (<answer>...</answer>, the first), boxed (\boxed{...}, the last), tag_or_boxed,
    last_line, or all of the response."""

    def unfit(self, prompt: Prompt) -> str:
        if not (prompt.answer or "").strip():
            return (
                "it has no answer; add one to the record, name its key with data.answer_key, or leave such prompts out "
                "with labels"
            )
        why = self.complaint(reference(prompt.answer or "", self.extract))
        return why and f"answer {prompt.answer!r:.60} {why}"

    def complaint(self, wanted: str) -> str:
        """Why nothing can be compared with a right answer, or ""."""
        return ""

    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Score]:
        texts = [extract(response.text, self.extract) for response in responses]
        return [
            Score(0.0, "no answer", answer="") if found is None
            else self._score(found, reference(prompt.answer or "", self.extract))
            for found, prompt in zip(texts, prompts, strict=True)
        ]  # fmt: skip

    @abstractmethod
    def _score(self, found: str, wanted: str) -> Score:
        """The score on the answer that was found."""


# except signs, percent signs, and punctuation between digits
PUNCTUATION = re.compile(
    rf"(?!(?<![\w)])[-+]\.?\d|(?<=\d)%|(?<=\d)[.,:/](?=\d)|(?<![\w.])\.\d)[{re.escape(string.punctuation)}]"
)


@register("language reward", "exact")
class Exact(AnswerReward):
    """1 if the answer is the prompt's, else 0; a response without an answer gets 0."""

    ignore_case: bool = False
    """Ignore upper and lower case."""
    ignore_punctuation: bool = False
    """Ignore punctuation, articles and repeated white space, as SQuAD's exact match does, except in numbers (-5, 3.5,
    12:30, 40%) and where nothing else is left (the letter A)."""

    def _score(self, found: str, wanted: str) -> Score:
        plain = self._plain(found)
        return Score(float(plain == self._plain(wanted)), found, answer=plain)

    def _plain(self, text: str) -> str:
        if self.ignore_case:
            text = text.casefold()
        if self.ignore_punctuation:
            words = PUNCTUATION.sub(" ", text.replace("−", "-")).split()
            # an answer that is only an article is meant as a letter
            text = " ".join([word for word in words if word.lower() not in ("a", "an", "the")] or words) or text
        return text.strip()


Box = tuple[float, float, float, float]
NUMBER = r"\s*(-?\d{1,9}(?:\.\d{1,9})?)\s*"
# [x1, y1, x2, y2], also as the value of "bbox_2d", and (x1, y1), (x2, y2)
BOX = re.compile(rf"[\[(<]?[\[(]{NUMBER},{NUMBER}(?:,|[\])]\s*,?\s*[\[(]){NUMBER},{NUMBER}[\])]")


@register("language reward", "iou")
class IoU(AnswerReward):
    """Intersection over union of the box that the answer gives and the prompt's, 0 to 1; 0 for none, or for several."""

    reads_prompts: ClassVar[bool] = True

    threshold: Annotated[float, Field(gt=0, le=1)] | None = None
    """1 for boxes that overlap at least this much (0.5 is usual), else 0; null gives the overlap itself."""

    def complaint(self, wanted: str) -> str:
        if len(boxes(wanted)) == 1:
            return ""
        return "is not one box; write [x1, y1, x2, y2], in the units that the model answers in"

    def _score(self, found: str, wanted: str) -> Score:
        given = boxes(found)
        if len(given) != 1:
            return Score(0.0, f"{len(given) or 'no'} boxes")
        overlap = iou(given[0], boxes(wanted)[0])
        value = overlap if self.threshold is None else float(overlap >= self.threshold)
        return Score(value, f"overlap {overlap:.3f}")


def boxes(text: str) -> list[Box]:
    """The boxes [x1, y1, x2, y2] that a text writes down, of any area but none."""
    found = [tuple(map(float, match.groups())) for match in BOX.finditer(text)]
    return [(a, b, c, d) for a, b, c, d in found if c > a and d > b]


def iou(one: Box, other: Box) -> float:
    """Area that two boxes share, over the area that they cover together."""
    across = max(min(one[2], other[2]) - max(one[0], other[0]), 0.0)
    down = max(min(one[3], other[3]) - max(one[1], other[1]), 0.0)
    shared = across * down
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return shared / (sum(areas) - shared)


NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|except|wrong|incorrect|false|eliminated?|excluded?|rule[sd]? out)\b|n['’]t\b"
)


@register("language reward", "multiple_choice")
class MultipleChoice(AnswerReward):
    """1 if the letter is the prompt's, else 0. "B", "(B)", "B. Paris" and "The answer is B." all choose B."""

    reads_prompts: ClassVar[bool] = True

    choices: Annotated[str, Field(pattern="^[A-Z]{2,26}$")] = "ABCDEFGH"
    """The letters of the choices, upper case."""

    def complaint(self, wanted: str) -> str:
        return f"chooses none of {self.choices}; use reward exact" if self.choice(wanted) is None else ""

    def _score(self, found: str, wanted: str) -> Score:
        chosen = self.choice(found)
        return Score(float(chosen == self.choice(wanted)), chosen or "no choice", answer=chosen or "")

    def choice(self, text: str) -> str | None:
        """The letter that a text chooses; None if it chooses none or several."""
        text = re.sub(r"\*\*|__|`|\$|\\(?:text|textbf|mathrm|mathbf)(?=\{)|[{}]", "", text).strip()  # markup
        ways = _ways(self.choices)
        start = ways["label"].match(text)
        if start:
            listed = ways["next"].match(text)
            return _one([start[1], *_found(ways["further"], text[start.end() :]), *(listed.groups() if listed else ())])
        chosen = _found(ways["answered"], text)
        if not chosen and NEGATION.search(text):
            return None  # "not B" chooses no letter
        chosen = chosen or _found(ways["named"], text) or _found(ways["said"], text)
        return _one([*chosen, *_found(ways["next"], text)]) if chosen else None


def _found(pattern: re.Pattern[str], text: str) -> list[str]:
    """All matches of a pattern's groups."""
    return [letter for match in pattern.finditer(text) for letter in match.groups() if letter]


def _one(letters: Sequence[str]) -> str | None:
    chosen = {letter.upper() for letter in letters}
    return chosen.pop() if len(chosen) == 1 else None


@cache
def _ways(choices: str) -> dict[str, re.Pattern[str]]:
    """Patterns of texts that choose a letter. A letter in a sentence alone is not a choice."""
    upper, lower = f"[{choices}]", f"[{choices.lower()}]"
    both = f"[{choices}{choices.lower()}]"
    # "A cat" and "I see" hold words, not choices
    alone = r"(?![\w'’])(?!(?<=[AI])\s+(?!or\b|and\b|is\b)[a-z])"
    ends = r"(?=\s*(?:$|[.,;:)/]|or\b|and\b))"
    cue = r"\b(?:is|be|choose|chose|pick|select|so|thus|hence|therefore|with)\b[:,]?\s+|['’]s\s+|[=→]\s*"
    verb = r"(?:\s+(?i:is|would be|must be))?\s*[:=]?\s*"
    it = rf"(?:\(?({upper}){alone}|\(({lower})\)|({lower})[.]?\s*$)"
    return {
        # the beginning of a text: "B", "(b)", "B. Paris", "B, because"
        "label": re.compile(rf"\(?({both})(?:\)|[.:](?=\s|$)|(?<={upper})[.:](?![A-Za-z]\.)|(?<={upper}),|\s*$)"),
        # labels behind the first one
        "further": re.compile(rf"(?:^|[\s,;/])\(?({both})\)|[\n,;/]\s*({upper})[.:]\s"),
        # "the answer is B"
        "answered": re.compile(rf"\b(?i:answer)\b{verb}{it}"),
        # "option B"
        "named": re.compile(rf"\b(?i:choice|option)\b{verb}{it}"),
        # "(B)", "so B", "B is right"
        "said": re.compile(rf"(?:^|\n)({upper})(?=\s|$){alone}|(?:{cue})({upper}){alone}|\(({upper})\)"),
        # the second letter of "B or C", "B, C"
        "next": re.compile(rf"(?<![\w'’])\(?{upper}\)?\s*(?:,|/|&|,?\s*\b(?:or|and)\b)\s*\(?({upper})(?![\w'’]){ends}"),
    }
