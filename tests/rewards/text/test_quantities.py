"""Answers with numbers: what is the same, what is not, and what can't be compared."""

from __future__ import annotations

import contextlib
import time

import pytest

from burnish.rewards.text.arithmetic import Unreadable
from burnish.rewards.text.quantities import same
from burnish.rewards.text.reading import read
from tests.support.asked import ask, reward, values

EQUAL = [
    ("7 - 3 = 4", "4"), (r"9 \div 3", "3"), ("8/2", "4"), ("= 7", "7"), ("1,234.5", "1234.5"), ("12%", "0.12"),
    (r"12\%", "12 percent"), ("3/4", "0.75"), (r"\frac{3}{4}", "0.75"), (r"\frac34", "3/4"), ("1e-3", "0.001"),
    ("(-4)", "-4"), ("5.", "5"), ("$1,000,000", "1000000"), (".5", "1/2"), ("−7", "-7"), (r"2\sqrt3", r"2\sqrt{3}"),
    ("2√3", r"\sqrt{12}"), ("sqrt(12)", "3.4641016151"), ("15 cm^2", "15 cm²"),
    ("15 square centimeters", r"15\text{ cm}^2"), ("15", "15 cm^2"), ("150 mm", "15 cm"), ("1.5 h", "90 minutes"),
    ("1 h 30 min", "1.5 hours"), ("1 hour and 30 minutes", "90 min"), ("60 km/h", "60 kilometers per hour"),
    ("3:4", "6:8"), ("3:4", "3/4"), ("3 : 4", "3:4"), ("2:30 pm", "2:30 p.m."), ("07:05", "7:05"), ("x = 0.5", "1/2"),
    ("x=3, y=-7", "y = -7, x = 3"), ("3 + 4 = 7", "7"), ("it is 7", "7"), ("The answer is 7.", "7"),
    ("So, the answer is 7, I think.", "7"), ("**7**", "7"), (r"\boxed{7}", "7"),
    (r"We get \boxed{\frac{1}{2}}.", "0.5"), ("7 apples", "7"), ("7 million", "7,000,000"), ("1 1/2", "1.5"),
    (r"1\frac{1}{2}", "3/2"), ("(1, 2]", r"\left(1,2\right]"), (r"(-\infty, 3)", "(-∞,3)"), (r"\{1, 2\}", "{2,1}"),
    ("1, 2", "1 and 2"), (r"\pm 3", "{3, -3}"), (r"2\pi", "2π"), ("2 pi", "6.283185307"), (r"10\,000", "10000"),
    ("1{,}234", "1234"), (r"1.5 \times 10^3", "1500"), ("2^{10}", "1024"), (r"45^\circ", "45 degrees"), ("45", "45°"),
    ("$5.00", "5 dollars"), ("50 cents", "$0.50"), ("#### 72", "72"), ("He has 3. So 9.\n#### 72", "72"),
    ("$7$", "7"), (r"\(7\)", "7"), (r"\[\frac{1}{2}\]", "0.5"), (r"\sqrt[3]{8}", "2"), (r"3\text{ or }-3", "3, -3"),
    (r"(1,2) \cup (3,4)", "(3,4)∪(1,2)"), (r"2+\sqrt{3}", "3.7320508"), (r"\frac{\sqrt{3}}{2}", r"\sqrt{3}/2"),
    ("f(2) = 7", "7"), ("P(A and B) = 3/10", "0.3"), ("x_1 = 5", "5"), ("AB = 5 cm", "5cm"), ("3-5", "3–5"),
    ("2024-01-05", "2024-1-5"), ("3 x 4", "3×4"), ("(1,234)", "1234"), ("(1,234)", "(1, 234)"), ("1 000 000", "10^6"),
    ("0", "0.0"), ("-0.5", "-1/2"), ("7th", "7"), ("25°C", r"25 \degree C"), ("0.333333333", "1/3"),
    ("12 is the answer", "12"), (r"\dfrac{7}{2}", "3.5"), (r"x \approx 3.14", "3.14"), ("1/3 ≈ 0.333", "1/3"),
    ("3 to 4", "3 to 4"), ("5 sq. ft", "5 square feet"), ("20 m/s^2", "20 m/s²"), ("50 mph", "50 miles per hour"),
    (r"The probability is \frac{1}{6}", "1/6"), ("[1, 2]", "[1,2]"), ("3 - 2 = 1", "1"), ("8 * 9 = 72", "72"),
    ("2 dozen", "24"), (r"$\$18$", "18"), ("18 dollars per day", "18"), ("It costs $18 a day", "$18"),
    ("2(3+4)", "14"),
]  # fmt: skip
UNEQUAL = [
    ("3-5 apples", "4-6 apples"), ("1,000-2,000", "2,000-3,000"), ("3 x 4 cm", "2 x 6 cm"), ("5%-10%", "10%-15%"),
    ("floor(7.5)", "7.5"), ("not x = 5", "5"), ("x=7 apples, y=8", "8"), ("1 and 2", "2"), (r"2\sqrt3", r"7\sqrt3"),
    ("15 cm^2", "12 cm^2"), ("3:4", "9:4"), ("15 cm^2", "15 cm^3"), ("15 cm", "15 m"), ("2:00", "3:00"),
    ("2:30 am", "2:30 pm"), ("(1,2)", "[1,2]"), ("(1,2)", "(2,1)"), ("(1,2]", "(0,2]"), ("1, 2", "2, 1"),
    ("1, 2", "2"), ("3 or 5", "5"), ("x=3", "y=3"), ("x=3, y=-7", "-7"), ("3/4", "4"), ("1/4", "3/4"),
    (r"\frac{1}{2}", "2"), ("2^3", "3"), ("x^2", "2"), ("2x", "2"), ("x + 7", "7"), ("x > 7", "7"), ("3-5", "5"),
    ("3-5", "4-6"), ("2024-01-05", "2023-01-05"), ("1/2/2024", "2/4/2024"), ("3 x 4", "2 x 6"), ("3 x 4", "4"),
    ("12%", "12"), ("12%", "13%"), ("$5", "€5"), ("5 dollars", "5 cents"), ("not 7", "7"), ("It is 7, not 8", "8"),
    ("seven or 8", "8"), ("more than 7", "7"), ("3 apples and 4 oranges", "4"), ("First 3, then 7", "7"),
    ("I counted 5. Or 7.", "7"), ("7 million", "7"), ("negative 7", "7"), ("minus 7", "7"), ("half of 8", "8"),
    ("3 + 4 = 8", "8"), ("2y = 8", "8"), ("7!", "7"), ("1.2.3", "3"), ("1,234", "234"), ("1,23", "23"),
    ("10000000", "10000001"), ("123456789012345678", "123456789012345679"), ("45°", "45 rad"), ("5 km", "5 miles"),
    (r"\sqrt{2}", "2"), (r"5\pi", r"3\pi"), (r"\pi", "3.14"), ("log 5", "5"), (r"\log_2 5", "5"), ("3+4i", "4"),
    ("", "0"), ("Paris", "5"), ("∞", "5"), ("9^9^9^9", "9"), ("1/0", "1"), ("((((", "4"), ("3:4:5", "3:4:6"),
    (r"\{1,2\}", r"\{1,3\}"), (r"(1,2)\cup(3,4)", r"(1,2)\cup(3,5)"), ("1 1/2", "1/2"), ("0.5 in", "0.5 cm"),
    ("H2O", "2"), ("5k", "5"), ("2 3", "3"), ("2,5", "5"), ("7 x 10^3", "7"), ("50 of the 100", "100"),
    (r"\boxed{3} \boxed{7}", "7"), ("5 squared", "5"), ("25°C", "25°F"), ("7 hundred", "7"), ("A7", "7"),
    (r"\frac{x}{7}", "7"), ("-7", "7"), ("- 7", "7"), (r"3 \pm 1", "1"), ("10 m/s", "10 m/s^2"),
    ("1 h 30 min", "1 h 20 min"), ("x = -7", "7"), ("x=7 or x=8", "8"), ("2/3 cup and 7", "7"), ("$3 and $4", "4"),
]  # fmt: skip


