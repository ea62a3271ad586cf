import itertools

import pytest

from burnish.rewards.judging import judge
from burnish.rewards.text.answers import boxed, extract
from burnish.rewards.text.base import Response
from burnish.rewards.text.repetition import repetition
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
        (verdict,) = judge(one, [Response("4")], [prompt])
        assert verdict.value == 0


def test_the_first_tag_is_the_choice():
    """Conformance case reward/choice."""
    exact = reward("exact")
    pairs = [("<answer> B </answer>", "<answer>B</answer>"), ("B", "<answer>B</answer>"), ("<answer>C</answer>", "B")]
    assert values(exact, *pairs) == [1, 0, 0]
    assert values(reward("multiple_choice"), *pairs) == [1, 0, 0]


@pytest.mark.parametrize(
    ("where", "text", "found"),
    [
        ("tag", "<answer> 1 </answer><answer>2</answer>", "1"),
        ("tag", "<answer>1", None),
        ("boxed", r"\boxed{1} and \boxed{\frac{a}{b}}.", r"\frac{a}{b}"),
        ("boxed", r"\boxed{1} and \boxed{2", "1"),
        ("boxed", "1", None),
        ("tag_or_boxed", r"\boxed{2} <answer>1</answer>", "1"),
        ("tag_or_boxed", r"\boxed{2}", "2"),
        ("last_line", "a\n b \n\n", "b"),
        ("last_line", " \n", None),
        ("all", " a b ", "a b"),
        ("all", "", None),
    ],
)
def test_an_answer_is_found_where_it_was_asked_for(where, text, found):
    assert extract(text, where) == found


def test_long_unclosed_boxes_are_passed_over():
    assert boxed(r"\boxed{1}" + r"\boxed{" * 50) == "1"


def test_exact_answers_may_forgive_case_and_punctuation():
    pairs = [("<answer>the Eiffel-tower.</answer>", "Eiffel tower"), ("<answer>eiffel  TOWER</answer>", "Eiffel tower")]
    assert values(reward("exact"), *pairs) == [0, 0]
    assert values(reward("exact", ignore_punctuation=True), *pairs) == [1, 0]
    assert values(reward("exact", ignore_punctuation=True, ignore_case=True), *pairs) == [1, 1]
    forgiving = reward("exact", extract="all", ignore_punctuation=True)
    apart = [("-5", "5"), ("3.5", "35"), ("3.5", "3 5"), ("12:30", "12 30"), ("40%", "40"), ("A", "an"), ("the", "A")]
    alike = [
        ("-5.", "−5"),
        ("(3.5)", "3.5"),
        ("A.", "A"),
        ("well, yes!", "well yes"),
        ("U.S.", "U S"),
        ("1,000,", "1,000"),
    ]
    assert values(forgiving, *apart) == [0] * len(apart)
    assert values(forgiving, *alike) == [1] * len(alike)
    found, none = ask(reward("exact"), ("<answer>7</answer>", "7"), ("7", "7"))
    assert (found.note, none.note, none.value) == ("7", "no answer", 0.0)


def test_numeric_answers_are_compared_as_numbers():
    pairs = [
        ("<answer>1,000</answer>", "1000"),
        ("<answer>x = 0.5</answer>", "1/2"),
        ("<answer>1001</answer>", "1000"),
        ("<answer>none</answer>", "1000"),
        ("1000", "1000"),
        ("<answer>0</answer>", "0"),
    ]
    assert values(reward("numeric"), *pairs) == [1, 1, 0, 0, 0, 1]
    assert values(reward("numeric", tolerance=0.01), *pairs) == [1, 1, 1, 0, 0, 1]
    assert values(reward("numeric", extract="all"), ("it is 7", "7")) == [1]


def test_expressions_are_compared_as_expressions():
    pytest.importorskip("math_verify")
    one = reward("numeric", grader="math_verify", extract="boxed")
    pairs = [(r"\boxed{\frac{1}{2}}", "0.5"), (r"\boxed{1+x}", "x+1"), (r"\boxed{x}", "y"), (r"\boxed{(1,2)}", "(2,1)")]
    assert values(one, *pairs) == [1, 1, 0, 0]


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


