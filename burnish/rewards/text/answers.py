"""Answers in responses, and rewards that compare them with the right one: text, boxes, and letters of choices.

Numeric answers, with their units, and when two are equal.
"""

from __future__ import annotations

import math
import re
import string
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar, Literal, TypeAlias

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


EXACT = 2**53  # floats below it can be any integer
ROUNDING = 1e-6  # tolerances up to this allow for rounding only, so integers must be equal


@dataclass(frozen=True)
class Unit:
    """A unit: powers of dimensions, and its size in their base units."""

    powers: tuple[tuple[str, int], ...]
    factor: float = 1.0

    def times(self, other: Unit, power: int) -> Unit:
        """The unit of a product with a power of another one, which is negative in a quotient."""
        joined = Counter(dict(self.powers))
        joined.update({name: own * power for name, own in other.powers})
        powers = tuple(sorted((name, total) for name, total in joined.items() if total))
        return Unit(powers, self.factor * other.factor**power)


@dataclass(frozen=True)
class Quantity:
    """A number, with its unit if it has one."""

    value: float
    whole: int | None = None  # the integer, if it is written as one
    unit: Unit | None = None
    name: str = ""  # x of x = 3


@dataclass(frozen=True)
class Several:
    """Numbers that belong together.

    ``kind`` is "," for a list, "{}" for a set, the two brackets of a tuple or an interval, ":" for a ratio, "clock" for
    a time of day or a duration, "union" for a union of intervals, "to" for a range, and an operator between plain
    numbers: 3-5 may be a range, 3x4 a size, 1/2/2024 a date.
    """

    kind: str
    members: tuple[Answer, ...]
    name: str = ""


Answer: TypeAlias = Quantity | Several


def same(found: Answer, wanted: Answer, tolerance: float) -> bool:
    """Whether two answers are equal; answers of different kinds are not, whatever their numbers."""
    if found.name and wanted.name and found.name != wanted.name:
        return False
    match found, wanted:
        case Quantity(), Quantity():
            return _same_number(found, wanted, tolerance)
        case (Quantity(unit=None) as number, Several(":", (Quantity() as above, Quantity() as below))) | (
            Several(":", (Quantity() as above, Quantity() as below)), Quantity(unit=None) as number
        ):  # fmt: skip
            return below.value != 0 and close(above.value / below.value, number.value, tolerance)  # 3:4 and 3/4
        case (Several(), Several()) if len(found.members) == len(wanted.members):
            return _same_members(found, wanted, tolerance)
    return False


def _same_members(found: Several, wanted: Several, tolerance: float) -> bool:
    kinds = {found.kind, wanted.kind}
    if ("{}" in kinds and kinds <= {"{}", ","}) or kinds == {"union"}:
        left = list(found.members)
        for member in wanted.members:
            index = next((i for i, one in enumerate(left) if same(one, member, tolerance)), None)
            if index is None:
                return False
            del left[index]
        return True
    if kinds == {":"}:
        return _proportional(found, wanted, tolerance)
    if len(kinds) > 1 and kinds != {":", "clock"}:
        return False
    order = {member.name: member for member in found.members}
    named = len(order) == len(wanted.members) and order.keys() == {member.name for member in wanted.members}
    pairs = [
        (order[member.name] if named else one, member)
        for one, member in zip(found.members, wanted.members, strict=True)
    ]
    return all(same(one, other, tolerance) for one, other in pairs)


def normal(answer: Answer) -> str:
    """A text that is equal for numbers which differ by their rounding or their spelling, as 0.5, 1/2 and 50 %."""
    if isinstance(answer, Several):
        return f"{answer.kind}({', '.join(map(normal, answer.members))})"
    value, unit = answer.value, answer.unit
    if unit is not None:
        value *= unit.factor
    text = str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) < EXACT else f"{value:.6g}"
    return text if unit is None else f"{text} {' '.join(f'{name}^{power}' for name, power in unit.powers)}"


def close(value: float, wanted: float, tolerance: float) -> bool:
    """Whether two numbers differ by at most ``tolerance`` relative to the wanted one."""
    return value == wanted or math.isclose(value, wanted, rel_tol=tolerance, abs_tol=1e-12)


def _same_number(found: Quantity, wanted: Quantity, tolerance: float) -> bool:
    one, other = found.unit, wanted.unit
    if one is not None and other is not None and one != other:
        alike = one.powers == other.powers
        return alike and close(found.value * one.factor, wanted.value * other.factor, tolerance)
    if found.whole is not None and wanted.whole is not None and tolerance <= ROUNDING:
        return found.whole == wanted.whole
    return close(found.value, wanted.value, tolerance)


def _proportional(found: Several, wanted: Several, tolerance: float) -> bool:
    terms = [
        (one.value, other.value)
        for one, other in zip(found.members, wanted.members, strict=True)
        if isinstance(one, Quantity) and isinstance(other, Quantity)
    ]
    scale = next((one / other for one, other in terms if other), 0.0)
    return scale > 0 and all(close(one, other * scale, tolerance) for one, other in terms)