def equal(found, wanted) -> bool:
    try:
        pairs = [(one, other) for one in read(found) for other in read(wanted)]
    except Unreadable:
        return False
    return any(same(one, other, 1e-6) for one, other in pairs)


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_the_same_number_may_be_written_in_many_ways(one, other):
    assert equal(one, other)
    assert equal(other, one)


@pytest.mark.parametrize(("one", "other"), UNEQUAL)
def test_no_number_is_picked_out_of_an_answer_that_says_something_else(one, other):
    assert not equal(one, other)
    assert not equal(other, one)


WHY = {
    "": "no number", "Paris": "no number", "2x": "not a number alone", "x > 7": "comparison", "3 cats, 4 dogs": "alone",
    "not 7": "'not'", "9^(9^9)": "can be computed", "1/0": "can be computed", "y + 1 = 2": "not solved",
    "3 + 4 = 8": "does not hold", "1 " * 600: "characters long", "(" * 30 + "1": "brackets", "2(3": "closed",
    "9" * 400: "too large", "(-8)^(1/2)": "not a real number", "1.2.3": "not a number alone", "sqrt(-1)": "computed",
}  # fmt: skip


@pytest.mark.parametrize("text", WHY)
def test_what_cannot_be_compared_says_why(text):
    with pytest.raises(Unreadable, match=WHY[text]):
        read(text)


