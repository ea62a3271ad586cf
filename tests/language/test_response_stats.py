"""Statistics of single responses."""

import math

import pytest
import torch

from burnish.language.response_stats import repeated, response_stats
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded
from burnish.types.response_stats import outline


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("<think>1, 2</think> so\n<answer>2</answer>", "<think> <answer>"),
        ("<ANSWER>2</answer>", "<answer>"),
        (r"It is \boxed{4}.", "box"),
        ("# Title\n- **one**\n- two", "bold type heading list"),
        ("It is 8.", "words"),
        ("8", "no words"),
        (" \n.", "nothing"),
        ("", "nothing"),
    ],
)
def test_the_form_of_a_response(text, wanted):
    assert set(outline(text).split()) == set(wanted.split())


def test_repeated_runs_of_tokens():
    assert repeated([1, 2, 3]) == repeated([1, 2, 3, 4]) == repeated([]) == 0.0
    assert repeated(range(50)) == 0.0
    assert repeated([1, 2, 3, 4] * 5) == pytest.approx(13 / 17)  # of 17 runs 4 differ
    assert repeated([7] * 10) == pytest.approx(6 / 7)


def test_only_what_the_policy_chose_is_looked_at():
    encoded = Encoded(ids=[torch.tensor([5])], positions=[torch.tensor([[0]])], features=[None])
    trace = Completion.of_text(
        Gathered(table=encoded, index=torch.tensor([0])), torch.tensor([[3, 4, 5, 6]]), torch.tensor([4]), axes=1,
        logprob=torch.tensor([[-1.0, 0.0, -2.0, -3.0]]), finished=torch.tensor([False]),
    )  # fmt: skip
    trace.mask = torch.tensor([[True, False, True, True]])  # the second one is the environment's
    (found,) = response_stats(trace, ["8"])
    assert (found.length, found.truncated, found.repeated, found.surprisal) == (3, True, 0.0, 2.0)
    trace.mask = torch.zeros(1, 4, dtype=torch.bool)
    assert math.isnan(response_stats(trace, [""])[0].surprisal)
