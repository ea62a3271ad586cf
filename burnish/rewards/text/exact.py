"""Is the answer in a response the right one, word for word?"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING

from burnish.registry import register
from burnish.rewards.base import Verdict
from burnish.rewards.text.base import LanguageReward, Response
from burnish.rewards.text.extraction import Where, extract, reference

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt

# all but a sign, a percent sign, and what stands between digits
PUNCTUATION = re.compile(
    rf"(?!(?<![\w)])[-+]\.?\d|(?<=\d)%|(?<=\d)[.,:/](?=\d)|(?<![\w.])\.\d)[{re.escape(string.punctuation)}]"
)


@register("language reward", "exact")
class Exact(LanguageReward):
    """1 where the answer is the prompt's, else 0; a response without an answer is wrong, not missing."""

    extract: Where = "tag"
    r"""Where the answer stands: tag (<answer>...</answer>, the first), boxed (\boxed{...}, the last), tag_or_boxed,
    last_line, or all of the response."""
    ignore_case: bool = False
    """Small and capital letters are the same."""
    ignore_punctuation: bool = False
    """Leave out punctuation and articles and join white space, as SQuAD's exact match does, but for what belongs to a
    number (-5, 3.5, 12:30, 40%) and answers of nothing else (the letter A)."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        self.needs_answers(prompts)

    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Verdict]:
        return [self._verdict(response, prompt) for response, prompt in zip(responses, prompts, strict=True)]

    def _verdict(self, response: Response, prompt: Prompt) -> Verdict:
        if prompt.answer is None:
            return Verdict(None, (), "the prompt has no answer")
        found = extract(response.text, self.extract)
        if found is None:
            return Verdict(0.0, (), "no answer")
        wanted = reference(prompt.answer, self.extract)
        return Verdict(float(self._plain(found) == self._plain(wanted)), (), found)

    def _plain(self, text: str) -> str:
        if self.ignore_case:
            text = text.casefold()
        if self.ignore_punctuation:
            words = PUNCTUATION.sub(" ", text.replace("−", "-")).split()
            # an answer that is nothing but an article is meant as a letter
            text = " ".join([word for word in words if word.lower() not in ("a", "an", "the")] or words) or text
        return text.strip()
