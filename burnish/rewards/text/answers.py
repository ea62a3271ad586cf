"""Answers in responses: where they are, and the base of rewards that compare them with the right answer."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from burnish.registry import options
from burnish.rewards.base import Verdict
from burnish.rewards.text.base import LanguageReward, Response
from burnish.types.prompt import kinds_of
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt

Where = Literal["tag", "boxed", "tag_or_boxed", "last_line", "all"]
BRACE = re.compile(r"\\boxed\{|[{}]")


def extract(text: str, where: Where) -> str | None:
    r"""The answer in a text, without white space around it; None if there is none.

    Args:
        text: a response, or a reference answer that may be wrapped as responses are.
        where: ``tag`` the first <answer>...</answer>; ``boxed`` the last \boxed{...}; ``tag_or_boxed`` the one that
            is there; ``last_line`` the last line that is not blank; ``all`` the full text.
    """
    if where == "tag":
        found = enclosed(text, "<answer>", "</answer>")
        return None if found is None else text[found[0] : found[1]].strip()
    if where == "boxed":
        return boxed(text)
    if where == "tag_or_boxed":
        tagged = extract(text, "tag")
        return boxed(text) if tagged is None else tagged
    if where == "last_line":
        lines = text.strip().splitlines()
        return lines[-1].strip() if lines else None
    return text.strip() or None


def enclosed(text: str, opening: str, closing: str) -> tuple[int, int] | None:
    """Where the text between the first ``opening`` and the ``closing`` after it begins and ends."""
    begin = text.find(opening)
    end = text.find(closing, begin + len(opening)) if begin >= 0 else -1
    return None if end < 0 else (begin + len(opening), end)


def boxed(text: str) -> str | None:
    r"""The content of the last closed \boxed{...}, nested braces included; None if there is none."""
    opened: list[tuple[int, bool]] = []  # not closed yet: where their content begins, and if it is a box
    last = (-1, -1)
    for brace in BRACE.finditer(text):
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

    def check(self, prompts: Sequence[Prompt]) -> None:
        for prompt in kinds_of(prompts):
            if self.judges(prompt) and not (prompt.answer or "").strip():
                raise UserError(
                    f"reward {self.name} can't score prompt {prompt.text[:60]!r}: it has no answer; add one to the "
                    "record, name its key with data.answer_key, or leave such prompts out with labels"
                )

    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Verdict]:
        return [
            Verdict(None, (), "the prompt has no answer")
            if prompt.answer is None
            else self._verdict(extract(response.text, self.extract), reference(prompt.answer, self.extract))
            for response, prompt in zip(responses, prompts, strict=True)
        ]

    @abstractmethod
    def _verdict(self, found: str | None, wanted: str) -> Verdict:
        """The verdict on the answer that was found, if any."""
