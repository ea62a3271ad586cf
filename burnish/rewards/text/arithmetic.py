"""A parser of arithmetic expressions without variables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

PLAIN = r"(?:\d+(?:\.\d*)?|\.\d+)"
THOUSANDS = r"\d{1,3}(?:,\d{3})+(?![\d,]*\d)"
TOKEN = re.compile(rf"\s*(?:(?P<number>(?:{THOUSANDS}(?:\.\d+)?|{PLAIN})(?:[eE][-+]?\d+)?)|(?P<sign>\\?[^\W\d_]+|\S))")
CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf}


class Unreadable(ValueError):
    """A text without a number, or with more than can be compared; the message completes "the text ..."."""


class Expression:
    """The expression at the beginning of a text; ``at`` is where it ends."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def value(self) -> tuple[float, int | None]:
        """The number, and the integer if it is written as one."""
        try:
            value = self._sum()
        except (OverflowError, ZeroDivisionError, ValueError) as error:
            if isinstance(error, Unreadable):
                raise
            raise Unreadable("is not a number that can be computed") from None
        if isinstance(value, complex):
            raise Unreadable("is not a real number")
        written = re.fullmatch(rf"\s*([-+]?(?:{THOUSANDS}|\d+))\.?\s*", self.text[: self.at])
        return value, int(written[1].replace(",", "")) if written else None

    def _peek(self) -> tuple[str, str]:
        """The next token: "number" or "sign", and its text."""
        match = TOKEN.match(self.text, self.at)
        if match is None:
            return "", ""
        return ("number", match["number"]) if match["number"] else ("sign", match["sign"])

    def _take(self, *signs: str) -> str:
        """The next token if it is one of these."""
        kind, token = self._peek()
        if kind != "sign" or token not in signs:
            return ""
        self._advance()
        return token

    def _advance(self) -> None:
        match = TOKEN.match(self.text, self.at)
        assert match is not None, "there is no token"
        self.at = match.end()

    def _sum(self) -> float:
        total = self._signed()
        while sign := self._take("+", "-"):
            total += self._product() if sign == "+" else -self._product()
        return total

    def _signed(self) -> float:
        sign = self._take("+", "-")
        return -self._product() if sign == "-" else self._product()

    def _product(self) -> float:
        total = self._power()
        while True:
            if sign := self._take("*", "/"):
                factor = self._power()
                total = total * factor if sign == "*" else total / factor
            elif self._peek()[1] in ("sqrt", "frac", "pi", "(", "{"):  # 2 sqrt(3)
                total *= self._power()
            else:
                return total

    def _power(self) -> float:
        base = self._base()
        if self._take("^"):
            base = base ** self._grouped(lambda: -self._base() if self._take("-") else self._base())
        while self._take("%"):
            base /= 100
        return base

    def _grouped(self, otherwise: Callable[[], float]) -> float:
        """An expression in brackets, or ``otherwise`` without brackets."""
        if opening := self._take("{", "("):
            value = self._sum()
            if not self._take("}" if opening == "{" else ")"):
                raise Unreadable("has a bracket that is not closed")
            return value
        return otherwise()

    def _base(self) -> float:
        kind, token = self._peek()
        if kind == "number":
            self._advance()
            return float(token.replace(",", "")) + (self._fraction_behind() if token.isdigit() else 0.0)
        if token in CONSTANTS:
            self._advance()
            return CONSTANTS[token]
        if self._take("sqrt"):
            root = 2.0
            if self._take("["):
                root = self._sum()
                if not self._take("]"):
                    raise Unreadable("has a bracket that is not closed")
            radicand = self._grouped(self._base)
            return math.sqrt(radicand) if root == 2 else radicand ** (1 / root)
        if self._take("frac"):
            return self._grouped(self._base) / self._grouped(self._base)
        if token in ("(", "{"):
            return self._grouped(self._base)
        raise Unreadable("is not a number alone")

    def _fraction_behind(self) -> float:
        r"""The fraction of a mixed number: 1 1/2, 1\frac{1}{2}."""
        match = re.compile(r"\s+(\d+)\s*/\s*(\d+)(?!\d)|\s*frac\s*\{(\d+)\}\s*\{(\d+)\}").match(self.text, self.at)
        if match is None:
            return 0.0
        above, below = (int(group) for group in match.groups() if group is not None)
        if above >= below:
            raise Unreadable("has several numbers")
        self.at = match.end()
        return above / below
