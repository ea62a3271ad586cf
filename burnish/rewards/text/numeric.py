"""Comparison of numeric answers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from burnish.options import NonNegative
from burnish.registry import register
from burnish.rewards.base import Verdict
from burnish.rewards.text.answers import AnswerReward, reference
from burnish.rewards.text.arithmetic import Unreadable
from burnish.rewards.text.quantities import normal, same
from burnish.rewards.text.reading import read
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt


@register("language reward", "numeric")
class Numeric(AnswerReward):
    """1 if the answer is the same number as the prompt's, else 0; a response without a number gets 0.

    The full answer counts: units, roots, fractions, ratios, intervals. One that can't be parsed in full, such as
    several numbers among words, gets 0: no number is picked from it.
    """

    grader: Literal["number", "math_verify"] = "number"
    """number: compare numbers, alone or among words, with units, fractions, roots, percent, ratios, lists, sets and
    intervals; math_verify: compare formulas with variables too, by the library of that name."""
    tolerance: NonNegative = 1e-6
    """Largest relative difference from the right number; integers must be equal unless it is above 1e-6. Only for
    grader=number."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        if self.grader == "math_verify" and find_spec("math_verify") is None:
            raise UserError("grader=math_verify of reward numeric needs math-verify: pip install 'burnish[math]'")
        for prompt in prompts:
            if self.grader != "number" or not self.judges(prompt):
                continue
            answer = reference(prompt.answer or "", self.extract)
            try:
                read(answer)
            except Unreadable as error:
                raise UserError(
                    f"reward numeric can't score prompt {prompt.text[:60]!r}: its answer {answer[:60]!r} {error}; "
                    "use grader=math_verify for formulas, or reward exact"
                ) from None

    def _verdict(self, found: str | None, wanted: str) -> Verdict:
        if found is None:
            return Verdict(0.0, (), "no answer", answer="")
        if self.grader == "math_verify":
            right = same_expression(found, wanted)
            return Verdict(float(right), (), found, answer=wanted if right else found)
        try:
            references = read(wanted)
        except Unreadable as error:
            return Verdict(None, (), f"the right answer {wanted[:60]!r} {error}")
        try:
            numbers = read(found)
        except Unreadable as error:
            return Verdict(0.0, (), f"{found[:60]!r} {error}", answer=found)
        right = any(same(one, other, self.tolerance) for one in numbers for other in references)
        # all that is right is one answer to a vote, however it is written; what is wrong is told apart by its number
        return Verdict(float(right), (), found, answer=wanted if right else normal(numbers[0]))


def same_expression(found: str, wanted: str) -> bool:
    """Whether two expressions are equal by math-verify, which gives up after five seconds."""
    from math_verify import parse, verify

    right, given = parse(f"${wanted}$"), parse(f"${found}$")
    return bool(right and given and verify(right, given))
