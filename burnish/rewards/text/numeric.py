"""Parses numeric answers in full, or not at all: the last number of a text is not its answer.

Supported are numbers with thousands separators, decimals, powers of ten, percent, units, fractions, mixed numbers,
roots, pi, arithmetic, ratios, lists, sets, tuples, intervals, names (x = 3), in plain text and in LaTeX, with words
around one number. Anything else (variables, comparisons, several numbers among words) is refused.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

from burnish.options import NonNegative
from burnish.registry import register
from burnish.rewards.base import Score
from burnish.rewards.text.answers import (
    SCALES,
    UNITS,
    Answer,
    AnswerReward,
    Quantity,
    Several,
    boxed,
    close,
    normal,
    read_unit,
    same,
)
from burnish.types.prompt import Prompt
from burnish.utils.installed import require

PLAIN = r"(?:\d+(?:\.\d*)?|\.\d+)"
THOUSANDS = r"\d{1,3}(?:,\d{3})+(?![\d,]*\d)"
_SIGNS = str.maketrans({
    "−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "∙": "*", "÷": "/", "∕": "/", "²": "^2", "³": "^3", "π": " pi ",
    "∞": " inf ", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "：": ":", "，": ",", "％": "%", "°": " deg ",
    "½": " 1/2 ", "¼": " 1/4 ", "¾": " 3/4 ", "⅓": " 1/3 ", "⅔": " 2/3 ",
})  # fmt: skip
_COMMANDS = {
    "times": "*", "cdot": "*", "ast": "*", "div": "/", "pm": "±", "pi": " pi ", "infty": " inf ", "cup": "∪",
    "circ": " deg ", "degree": " deg ", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "lt": "<", "gt": ">", "ne": "≠",
    "neq": "≠", "approx": "≈", "colon": ":", "dfrac": " frac", "tfrac": " frac", "cfrac": " frac", "frac": " frac",
    "sqrt": " sqrt", "quad": " ", "qquad": " ", "left": "", "right": "", "big": "", "Big": "", "bigl": "", "bigr": "",
    "displaystyle": "", "euro": "€", "pounds": "£", "implies": " ", "therefore": " ", "lbrace": "⟨", "rbrace": "⟩",
}  # fmt: skip
PLAINER: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"√\s*", " sqrt "),
    (r"\\([A-Za-z]+)", lambda command: _COMMANDS.get(command[1], command[0])),
    (r"\^\s*(?:\{\s*deg\s*\}|deg)", " deg "),
    (r"\bdeg\s+([CF])\b", r"deg\1"),
    (r"frac\s*(\d)\s*(\d)", r"frac{\1}{\2}"),
    (r"(?<![\d.])(\d+)\s*frac\s*\{(\d+)\}\s*\{(\d+)\}", r"\1 \2/\3 "),
    (r"\*\*", "^"),
    (r"(?<=\d)\s*[xX]\s*(?=\d)", "*"),
    (r"(?<![\d.])0*(\d{1,3}(?: \d{3})+)(?![ \d])", lambda thousands: thousands[1].replace(" ", ",")),
    (r"(?i)\b([ap])\.?\s?m\b\.?", r"\1m"),
)
_WORDS = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox|operatorname|textrm|mathsf)\s*\{([^{}]*)\}")
OPENING, CLOSING = "([{⟨", ")]}⟩"
DECIMAL = rf"(?:{THOUSANDS}(?:\.\d+)?|{PLAIN})%?"
JOINED = re.compile(rf"\s*-?{DECIMAL}\s*(?P<sign>[-+*/])\s*{DECIMAL}(?:\s*(?P=sign)\s*{DECIMAL})*")
GOES_ON = re.compile(r"\s*(?:[-+*/^({%]|\d|sqrt\b|frac\b|pi\b|e\b)")
COMMA = r",(?!(?<=\d,)\d{3}(?!\d))|;"
# and words between two numbers
MEMBERS = rf"{COMMA}|(?<=[\d)}}%])\s+(?:and|or)\s+(?=(?:[a-z]\s*=\s*)?[-$]?(?:\d|sqrt|frac|\())"
WORD = r"[^\W\d_]+(?:['’-][^\W\d_]+)*"
LEADING = re.compile(rf"\s*({WORD})(?=[\s:,;.\"“”#√$€£¥]|$)[\s:,;.\"“”#]*")
TRAILING = re.compile(r"(?:\(s\)|[^\W\d_]++|[\s.,;:!?\"'’“”()/-])*+")  # possessive: in one pass, however long
CHANGING = re.compile(  # words that change the number beside them
    r"""\b(?:not|no(?!\.)|\w+n['’]t|cannot|never|than|least|most|minus|negative|plus|times|half|third|quarter|twice|double
    |triple|between|either|neither|or|nor|vs|versus|except|up|under|over|above|below|within|squared|cubed|root|log|ln|lg
    |exp|sin|cos|tan|cot|mod|gcd|lcm|abs|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|hundred|thousand
    |million|billion|dozen)\b""",
    re.VERBOSE | re.IGNORECASE,
)
NAME = re.compile(r"\\?[^\d\W][^+*^/√\-]*|\\?[^\d\W]+\s*\([^()]*\)")  # what may stand before an equals sign
CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf}
NUMBER = rf"(?:{THOUSANDS}(?:\.\d+)?|{PLAIN})(?:[eE][-+]?\d+)?"
MIXED = r"\d+\s+\d+\s*/\s*\d+(?!\d)"  # 1 1/2
WORD_OF_MATH = r"(?:sqrt|pi|inf|e)(?![^\W\d_])"
TOKEN = re.compile(
    rf"(?P<mixed>{MIXED})|(?P<number>{NUMBER})|{WORD_OF_MATH}|[-+*/^)%]|\((?:(?![^\W\d_])|(?={WORD_OF_MATH}))"
)
EXPRESSION = re.compile(rf"(?:\s*(?:{re.sub('[?]P<[a-z]+>', '?:', TOKEN.pattern)}))+")
OPERATORS: dict[type, Callable[[float, float], float]] = {
             ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
             ast.Pow: operator.pow}  # fmt: skip


class Unreadable(ValueError):
    """A text without a number, or with more than can be compared; the message completes "the text ..."."""


def expression(text: str) -> tuple[float, int | None, int]:
    """The arithmetic expression without variables at the beginning of a text: its value, the integer if it is written
    as one, and where it ends."""
    found = EXPRESSION.match(text)
    if found is None:
        raise Unreadable("is not a number alone")
    text = found[0][: next((i for i, depth in enumerate(_depths(found[0])) if depth < 0), found.end())]
    python = re.sub(r"(?<!sqrt)(?<=[\w)])\s*(?=(?:sqrt|pi)\b|\()", "*", TOKEN.sub(_in_python, text).strip())
    try:
        value = _value(ast.parse(python, mode="eval").body)
    except (OverflowError, ZeroDivisionError):
        raise Unreadable("is not a number that can be computed") from None
    except (SyntaxError, KeyError, AttributeError):
        raise Unreadable("is not a number alone") from None
    if isinstance(value, complex):
        raise Unreadable("is not a real number")
    written = re.fullmatch(rf"\s*([-+]?(?:{THOUSANDS}|\d+))\.?\s*", text)
    return value, int(written[1].replace(",", "")) if written else None, len(text)


def _in_python(token: re.Match[str]) -> str:
    if token["mixed"]:
        number, above, below = (int(digits) for digits in re.findall(r"\d+", token["mixed"]))
        if above >= below:
            raise Unreadable("has several numbers")
        return repr(number + above / below)
    if token["number"]:
        return repr(float(token["number"].replace(",", "")))
    return {"^": "**", "%": "/100 "}.get(token[0], token[0])


def _value(node: Any) -> float:
    match node:
        case ast.BinOp(left, operation, right):
            return OPERATORS[type(operation)](_value(left), _value(right))
        case ast.UnaryOp(sign, operand):
            return -_value(operand) if isinstance(sign, ast.USub) else _value(operand)
        case ast.Call(_, [operand]):
            return _value(operand) ** 0.5  # type: ignore[no-any-return]
        case ast.Name(name):
            return CONSTANTS[name]
    return float(node.value)


@register("language reward", "numeric")
class Numeric(AnswerReward):
    """1 if the answer is the same number as the prompt's, else 0; a response without a number gets 0.

    The full answer counts: units, roots, fractions, ratios, intervals. One that can't be parsed in full, such as
    several numbers among words, gets 0: no number is picked from it.
    """

    reads_prompts: ClassVar[bool] = True

    grader: Literal["number", "math_verify"] = "number"
    """number: compare numbers, alone or among words, with units, fractions, roots, percent, ratios, lists, sets and
    intervals; math_verify: compare formulas with variables too, by the library of that name."""
    tolerance: NonNegative = 1e-6
    """Largest relative difference from the right number; integers must be equal unless it is above 1e-6. Only for
    grader=number."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        if self.grader == "math_verify":
            require("math_verify", "grader=math_verify of reward numeric")
        super().check(prompts)

    def complaint(self, wanted: str) -> str:
        if self.grader == "math_verify":
            return ""
        try:
            read(wanted)
        except Unreadable as error:
            return f"{error}; use grader=math_verify for formulas, or reward exact"
        return ""

    def _score(self, found: str, wanted: str) -> Score:
        if self.grader == "math_verify":
            right = same_expression(found, wanted)
            return Score(float(right), found, answer=wanted if right else found)
        try:
            numbers = read(found)
        except Unreadable as error:
            return Score(0.0, f"{found[:60]!r} {error}", answer=found)
        right = any(same(one, other, self.tolerance) for one in numbers for other in read(wanted))
        # all that is right is one answer to a vote, however it is written; what is wrong is told apart by its number
        return Score(float(right), found, answer=wanted if right else normal(numbers[0]))


def same_expression(found: str, wanted: str) -> bool:
    """Whether two expressions are equal by math-verify, which gives up after five seconds."""
    from math_verify import parse, verify

    right, given = parse(f"${wanted}$"), parse(f"${found}$")
    return bool(right and given and verify(right, given))


@lru_cache(1024)
def read(text: str) -> Sequence[Answer]:
    """The readings of a text; several only if commas may separate thousands or numbers.

    Raises:
        Unreadable: it has no number, or can't be parsed in full.
    """
    text = text.rpartition("####")[2]  # GSM8K's mark of answers
    if text.count("\\boxed{") == 1:
        text = boxed(text) or text
    if len(text) > 1000:
        raise Unreadable(f"is {len(text)} characters long, too long for an answer")
    text = tidy(text)
    if max(_depths(text), default=0) > 20:
        raise Unreadable("has too many brackets")
    readings = [_answer(text)]
    if text[:1] in OPENING and text[-1:] in CLOSING and re.search(THOUSANDS, text):
        readings.append(_answer(text.replace(",", ", ")))
    return readings


def _depths(text: str) -> Iterator[int]:
    """The number of open brackets after each character."""
    depth = 0
    for letter in text:
        depth += (letter in OPENING) - (letter in CLOSING)
        yield depth


def _split(text: str, separator: str) -> list[str]:
    """Pieces between matches of the separator outside of brackets."""
    depths, pieces, start = list(_depths(text)), [], 0
    for match in re.finditer(separator, text):
        if depths[match.start()] == 0:
            pieces.append(text[start : match.start()])
            start = match.end()
    return [*pieces, text[start:]]


def _is_math(text: str) -> bool:
    return re.search(r"\d|\b(?:pi|inf|sqrt|e)\b", text) is not None


def _answer(text: str) -> Answer:
    text = text.strip()
    if not _is_math(text):
        raise Unreadable("has no number")
    if re.search(r"[<>≤≥≠]", text):
        raise Unreadable("is a comparison")
    parts = _split(text, "∪")
    if len(parts) > 1:
        return Several("union", tuple(_answer(part) for part in parts))
    if text[0] in OPENING and text[-1] in CLOSING and all(depth > 0 for depth in list(_depths(text))[:-1]):
        parts, kind = _split(text[1:-1], COMMA), text[0] + text[-1]
        if len(parts) == 1 and kind not in ("[]", "⟨⟩"):
            return _answer(parts[0])
        kind = "{}" if kind == "⟨⟩" else kind
        return Several(kind, tuple(_named(part, first=False, last=False) for part in parts))
    stating = _numbers(_split(text, r"(?<!\bsq)(?<!\bcu)[.?!:]\s+(?=[^\W\d_])|\n"))  # sentences
    if len(stating) > 1:
        raise Unreadable("has several numbers among words")
    if stating[0] != text:
        return _answer(stating[0])
    parts = _numbers(_split(text, MEMBERS))  # words between commas are not members
    named = [_named(part, first=part is parts[0], last=part is parts[-1]) for part in parts]
    return named[0] if len(named) == 1 else Several(",", tuple(named))


def _numbers(pieces: Sequence[str]) -> list[str]:
    """The pieces with numbers: all of them, or one among words."""
    members = [piece for piece in pieces if _is_math(piece)]
    words = [piece for piece in pieces if piece.strip() and piece not in members]
    if words and len(members) > 1:
        raise Unreadable("has several numbers among words")
    for piece in words:
        _prose(piece)
    return members


def _prose(text: str) -> None:
    """Refuse words that change the number beside them."""
    if (word := CHANGING.search(text)) is not None:
        raise Unreadable(f"has the word {word[0]!r} beside a number")


def _named(text: str, *, first: bool, last: bool) -> Answer:
    """One member of a list, with its name if it has one (x = 3)."""
    text = text.lstrip(" =")
    *before, result = re.split(r"[=≈]", text)
    if not before:
        return _item(text, first=first, last=last)
    numbers, name = [], ""
    for place, part in enumerate(before):
        try:
            numbers.append(_number(_without_leading_words(part) if first and not place else part, last=False))
        except Unreadable:
            if place or not NAME.fullmatch(part.strip()):
                raise Unreadable("has an equation that is not solved") from None
            _prose(part)
            letter = re.search(r"(?:^|\s)\\?([^\W\d_](?:_\{?\w+\}?)?)\s*$", part)
            name = letter[1] if letter else ""
    if not numbers:
        return replace(_item(result, first=False, last=last), name=name)
    numbers.append(_number(result, last=last))
    about = "≈" in text
    if not all(close(number.value, numbers[0].value, 1e-2 if about else 1e-9) for number in numbers):
        raise Unreadable("has an equation that does not hold")
    return replace(numbers[0 if about else -1], name=name)  # of 1/3 ≈ 0.333 what is exact


def _item(text: str, *, first: bool, last: bool) -> Answer:
    """Numbers without commas: one, a ratio, a range, or several joined by an operator."""
    text = text.strip()
    if first:
        text = _without_leading_words(text)
    for kind, separator in ((":", r"(?<=\d)\s*:\s*(?=\d)"), ("to", r"(?<=[\d)}])\s+to\s+(?=[\d(])")):
        parts = _split(text, separator)
        if len(parts) > 1:
            members = [_number(part, last=last and part is parts[-1]) for part in parts]
            unit = members[-1].unit
            hours = unit is not None and unit.powers[0][0] in ("morning", "afternoon")
            clock = kind == ":" and (hours or any(re.match(r"\s*0\d", part) for part in parts[1:]))
            return Several("clock" if clock else kind, tuple(members))
    if "±" in text:
        base, _, spread = text.partition("±")
        middle = _number(base, last=False).value if base.strip() else 0.0
        width = _number(spread, last=last)
        return Several("{}", (Quantity(middle + width.value, None, width.unit),
                              Quantity(middle - width.value, None, width.unit)))  # fmt: skip
    joined = JOINED.match(text)
    if joined is not None and not GOES_ON.match(text, joined.end()):
        numbers = re.split(rf"(?<=[\d%.])\s*{re.escape(joined['sign'])}\s*", text[: joined.end()])
        if joined["sign"] != "/" or len(numbers) > 2:
            numbers[-1] += text[joined.end() :]
            members = [_number(number, last=last and number is numbers[-1]) for number in numbers]
            return Several(joined["sign"], tuple(members))
    return _number(text, last=last)


def _without_leading_words(text: str) -> str:
    while (match := LEADING.match(text)) is not None:
        word = match[1]
        if word in CONSTANTS or word in ("sqrt", "frac") or (len(word) == 1 and word not in "aAI"):
            break
        if text[match.end() :].startswith(("- ", "+", "*", "/", "^", "=")):
            break
        _prose(word)
        text = text[match.end() :]
    return text


def _number(text: str, *, last: bool) -> Quantity:
    """One number with its unit, or several that are added: 1 h 30 min."""
    currency = re.match(r"\s*(-?)\s*([$€£¥])\s*(?=[\d.-])", text)
    if currency:
        text = currency[1] + text[currency.end() :]
    value, whole, end = expression(text)
    rest = text[end:]
    if scale := re.match(rf"\s*({'|'.join(SCALES)})s?\b", rest):
        factor, rest = SCALES[scale[1]], rest[scale.end() :]
        value, whole = value * factor, None if whole is None or factor < 1 else int(whole * factor)
    unit, end = read_unit(rest)
    if currency and unit is None:
        unit = UNITS[currency[2]]
    if end and (more := re.match(r"\s*(?:,|and\b)?\s*(?=\d)", rest[end:])):
        following = _number(rest[end + more.end() :], last=last)
        if unit is None or following.unit is None or following.unit.powers != unit.powers:
            raise Unreadable("has several numbers")
        return Quantity(value + following.value * following.unit.factor / unit.factor, None, unit)
    _end(rest[end:], words=last)
    if not (math.isfinite(value) or "inf" in text):
        raise Unreadable("is too large")
    return Quantity(value, whole, unit)


def _end(rest: str, *, words: bool) -> None:
    """Refuse text after a number, unless it is only words."""
    if not rest.strip(" .,;?"):
        return
    rest = re.sub(r"^(?:st|nd|rd|th)\b", "", rest)
    letters = [word for word in re.findall(r"[^\W\d_]+", rest.replace("(s)", "")) if len(word) == 1]
    touching = rest[:1].isalpha() or rest[:1] == "!"
    if not words or touching or not TRAILING.fullmatch(rest) or not set(letters) <= {"a", "A", "I", "s", "t"}:
        raise Unreadable("is not a number alone")
    _prose(rest)


def tidy(text: str) -> str:
    """An answer in one plain notation: no dollar signs around it, no layout, one sign per meaning."""
    text = re.sub(r"(?<=\d)(?:\\[,!]|\{,\})+(?=\d{3}(?!\d))", ",", text.replace(",\\!", "{,}"))
    text = re.sub(r"^(\*\*|__|`+|\*)(.*)\1$", r"\2", text.strip())
    text = text.replace("\\{", "⟨").replace("\\}", "⟩").replace("\\%", "%")
    text = re.sub(r"\\[()\[\]]|\\[,;:! ]|~", " ", text)
    while (inner := _WORDS.sub(r" \1 ", text)) != text:
        text = inner
    text = text.replace("\\$", "＄")
    if text.count("$") != 1:  # a single one is a price, several enclose formulas
        text = text.replace("$", " ")
    text = text.replace("＄", "$").translate(_SIGNS)
    for pattern, plain in PLAINER:
        text = re.sub(pattern, plain, text)
    while (inner := _BRACES.sub(_without_braces, text)) != text:
        text = inner
    return text.strip()


_BRACES = re.compile(
    r"frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}|sqrt\s*(?:\[([^\[\]]*)\])?\s*(?:\{([^{}]*)\}|([\d.]+))|\^\s*\{([^{}]*)\}"
)


def _without_braces(match: re.Match[str]) -> str:
    """LaTeX's fractions, roots and powers with parentheses."""
    above, below, root, inner, number, power = match.groups()
    if above is not None:
        return f" (({above})/({below}))"
    if power is not None:
        return f"^{power} " if power.isdecimal() else f"^({power})"
    return f" sqrt({inner or number})" if root is None else f" (({inner or number})^(1/({root})))"
