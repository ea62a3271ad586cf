"""Rewards on text by rules: what is right in how many spellings, what is not, and that no text takes long to read."""

from __future__ import annotations

import itertools
import random
import signal

import pytest

from burnish.registry import lookup, names
from burnish.rewards.text.base import Response
from burnish.types.prompt import Prompt
from tests.support.asked import ask, reward, values

RESPONSES = [
    "<think>a</think> x \\boxed{3}",
    "\\boxed{3}<think>a</think>",
    "<think>a</think> no box",
    "<think>a\nb</think>\n\\boxed{\\frac{1}{2}}",
    "\\boxed{1} <think>a</think> \\boxed{2}",
    "plain",
    "<think>a</think><answer>b</answer>",
    "<answer>b</answer>",
    "<answer>b</answer> trailing",
]
# LightRFT's examples geo3k, grm, r1_aqa, and r1_aqa with thoughts (conformance case reward.format)
FORMS = {
    "think_then_boxed": [1, 0, 0, 1, 0, 0, 0, 0, 0],
    "think_then_answer": [0, 0, 0, 0, 0, 0, 1, 0, 0],
    "answer": [0, 0, 0, 0, 0, 0, 1, 1, 0],
    "think_answer": [0, 0, 0, 0, 0, 0, 1, 0, 0],
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_are_those_of_lightrft(form):
    assert values(reward("format", form=form), *[(text, None) for text in RESPONSES]) == FORMS[form]


def test_a_form_of_ones_own_matches_the_whole_response():
    own = reward("format", form="pattern", pattern=r"\d+\n.*")
    assert values(own, ("12\nab\nc", None), ("x12\n", None), ("12", None)) == [1, 0, 0]
    for wrong in ({"form": "pattern"}, {"pattern": "a"}, {"form": "pattern", "pattern": "("}):
        with pytest.raises(ValueError, match="pattern"):
            reward("format", **wrong)


def test_tags_in_a_prompt_satisfy_nothing():
    prompt = Prompt(text="Write <think>..</think><answer>4</answer>", answer="4")
    for one in (reward("format"), reward("exact"), reward("numeric"), reward("exact", extract="tag_or_boxed")):
        assert one.verdicts([Response("4")], [prompt])[0].value == 0


@pytest.mark.parametrize(
    ("where", "text", "answer"),
    [
        ("tag", "<answer> 1 </answer><answer>2</answer>", "1"),
        ("tag", "<answer>1", None),
        ("boxed", r"\boxed{1} and \boxed{\frac{a}{b}}.", r"\frac{a}{b}"),
        ("boxed", r"\boxed{1} and \boxed{2", "1"),
        ("boxed", r"\boxed{1}" + r"\boxed{" * 50, "1"),
        ("boxed", "1", None),
        ("tag_or_boxed", r"\boxed{2} <answer>1</answer>", "1"),
        ("tag_or_boxed", r"\boxed{2}", "2"),
        ("last_line", "a\n b \n\n", "b"),
        ("last_line", " \n", None),
        ("all", " a b ", "a b"),
        ("all", "", None),
    ],
)
def test_an_answer_is_found_where_it_was_asked_for(where, text, answer):
    (verdict,) = ask(reward("exact", extract=where), (text, answer or "1"))
    assert (verdict.value, verdict.note) == ((0.0, "no answer") if answer is None else (1.0, answer))


def test_exact_answers_may_forgive_case_and_punctuation():
    pairs = [("<answer>the Eiffel-tower.</answer>", "Eiffel tower"), ("<answer>eiffel  TOWER</answer>", "Eiffel tower")]
    assert values(reward("exact"), *pairs) == [0, 0]
    assert values(reward("exact", ignore_punctuation=True), *pairs) == [1, 0]
    assert values(reward("exact", ignore_punctuation=True, ignore_case=True), *pairs) == [1, 1]
    forgiving = reward("exact", extract="all", ignore_punctuation=True)
    apart = [("-5", "5"), ("3.5", "35"), ("3.5", "3 5"), ("12:30", "12 30"), ("40%", "40"), ("A", "an"), ("the", "A")]
    alike = [("-5.", "−5"), ("(3.5)", "3.5"), ("A.", "A"), ("well, yes!", "well yes"), ("U.S.", "U S")]
    assert values(forgiving, *apart) == [0] * len(apart)
    assert values(forgiving, *alike, ("1,000,", "1,000")) == [1] * (len(alike) + 1)


CHOICES = {
    "B": "B", "(b)": "B", "B. Paris": "B", "b)": "B", "The answer is B.": "B", "option (C) is right": "C",
    "answer: d": "D", "It is (A).": "A", "so A": "A", "I think A dog is C": "C", "A cat": None, "A or B": None,
    "Paris": None, "B and C": None, "Z": None, "A, B": None, "A) or B)": None, "A, C and D": None, "A/B": None,
    "(A) Paris (B) Rome": None, "A. Paris\nB. Rome": None, "both A and B": None, "B. Both A and C": "B",
    "B, because it rains": "B", "B. Vitamin C.": "B", "B) Plan A": "B", "A. None of these": "A", "(B) Paris": "B",
    "e.g. Paris": None, "a.m.": None, "B.C.": None, "Vitamin C is good": None, "Plan B": None, "B.Paris": "B",
    "The answer is a cat": None, "The answer is A cat": None, "The answer is a": "A", "the answer is (a) indeed": "A",
    "The answer is not B": None, "not B": None, "It isn't C": None, "B is wrong": None, "neither A nor B": None,
    "The answer is B, not C.": "B", "Option A is wrong, so the answer is B": "B", "The answer is A or B": None,
    "The answer is B, A is wrong": "B", "**B**": "B", r"\text{B}": "B", "$B$": "B", "It's B.": "B", "I choose D": "D",
}  # fmt: skip


def test_choices_are_read_as_people_write_them():
    read = {text: reward("multiple_choice").choice(text) for text in CHOICES}
    assert read == CHOICES


def test_the_first_tag_is_the_choice_and_other_letters_are_none():
    pairs = [("<answer> B </answer>", "<answer>B</answer>"), ("B", "<answer>B</answer>"), ("<answer>C</answer>", "B")]
    for name in ("exact", "multiple_choice"):  # conformance case reward/choice
        assert values(reward(name), *pairs) == [1, 0, 0]
    assert values(reward("multiple_choice", choices="AB", extract="all"), ("B", "B"), ("C", "B")) == [1, 0]
    with pytest.raises(ValueError, match="choices"):
        reward("multiple_choice", choices="ab")


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


def wrongly_judged(pairs, right: bool) -> list:
    """The pairs of answers that are not, or are, the same number, either way around."""
    numeric = reward("numeric", extract="all")
    both = [*pairs, *[(other, one) for one, other in pairs]]
    return [pair for pair, value in zip(both, values(numeric, *both), strict=True) if bool(value) != right]


def test_the_same_number_may_be_written_in_many_ways():
    assert wrongly_judged(EQUAL, True) == []


def test_no_number_is_picked_out_of_an_answer_that_says_something_else():
    assert wrongly_judged(UNEQUAL, False) == []


WHY = {
    "Paris": "no number", "2x": "not a number alone", "x > 7": "comparison", "3 cats, 4 dogs": "alone",
    "not 7": "'not'", "9^(9^9)": "can be computed", "1/0": "can be computed", "y + 1 = 2": "not solved",
    "3 + 4 = 8": "does not hold", "1 " * 600: "characters long", "(" * 30 + "1": "brackets", "2(3": "closed",
    "9" * 400: "too large", "(-8)^(1/2)": "not a real number", "1.2.3": "not a number alone", "sqrt(-1)": "computed",
}  # fmt: skip


def test_a_wrong_answer_says_why_it_can_t_be_compared():
    verdicts = ask(reward("numeric", extract="all"), *[(text, "4") for text in WHY])
    assert [(text, verdict.note) for text, verdict in zip(WHY, verdicts, strict=True) if WHY[text] not in verdict.note
            or verdict.value != 0] == []  # fmt: skip


def test_tolerance_is_for_rounding_and_whole_numbers_have_none():
    pairs = [("10000001", "10000000"), ("0.3333333", "1/3"), ("10000001.0", "10000000"), ("99", "100")]
    assert values(reward("numeric", extract="all"), *pairs) == [0, 1, 1, 0]
    assert values(reward("numeric", extract="all", tolerance=0.02), *pairs) == [1, 1, 1, 1]
    assert values(reward("numeric"), ("<answer>0</answer>", "0"), ("1000", "1000")) == [1, 0]


def test_expressions_are_compared_as_expressions():
    pytest.importorskip("math_verify")
    one = reward("numeric", grader="math_verify", extract="boxed")
    pairs = [(r"\boxed{\frac{1}{2}}", "0.5"), (r"\boxed{1+x}", "x+1"), (r"\boxed{x}", "y"), (r"\boxed{(1,2)}", "(2,1)")]
    assert values(one, *pairs) == [1, 1, 0, 0]


def test_equal_answers_are_one_to_a_vote():
    def answers(name, *texts, right="8", **options):
        pairs = [(f"<answer>{text}</answer>", right) for text in texts]
        return [one.answer for one in ask(reward(name, **options), *pairs)]

    numbers = answers("numeric", "1/2", "0.5", r"\frac{1}{2}", "50 %", "7", "7.0", "1e16", "x", "")
    assert numbers == ["0.5", "0.5", "0.5", "0.5", "7", "7", "1e+16", "x", ""]
    assert answers("numeric", "15", "150 mm", "15 cm", right="15 cm") == ["15 cm"] * 3
    length, area = answers("numeric", "2 m", "2 m^2")
    assert length != area
    assert answers("multiple_choice", "(B)", "b", "A or B", right="A") == ["B", "B", ""]
    assert answers("exact", "Dog", " dog", right="cat", ignore_case=True) == ["dog", "dog"]
    assert answers("format", "a") == [None]


@pytest.mark.parametrize(
    ("name", "sound", "answer", "why"),
    [
        ("exact", "7", None, "has no answer"),
        ("exact", "7", " ", "has no answer"),
        ("numeric", "7", "Paris", "has no number"),
        ("numeric", r"2\sqrt{3}", "2x + 1", "not a number alone.*grader=math_verify"),
        ("numeric", "(1, 2]", "x > 3", "comparison"),
        ("multiple_choice", "B", "Paris", "chooses none of"),
        ("iou", "[1, 2, 3, 4]", "the left one", "is not one box"),
        ("iou", "[1, 2, 3, 4]", "[4, 4, 1, 1]", "is not one box"),
    ],
)
def test_prompts_that_cannot_be_judged_are_refused_before_the_run_and_missing_in_it(name, sound, answer, why):
    prompts = [Prompt(text="?", answer=sound), Prompt(text="?", answer=answer)]
    reward(name).check(prompts[:1])
    reward(name, labels=["other"]).check(prompts)
    with pytest.raises(ValueError, match=why):
        reward(name).check(prompts)
    assert reward(name).verdicts([Response("<answer>1</answer>")], prompts[1:])[0].value in (None, 0)
    assert answer is not None or ask(reward(name), ("<answer>1</answer>", None))[0].value is None


def test_repetition_is_that_of_lightrft_and_of_its_definition():
    expected = {"": 0, "a": 0, "abc": 0, "aaaa": 0.6, "abcabcabc": 0.466666667, "the cat the cat the cat": 0.442028986}
    text = "to be or not to be, that is: tobe ornot"
    suffixes = sorted(text[i:] for i in range(len(text)))
    shared = 0
    for one, other in itertools.pairwise(suffixes):
        shared += len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
    expected[text] = 2 * shared / (len(text) * (len(text) + 1))
    assert values(reward("repetition"), *[(one, None) for one in expected]) == pytest.approx(
        list(expected.values()), rel=1e-5
    )


BOXES = {
    "[10, 20, 30, 40]": 1, "[10,20,30,40.0]": 1, '{"bbox_2d": [10, 20, 30, 40], "label": "dog"}': 1,
    "(10, 20), (30, 40)": 1, "[[10, 20], [30, 40]]": 1, '```json\n[{"bbox_2d": [10, 20, 30, 40]}]\n```': 1,
    "<box>(10,20),(30,40)</box>": 1, "[10, 20, 30, 30]": 1 / 2, "[20, 20, 40, 40]": 1 / 3, "[15, 25, 25, 35]": 1 / 4,
    "[30, 20, 50, 40]": 0, "[50, 50, 60, 60]": 0, "": 0, "[10, 20, 30]": 0, "[30, 40, 10, 20]": 0,
    "[10, 20, 10, 40]": 0, "[1,2,3,4] or [10,20,30,40]": 0, "10 20 30 40": 0, "[1," * 100_000 + "[[((" * 100_000: 0,
    f"[{'9' * 5000}, 1, 2, 3]": 0,
}  # fmt: skip


def test_overlap_is_the_shared_area_over_the_whole():
    for right in ("[10, 20, 30, 40]", "(10, 20), (30, 40)"):
        pairs = [(f"<answer>{text}</answer>", right) for text in BOXES]
        assert values(reward("iou"), *pairs) == pytest.approx(list(BOXES.values()))
    half = ("<answer>[10, 20, 30, 30]</answer>", "[10, 20, 30, 40]")
    assert [values(reward("iou", threshold=one), half)[0] for one in (0.5, 0.51)] == [1, 0]


REPEATED = [
    "a", "word ", "(s)", "1,", "1,000,", "a-", "'", " ", "\n", "$", "\\text{", "\\text{a}", "{", "}", "(", "1/",
    "1+", "sqrt ", "\\frac{", "\\frac{1}{2}", "-", "**", "A, ", "not ", "answer is ", "x = ", "<answer>",
    "\\boxed{", "1.", "1e", "9", "[1,", "1:", "of ", ". a", "√", "^", "_", "####", "%", "A.", "option A", "\\",
    "pi", "or ", "3 4/5 ", "<think>", "Final Score: ", "Image 1", "1. *", "call:f", "<invoke name=",
    "<parameter=a>", "<tool_call>", "functions.a:1", '{"a":', "<|tool_call>call:f{", "to=functions.f ", "[f(",
    "f(a=",
]  # fmt: skip
LENGTH = 4_000  # characters: a long answer
SECONDS = 30  # of the processor: a text that is split in every way takes longer than anybody waits
RULES = [
    *(("numeric", {"extract": one}) for one in ("all", "last_line", "tag_or_boxed")),
    *((name, {"extract": "all"}) for name in ("exact", "multiple_choice", "iou")),
    *(("format", {"form": one}) for one in ("answer", "think_answer", "think_then_boxed", "think_then_answer")),
    ("repetition", {}),
]


class Late(BaseException):
    """No error of a reward's, which would be a missing value."""


@pytest.fixture
def alarm():
    """Ends what hangs."""

    def late(number, frame):
        raise Late("it is still being read")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def texts():
    for one in REPEATED:
        many = one * (LENGTH // len(one))
        yield from (many, f"15 {many}54", f"is {many} of 5", f"<answer>{many}!7</answer>")
    drawn = random.Random(0)
    for _ in range(100):
        yield "".join(drawn.choices([*REPEATED, "word", " "], k=drawn.randrange(5, 80)))


@pytest.mark.parametrize(
    ("name", "options"), RULES, ids=lambda one: one if isinstance(one, str) else "-".join(one.values())
)
def test_a_rule_reads_every_text(alarm, name, options):
    right = {"multiple_choice": "B", "iou": "[1, 2, 3, 4]"}.get(name, "15")
    every = list(texts())
    assert None not in values(reward(name, **options), *[(text, right) for text in every])


@pytest.mark.parametrize("name", names("call format"))
def test_calls_of_tools_are_looked_for_in_every_text(alarm, name):
    one = lookup("call format", name)()
    for text in texts():
        assert isinstance(one.read(text, {"f": {}}), list)


def test_a_sentence_that_took_for_ever_is_no_number_and_marks_need_their_end(alarm):
    text = "15 is the number that is treated to the advanced formatting of 54"
    assert values(reward("numeric", extract="all"), (text, "15")) == [0]
    endless = "<think></think><answer>" * 20_000
    assert values(reward("format", form="think_answer"), (endless, None), (f"{endless}</answer>", None)) == [0, 1]
    assert values(reward("format", form="answer"), ("<answer></answe", None), ("</answer><answer>", None)) == [0, 0]
