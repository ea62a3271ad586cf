"""Numeric answers, and when two are equal."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TypeAlias

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
        return _same_in_any_order(list(found.members), list(wanted.members), tolerance)
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
        if one.powers != other.powers:
            return False
        return close(found.value * one.factor, wanted.value * other.factor, tolerance)
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


def _same_in_any_order(found: list[Answer], wanted: list[Answer], tolerance: float) -> bool:
    for member in wanted:
        index = next((i for i, one in enumerate(found) if same(one, member, tolerance)), None)
        if index is None:
            return False
        del found[index]
    return True


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
