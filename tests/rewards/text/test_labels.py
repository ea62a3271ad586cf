import math

import pytest
import torch

from burnish.options import ScoringOptions
from burnish.rewards.scoring import Scorer
from burnish.rewards.text.base import Response, check_labels
from burnish.types.prompt import Prompt
from tests.support.asked import reward

MATH = Prompt(text="1+1?", answer="2", label="math")
FORM = Prompt(text="say", answer="x", label="form")
NOBODY = Prompt(text="say", answer="x", label="other")


def test_a_label_chooses_who_judges():
    rewards = {
        "format": reward("format", weight=0.1),
        "number": reward("numeric", weight=0.9, labels=["math"]),
        "word": reward("exact", weight=2.0, labels=["form"]),
    }
    right, wrong = Response("<answer>2</answer>"), Response("<answer>x</answer>")
    with Scorer(rewards, ScoringOptions(processes=0)) as scoring:
        scores = scoring.score([right, wrong, right, wrong, wrong], [MATH, MATH, FORM, FORM, NOBODY])
    torch.testing.assert_close(scores.reward, torch.tensor([1.0, 0.1, 0.1, 2.1, 0.1]))
    assert not scores.missing.any()
    nan = math.nan
    expected = torch.tensor([[1, 1, nan], [1, 0, nan], [1, nan, 0], [1, nan, 1], [1, nan, nan]])
    torch.testing.assert_close(scores.components, expected, equal_nan=True)


def test_who_is_not_asked_is_not_warned_of_and_nobody_asked_is_missing(caplog):
    rewards = {"number": reward("numeric", labels=["math"]), "watch": reward("format", weight=0.0)}
    with Scorer(rewards, ScoringOptions(processes=0)) as scoring:
        scores = scoring.score([Response("<answer>2</answer>")] * 2, [MATH, NOBODY])
    assert scores.missing.tolist() == [False, True]
    assert scores.reward[0] == 1
    assert not caplog.records


def test_what_fails_is_missing_although_others_were_not_asked():
    rewards = {"number": reward("numeric", labels=["math"]), "word": reward("exact", labels=["form"])}
    broken = Prompt(text="?", label="math")
    with Scorer(rewards, ScoringOptions(processes=0)) as scoring:
        scores = scoring.score([Response("<answer>2</answer>")], [broken])
    assert scores.missing.tolist() == [True]
    assert "the prompt has no answer" in scores.notes[0]


def test_labels_that_nobody_judges_are_refused():
    rewards = [reward("numeric", labels=["math"]), reward("exact", labels=["form"]), reward("format", weight=0.0)]
    check_labels(rewards, [MATH, FORM])
    with pytest.raises(ValueError, match=r"label 'other'; rewards have labels form, math"):
        check_labels(rewards, [MATH, NOBODY])
    check_labels([*rewards, reward("format")], [NOBODY, Prompt(text="?")])


def test_processes_judge_text_as_the_run_does():
    rewards = {"format": reward("format", weight=0.1), "exact": reward("exact", weight=0.9)}
    texts = [Response("<answer>2</answer>"), Response("2"), Response("")]
    found = []
    for processes in (0, 1):
        with Scorer(rewards, ScoringOptions(processes=processes, timeout=45)) as scoring:
            found.append(scoring.score(texts, [MATH] * 3))
    torch.testing.assert_close(found[0].reward, found[1].reward, rtol=0, atol=0)
    assert found[0].notes == found[1].notes == ["2", "no answer", "no answer"]
