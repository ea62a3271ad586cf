"""Is the number in a response the right one?"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from burnish.options import NonNegative
from burnish.registry import register
from burnish.rewards.base import Verdict
from burnish.rewards.text.arithmetic import Unreadable
from burnish.rewards.text.base import LanguageReward, Response
from burnish.rewards.text.extraction import Where, extract, reference
from burnish.rewards.text.quantities import same
from burnish.rewards.text.reading import read
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt


@register("language reward", "numeric")
class Numeric(LanguageReward):
    """1 where the answer says the same number as the prompt's, else 0; no number at all is wrong, not missing.

    All of an answer counts: its unit, root, fraction, ratio, interval. One that can't be read as a whole, such as
    several numbers among words, is wrong: no number of it is picked.
    """

    extract: Where = "tag"
    r"""Where the answer stands: tag (<answer>...</answer>, the first), boxed (\boxed{...}, the last), tag_or_boxed,
    last_line, or all of the response."""
    grader: Literal["number", "math_verify"] = "number"
    """number compares numbers, alone or among words, and what is made of them: units, fractions, roots, percent,
    ratios, lists, sets, intervals; math_verify compares formulas with variables too, by the library of that name."""
    tolerance: NonNegative = 1e-6
    """Largest difference that counts as none, relative to the right number; whole numbers have to be the same unless
    it is above 1e-6. grader=number only."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        self.needs_answers(prompts)
        if self.grader == "math_verify" and find_spec("math_verify") is None:
            raise UserError("grader=math_verify of reward numeric needs its library: pip install 'burnish[math]'")
        for prompt in prompts:
            if self.grader != "number" or not self.judges(prompt):
                continue
            answer = reference(prompt.answer or "", self.extract)
            try:
                read(answer)
            except Unreadable as error:
                raise UserError(
                    f"reward numeric can't judge prompt {prompt.text[:60]!r}: its answer {answer[:60]!r} {error}; "
                    "use grader=math_verify for formulas, or reward exact"
                ) from None

    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Verdict]:
        return [self._verdict(response, prompt) for response, prompt in zip(responses, prompts, strict=True)]

    def _verdict(self, response: Response, prompt: Prompt) -> Verdict:
        if prompt.answer is None:
            return Verdict(None, (), "the prompt has no answer")
        found = extract(response.text, self.extract)
        if found is None:
            return Verdict(0.0, (), "no answer")
        wanted = reference(prompt.answer, self.extract)
        if self.grader == "math_verify":
            return Verdict(float(same_expression(found, wanted)), (), found)
        try:
            right = read(wanted)
        except Unreadable as error:
            return Verdict(None, (), f"the right answer {wanted[:60]!r} {error}")
        try:
            given = read(found)
        except Unreadable as error:
            return Verdict(0.0, (), f"{found[:60]!r} {error}")
        return Verdict(float(any(same(one, other, self.tolerance) for one in given for other in right)), (), found)


def same_expression(found: str, wanted: str) -> bool:
    """Whether two expressions are equal, as math-verify decides; what takes it longer than five seconds is not."""
    from math_verify import parse, verify

    right, given = parse(f"${wanted}$"), parse(f"${found}$")
    return bool(right and given and verify(right, given))
