"""A response is scored in a moment, whatever a model writes: no pattern here tries every way to split a text."""

import random
import signal

import pytest

from burnish.environments.call_formats import calls_in
from burnish.registry import lookup, names
from tests.support.asked import reward, values

REPEATED = [
    "a", "word ", "(s)", "1,", "1,000,", "a-", "'", " ", "\n", "$", "\\text{", "\\text{a}", "{", "}", "(", "1/",
    "1+", "sqrt ", "\\frac{", "\\frac{1}{2}", "-", "**", "A, ", "not ", "answer is ", "x = ", "<answer>",
    "\\boxed{", "1.", "1e", "9", "[1,", "1:", "of ", ". a", "√", "^", "_", "####", "%", "A.", "option A", "\\",
    "pi", "or ", "3 4/5 ", "<think>", "Final Score: ", "Image 1", "1. *", "call:f", "<invoke name=",
    "<parameter=a>", "<tool_call>", "functions.a:1", '{"a":', "<|tool_call>call:f{", "to=functions.f ", "[f(",
    "f(a=",
]  # fmt: skip
LENGTH = 4_000  # characters: a long answer
SECONDS = 30  # a text that is split in every way takes longer than anybody waits
RULES = [
    *(("numeric", {"extract": one}) for one in ("all", "last_line", "tag_or_boxed")),
    *((name, {"extract": "all"}) for name in ("exact", "multiple_choice", "iou")),
    *(("format", {"form": one}) for one in ("answer", "think_answer", "think_then_boxed", "think_then_answer")),
    ("repetition", {}),
]


@pytest.fixture(autouse=True)
def alarm():
    """Ends what hangs."""

    def late(number, frame):
        raise TimeoutError("it is still being read")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def texts():
    for one in REPEATED:
        many = one * (LENGTH // len(one))
        yield from (many, f"15 {many}54", f"is {many} of 5", f"<answer>{many}!7</answer>")


@pytest.mark.parametrize(
    ("name", "options"), RULES, ids=lambda one: one if isinstance(one, str) else "-".join(one.values())
)
def test_a_rule_reads_every_text(name, options):
    right = {"multiple_choice": "B", "iou": "[1, 2, 3, 4]"}.get(name, "15")
    found = values(reward(name, **options), *[(text, right) for text in texts()])
    assert len(found) == 4 * len(REPEATED)


def test_a_sentence_that_took_for_ever_is_no_number():
    text = "15 is the number that is treated to the advanced formatting of 54"
    assert values(reward("numeric", extract="all"), (text, "15")) == [0]


@pytest.mark.parametrize("name", sorted(names("call format")))
def test_calls_are_looked_for_in_every_text(name):
    for text in texts():
        assert isinstance(calls_in(text, lookup("call format", name)(), {"f": {}}), list)


def test_texts_that_are_drawn_from_all_of_it_are_read_too():
    drawn = random.Random(0)
    some = ["".join(drawn.choices([*REPEATED, "word", " "], k=drawn.randrange(5, 80))) for _ in range(300)]
    for name, options in RULES[:6]:
        right = {"multiple_choice": "B", "iou": "[1, 2, 3, 4]"}.get(name, "15")
        assert len(values(reward(name, **options), *[(text, right) for text in some])) == 300
