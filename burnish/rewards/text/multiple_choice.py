"""The letter of a multiple-choice answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from burnish.registry import register
from burnish.rewards.base import Verdict
from burnish.rewards.text.answers import AnswerReward, reference
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt


MARKUP = re.compile(r"\*\*|__|`|\$|\\(?:text|textbf|mathrm|mathbf)(?=\{)|[{}]")
NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|except|wrong|incorrect|false|eliminated?|excluded?|rule[sd]? out)\b|n['’]t\b"
)


@register("language reward", "multiple_choice")
class MultipleChoice(AnswerReward):
    """1 if the letter is the prompt's, else 0. "B", "(B)", "B. Paris" and "The answer is B." all choose B."""

    choices: Annotated[str, Field(pattern="^[A-Z]{2,26}$")] = "ABCDEFGH"
    """The letters of the choices, upper case."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        for prompt in prompts:
            if self.judges(prompt) and self.choice(reference(prompt.answer or "", self.extract)) is None:
                raise UserError(
                    f"reward multiple_choice can't score prompt {prompt.text[:60]!r}: its answer "
                    f"{prompt.answer!r} chooses none of {self.choices}; use reward exact"
                )

    def _verdict(self, found: str | None, wanted: str) -> Verdict:
        right = self.choice(wanted)
        if right is None:
            return Verdict(None, (), f"the right answer {wanted!r} chooses none of {self.choices}")
        chosen = None if found is None else self.choice(found)
        return Verdict(float(chosen == right), (), chosen or "no choice", answer=chosen or "")

    def choice(self, text: str) -> str | None:
        """The letter that a text chooses; None if it chooses none or several."""
        text = MARKUP.sub("", text).strip()
        ways = self._ways
        start = ways.label.match(text)
        if start:
            listed = ways.next.match(text)
            return _one([start[1], *_found(ways.further, text[start.end() :]), *(listed.groups() if listed else ())])
        chosen = _found(ways.answered, text)
        if not chosen and NEGATION.search(text):
            return None  # "not B" chooses no letter
        chosen = chosen or _found(ways.named, text) or _found(ways.said, text)
        return _one([*chosen, *_found(ways.next, text)]) if chosen else None

    @cached_property
    def _ways(self) -> _Ways:
        return _Ways.of(self.choices)


def _found(pattern: re.Pattern[str], text: str) -> list[str]:
    """All matches of a pattern's groups."""
    return [letter for match in pattern.finditer(text) for letter in match.groups() if letter]


def _one(letters: Sequence[str]) -> str | None:
    chosen = {letter.upper() for letter in letters}
    return chosen.pop() if len(chosen) == 1 else None


@dataclass(frozen=True)
class _Ways:
    """Patterns of texts that choose a letter. A letter in a sentence alone is no choice."""

    label: re.Pattern[str]  # the beginning of a text: "B", "(b)", "B. Paris", "B, because"
    further: re.Pattern[str]  # labels behind the first one
    answered: re.Pattern[str]  # "the answer is B"
    named: re.Pattern[str]  # "option B"
    said: re.Pattern[str]  # "(B)", "so B", "B is right"
    next: re.Pattern[str]  # the second letter of "B or C", "B, C"

    @classmethod
    def of(cls, choices: str) -> _Ways:
        upper, lower = f"[{choices}]", f"[{choices.lower()}]"
        both = f"[{choices}{choices.lower()}]"
        # "A cat" and "I see" hold words, not choices
        alone = r"(?![\w'’])(?!(?<=[AI])\s+(?!or\b|and\b|is\b)[a-z])"
        ends = r"(?=\s*(?:$|[.,;:)/]|or\b|and\b))"
        cue = r"\b(?:is|be|choose|chose|pick|select|so|thus|hence|therefore|with)\b[:,]?\s+|['’]s\s+|[=→]\s*"
        verb = r"(?:\s+(?i:is|would be|must be))?\s*[:=]?\s*"
        it = rf"(?:\(?({upper}){alone}|\(({lower})\)|({lower})[.]?\s*$)"
        return cls(
            label=re.compile(rf"\(?({both})(?:\)|[.:](?=\s|$)|(?<={upper})[.:](?![A-Za-z]\.)|(?<={upper}),|\s*$)"),
            further=re.compile(rf"(?:^|[\s,;/])\(?({both})\)|[\n,;/]\s*({upper})[.:]\s"),
            answered=re.compile(rf"\b(?i:answer)\b{verb}{it}"),
            named=re.compile(rf"\b(?i:choice|option)\b{verb}{it}"),
            said=re.compile(rf"(?:^|\n)({upper})(?=\s|$){alone}|(?:{cue})({upper}){alone}|\(({upper})\)"),
            next=re.compile(
                rf"(?<![\w'’])\(?{upper}\)?\s*(?:,|/|&|,?\s*\b(?:or|and)\b)\s*\(?({upper})(?![\w'’]){ends}"
            ),
        )
