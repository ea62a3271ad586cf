"""Exact match of the answer."""

from __future__ import annotations

import re
import string

from burnish.registry import register
from burnish.rewards.base import Verdict
from burnish.rewards.text.answers import AnswerReward

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

    def _verdict(self, found: str | None, wanted: str) -> Verdict:
        if found is None:
            return Verdict(0.0, (), "no answer", answer="")
        plain = self._plain(found)
        return Verdict(float(plain == self._plain(wanted)), (), found, answer=plain)

    def _plain(self, text: str) -> str:
        if self.ignore_case:
            text = text.casefold()
        if self.ignore_punctuation:
            words = PUNCTUATION.sub(" ", text.replace("−", "-")).split()
            # an answer that is only an article is meant as a letter
            text = " ".join([word for word in words if word.lower() not in ("a", "an", "the")] or words) or text
        return text.strip()
