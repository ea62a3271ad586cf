"""Rewards on text by rules: what is right in how many spellings, what is not, and that no text takes long to read."""

import json
import pickle
from pathlib import Path

import pytest

from burnish.rewards.calls import call_reward
from burnish.rewards.text.base import Dialogue, Response
from burnish.types.prompt import Prompt
from tests.support.asked import ask, reward, values
from tests.support.processes import holds_nothing_up

# how people write choices, numbers and boxes, and what they mean; and which responses have the form by LightRFT's
# examples geo3k, grm and r1_aqa (conformance case reward.format)
ANSWERS = json.loads(Path(__file__).with_name("answers.json").read_text())


def test_forms_are_those_of_lightrft():
    pairs = [(text, None) for text in ANSWERS["responses"]]
    assert {form: values(reward("format", form=form), *pairs) for form in ANSWERS["forms"]} == ANSWERS["forms"]


def test_a_form_of_ones_own_matches_the_whole_response():
    own = reward("format", form="pattern", pattern=r"\d+\n.*")
    assert values(own, ("12\nab\nc", None), ("x12\n", None), ("12", None)) == [1, 0, 0]
    with pytest.raises(ValueError, match="pattern"):
        reward("format", form="pattern", pattern="(")


def test_rewards_of_an_environment_are_summed_or_missing_and_go_to_other_processes_without_images():
    said = Dialogue((("policy", "a"), ("user", "b"), ("policy", "c")), (0.5, None), images=(None,))
    responses = [Response("c", dialogue=one) for one in (said, Dialogue((("policy", "a"),), (None,)), None)]
    scores = reward("environment")(pickle.loads(pickle.dumps(responses)), [Prompt(text="?")] * 3)
    assert [(one.value, one.note) for one in scores] == [
        (0.5, "2 turns"), (None, "the environment gave no reward"), (None, "there was no environment")
    ]  # fmt: skip
    assert pickle.loads(pickle.dumps(said)) == said != pickle.loads(pickle.dumps(said)).images == ()


def test_tags_in_a_prompt_satisfy_nothing():
    prompt = Prompt(text="Write <think>..</think><answer>4</answer>", answer="4")
    for one in (reward("format"), reward("exact"), reward("numeric"), reward("exact", extract="tag_or_boxed")):
        assert one([Response("4")], [prompt])[0].value == 0


@pytest.mark.parametrize(("where", "text", "answer"), ANSWERS["found"])
def test_an_answer_is_found_where_it_was_asked_for(where, text, answer):
    (score,) = ask(reward("exact", extract=where), (text, answer or "1"))
    assert (score.value, score.note) == ((0.0, "no answer") if answer is None else (1.0, answer))


def test_exact_answers_may_forgive_case_and_punctuation():
    pairs = [(f"<answer>{text}</answer>", "Eiffel tower") for text in ("the Eiffel-tower.", "eiffel  TOWER")]
    for how, right in (((), [0, 0]), (("punctuation",), [1, 0]), (("punctuation", "case"), [1, 1])):
        assert values(reward("exact", **{f"ignore_{what}": True for what in how}), *pairs) == right
    forgiving = reward("exact", extract="all", ignore_punctuation=True)
    apart = [("-5", "5"), ("3.5", "35"), ("3.5", "3 5"), ("12:30", "12 30"), ("40%", "40"), ("A", "an"), ("the", "A")]
    alike = [("-5.", "−5"), ("(3.5)", "3.5"), ("A.", "A"), ("well, yes!", "well yes"), ("U.S.", "U S")]
    assert values(forgiving, *apart) == [0] * len(apart)
    assert values(forgiving, *alike, ("1,000,", "1,000")) == [1] * (len(alike) + 1)


def test_choices_are_read_as_people_write_them():
    judge = reward("multiple_choice", extract="all")
    wrong = {}
    for text, choice in ANSWERS["choices"].items():
        (score,) = ask(judge, (text, choice or "A"))
        if (score.value, score.answer) != ((1.0, choice) if choice else (0.0, "")):
            wrong[text] = score
    assert wrong == {}


def wrongly_judged(pairs, right: bool) -> list:
    """The pairs of answers that are not, or are, the same number, either way around."""
    numeric = reward("numeric", extract="all")
    both = [*pairs, *[(other, one) for one, other in pairs]]
    return [pair for pair, value in zip(both, values(numeric, *both), strict=True) if bool(value) != right]


def test_a_number_may_be_written_in_many_ways_and_none_is_picked_out_of_something_else():
    assert wrongly_judged(ANSWERS["equal"], True) == []
    assert wrongly_judged(ANSWERS["unequal"], False) == []


def test_a_wrong_answer_says_why_it_can_t_be_compared():
    reasons = ANSWERS["why"] | {"1 " * 600: "characters long", "9" * 400: "too large", "(" * 30 + "1": "brackets"}
    scores = ask(reward("numeric", extract="all"), *[(text, "4") for text in reasons])
    assert [score.value for score in scores] == [0] * len(reasons)
    for score, why in zip(scores, reasons.values(), strict=True):
        assert why in score.note


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


@pytest.mark.parametrize(("name", "sound", "answer", "why"), ANSWERS["not judged"])
def test_prompts_that_cannot_be_judged_are_refused_before_the_run_and_missing_in_it(name, sound, answer, why):
    prompts = [Prompt(text="?", answer=sound), Prompt(text="?", answer=answer)]
    reward(name).check(prompts[:1])
    with pytest.raises(ValueError, match=why):
        reward(name).check(prompts)
    assert call_reward(reward(name), [Response("<answer>1</answer>")], prompts[1:])[0].value is None


def test_repetition_is_that_of_lightrft():
    expected = {"": 0, "a": 0, "abc": 0, "aaaa": 0.6, "abcabcabc": 0.466666667, "the cat the cat the cat": 0.442028986}
    found = values(reward("repetition"), *[(text, None) for text in expected])
    assert found == pytest.approx(list(expected.values()), rel=1e-5)


def test_overlap_is_the_shared_area_over_the_whole():
    boxes = ANSWERS["boxes"] | {"[1," * 100_000 + "[[((" * 100_000: 0, f"[{'9' * 5000}, 1, 2, 3]": 0}
    for right in ("[10, 20, 30, 40]", "(10, 20), (30, 40)"):
        pairs = [(f"<answer>{text}</answer>", right) for text in boxes]
        assert values(reward("iou"), *pairs) == pytest.approx(list(boxes.values()))
    half = ("<answer>[10, 20, 30, 30]</answer>", "[10, 20, 30, 40]")
    assert [values(reward("iou", threshold=one), half)[0] for one in (0.5, 0.51)] == [1, 0]


def test_a_sentence_that_took_for_ever_is_no_number_and_marks_need_their_end():
    text, endless = (
        "15 is the number that is treated to the advanced formatting of 54",
        "<think></think><answer>" * 20_000,
    )
    holds_nothing_up(lambda text: values(reward("numeric", extract="all"), (text, "15")), [text, f"15 {'a' * 4000}54"])
    assert values(reward("numeric", extract="all"), (text, "15")) == [0]
    assert values(reward("format", form="think_answer"), (endless, None), (f"{endless}</answer>", None)) == [0, 1]
    assert values(reward("format", form="answer"), ("<answer></answe", None), ("</answer><answer>", None)) == [0, 0]