@pytest.mark.parametrize("text", CHOICES)
def test_choices_are_read_as_people_write_them(text):
    assert reward("multiple_choice").choice(text) == CHOICES[text]


def test_fewer_choices_leave_other_letters_alone():
    assert values(reward("multiple_choice", choices="AB", extract="all"), ("B", "B"), ("C", "B")) == [1, 0]
    with pytest.raises(ValueError, match="choices"):
        reward("multiple_choice", choices="ab")


@pytest.mark.parametrize(
    ("name", "options", "answer", "why"),
    [
        ("exact", {}, None, "has no answer"),
        ("exact", {}, " ", "has no answer"),
        ("numeric", {}, "Paris", "has no number"),
        ("multiple_choice", {}, "Paris", "chooses none of"),
    ],
)
def test_prompts_that_cannot_be_judged_are_refused_before_the_run(name, options, answer, why):
    prompts = [Prompt(text="?", answer="<answer>7</answer>" if name != "multiple_choice" else "B")]
    one = reward(name, **options)
    one.check(prompts)
    with pytest.raises(ValueError, match=why):
        one.check([*prompts, Prompt(text="?", answer=answer)])
    reward(name, labels=["other"], **options).check([Prompt(text="?", answer=answer)])


def test_a_prompt_without_an_answer_is_missing_never_wrong():
    for name in ("exact", "numeric", "multiple_choice"):
        (verdict,) = ask(reward(name), ("<answer>1</answer>", None))
        assert verdict.value is None


def test_repetition_is_that_of_lightrft():
    """Conformance case trajectory.repeatness."""
    strings = ["a", "abc", "aaaa", "abcabcabc", "the cat the cat the cat"]
    expected = [0.0, 0.0, 0.6, 0.466666667, 0.442028986]
    assert [repetition(text) for text in strings] == pytest.approx(expected, rel=1e-5)
    assert repetition("") == 0
    assert values(reward("repetition"), ("aaaa", None)) == pytest.approx([0.6])


def test_repetition_equals_its_definition():
    text = "to be or not to be, that is: tobe ornot"
    suffixes = sorted(text[i:] for i in range(len(text)))
    shared = 0
    for one, other in itertools.pairwise(suffixes):
        shared += next(
            (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
        )
    assert repetition(text) == pytest.approx(2 * shared / (len(text) * (len(text) + 1)))


def test_functions_judge_text(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def score(responses, prompts, scale=1):\n"
        "    return [scale * len(r.text) * r.finished + len(p.answer) for r, p in zip(responses, prompts)]\n"
        "def too_few(responses, prompts):\n    return [1.0]\n"
    )
    one = reward("function", path=f"{file}:score", arguments={"scale": 10})
    one.check([])
    cut = judge(one, [Response("abc"), Response("abc", finished=False)], [Prompt(text="?", answer="x")] * 2)
    assert [verdict.value for verdict in cut] == [31, 1]
    (first, _) = ask(reward("function", path=f"{file}:too_few"), ("a", "b"), ("a", "b"))
    assert "1 values for 2 responses" in first.note
    with pytest.raises(ValueError, match="nothing has no such name"):
        reward("function", path=f"{file}:nothing").check([])


def test_letters_and_plain_answers_vote():
    letters = ask(reward("multiple_choice"), *[(f"<answer>{text}</answer>", "A") for text in ("(B)", "b", "A or B")])
    assert [verdict.answer for verdict in letters] == ["B", "B", ""]
    plain = ask(reward("exact", ignore_case=True), ("<answer>Dog</answer>", "cat"), ("<answer> dog</answer>", "cat"))
    assert [verdict.answer for verdict in plain] == ["dog", "dog"]
    assert [verdict.answer for verdict in ask(reward("format"), ("a", None))] == [None]


def test_marks_that_repeat_without_their_end_cost_one_pass():
    endless = "<think></think><answer>" * 20_000  # a regular expression tries each with each
    assert values(reward("format", form="think_answer"), (endless, None), (f"{endless}</answer>", None)) == [0, 1]
    assert values(reward("format", form="answer"), ("<answer></answe", None), ("</answer><answer>", None)) == [0, 0]