def test_a_right_answer_that_cannot_be_compared_is_refused_before_the_run():
    from burnish.types.prompt import Prompt

    for answer, why in {"2x + 1": "not a number alone", "x > 3": "is a comparison", "3 or more": "word 'or'"}.items():
        with pytest.raises(ValueError, match=f"{why}.*; use grader=math_verify"):
            reward("numeric").check([Prompt(text="?", answer=answer)])
    reward("numeric").check([Prompt(text="?", answer=answer) for answer in ("2\\sqrt{3}", "15 cm^2", "3:4", "(1, 2]")])


def test_a_wrong_answer_says_what_was_wrong_with_it():
    (verdict,) = ask(reward("numeric", extract="all"), ("I see 3 cats and 4 dogs", "4"))
    assert verdict.value == 0
    assert verdict.note.endswith("is not a number alone")


def test_tolerance_is_for_rounding_and_whole_numbers_have_none():
    pairs = [("10000001", "10000000"), ("0.3333333", "1/3"), ("10000001.0", "10000000"), ("99", "100")]
    assert values(reward("numeric", extract="all"), *pairs) == [0, 1, 1, 0]
    assert values(reward("numeric", extract="all", tolerance=0.02), *pairs) == [1, 1, 1, 1]


def test_odd_texts_are_read_at_once():
    """Whatever a policy writes: nothing takes long, and nothing but Unreadable is raised."""
    odd = [
        "1,",
        "9",
        "a-",
        "1 ",
        "sqrt",
        "1/",
        "the ",
        "= ",
        "1=1",
        "1-1",
        "-",
        "x_{",
        "\\text{",
        "1^",
        "a'",
        "1 h ",
        "cm*",
        "$",
        "(",
    ]
    begun = time.process_time()
    for piece in odd:
        text = piece * (1000 // len(piece))
        for tail in ("", "1", ")"):
            with contextlib.suppress(Unreadable):
                read(text + tail)
    assert time.process_time() - begun < 5


def test_answers_to_a_vote_are_equal_where_numbers_are():
    numbers = [f"<answer>{text}</answer>" for text in ("1/2", "0.5", r"\frac{1}{2}", "50 %", "7", "7.0", "1e16", "x")]
    found = [verdict.answer for verdict in ask(reward("numeric"), *[(text, "8") for text in [*numbers, "no tag"]])]
    assert found == ["0.5", "0.5", "0.5", "0.5", "7", "7", "1e+16", "x", ""]
    right = ask(reward("numeric"), *[(f"<answer>{text}</answer>", "15 cm") for text in ("15", "150 mm", "15 cm")])
    assert [(verdict.value, verdict.answer) for verdict in right] == [(1.0, "15 cm")] * 3
    length, area = ask(reward("numeric"), *[(f"<answer>{text}</answer>", "3") for text in ("2 m", "2 m^2")])
    assert length.answer != area.answer