UNITS = {
    name: Unit(powers, factor)
    for powers, factor, spellings in (
        ((("length", 1),), 1.0, "m meter meters metre metres"),
        ((("length", 1),), 1e3, "km kilometer kilometers kilometre kilometres"),
        ((("length", 1),), 0.1, "dm decimeter decimeters decimetre decimetres"),
        ((("length", 1),), 1e-2, "cm centimeter centimeters centimetre centimetres"),
        ((("length", 1),), 1e-3, "mm millimeter millimeters millimetre millimetres"),
        ((("length", 1),), 0.0254, "in inch inches"),
        ((("length", 1),), 0.3048, "ft foot feet"),
        ((("length", 1),), 0.9144, "yd yard yards"),
        ((("length", 1),), 1609.344, "mi mile miles"),
        ((("mass", 1),), 1.0, "g gram grams"),
        ((("mass", 1),), 1e3, "kg kilogram kilograms"),
        ((("mass", 1),), 1e-3, "mg milligram milligrams"),
        ((("mass", 1),), 1e6, "tonne tonnes"),
        ((("mass", 1),), 453.59237, "lb lbs pound pounds"),
        ((("mass", 1),), 28.349523125, "oz ounce ounces"),
        ((("time", 1),), 1.0, "s sec secs second seconds"),
        ((("time", 1),), 60.0, "min mins minute minutes"),
        ((("time", 1),), 3600.0, "h hr hrs hour hours"),
        ((("time", 1),), 86400.0, "day days"),
        ((("time", 1),), 604800.0, "week weeks"),
        ((("month", 1),), 1.0, "month months"),
        ((("month", 1),), 12.0, "year years yr yrs"),
        ((("angle", 1),), 1.0, "deg degree degrees"),
        ((("angle", 1),), 180 / math.pi, "rad radian radians"),
        ((("celsius", 1),), 1.0, "degC"),
        ((("fahrenheit", 1),), 1.0, "degF"),
        ((("kelvin", 1),), 1.0, "K kelvin"),
        ((("dollar", 1),), 1.0, "$ dollar dollars USD"),
        ((("dollar", 1),), 0.01, "¢ cent cents"),
        ((("euro", 1),), 1.0, "€ euro euros EUR"),
        ((("sterling", 1),), 1.0, "£ GBP"),
        ((("yen", 1),), 1.0, "¥ yen JPY"),
        ((("force", 1),), 1.0, "N newton newtons"),
        ((("energy", 1),), 1.0, "J joule joules"),
        ((("energy", 1),), 1e3, "kJ kilojoule kilojoules"),
        ((("power", 1),), 1.0, "W watt watts"),
        ((("power", 1),), 1e3, "kW kilowatt kilowatts"),
        ((("voltage", 1),), 1.0, "V volt volts"),
        ((("current", 1),), 1.0, "A amp amps ampere amperes"),
        ((("resistance", 1),), 1.0, "Ω ohm ohms"),
        ((("frequency", 1),), 1.0, "Hz hertz"),
        ((("pressure", 1),), 1.0, "Pa pascal pascals"),
        ((("morning", 1),), 1.0, "am"),
        ((("afternoon", 1),), 1.0, "pm"),
        ((("length", 3),), 1e-3, "l liter liters litre litres"),
        ((("length", 3),), 1e-4, "dl"),
        ((("length", 3),), 1e-5, "cl"),
        ((("length", 3),), 1e-6, "ml milliliter milliliters"),
        ((("length", 1), ("time", -1)), 1609.344 / 3600, "mph"),
    )
    for name in spellings.split()
}  # by every spelling
SCALES = {
    "dozen": 12.0, "hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "percent": 0.01,
}  # fmt: skip
_UNIT = re.compile(r"\s*(?:(square|sq|cubic|cu)\.?\s+)?([^\W\d_]+|[$€£¥¢])(?![^\W_])\.?(?:\s*\^\s*\{?\s*([23])\s*\}?)?")
_NEXT = re.compile(r"\s*(/|\*|per\b)")


def read_unit(text: str) -> tuple[Unit | None, int]:
    """The unit at the beginning of a text, and where it ends; None and 0 if there is none."""
    unit, end, sign = None, 0, 1
    while (match := _UNIT.match(text, end)) is not None:
        known = UNITS.get(match[2]) or (UNITS.get(match[2].lower()) if len(match[2]) > 2 else None)
        behind = text[match.end() :].strip(" .")
        if known is None or (match[2] == "in" and behind and not _NEXT.match(behind)):
            break  # "5 in total" counts no inches
        power = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}.get(match[1] or "", int(match[3] or 1))
        unit = (unit or Unit(())).times(known, sign * power)
        end = match.end()
        joined = _NEXT.match(text, end)
        if joined is None:
            break
        following = _UNIT.match(text, joined.end())
        if following is None or (following[2] not in UNITS and following[2].lower() not in UNITS):
            break
        sign, end = (1 if joined[1] == "*" else -1), joined.end()
    return unit, end
