"""What is said of responses: no change without its interval, and what the policy stopped doing."""

from __future__ import annotations

import re

import pytest

from burnish.config.run_folder import RunFolder
from burnish.report import write_report
from burnish.report.habits import lost_habits
from burnish.report.samples import Sample
from burnish.report.summary import Summary
from burnish.report.verdict import headline, verdict
from tests.support.responding_run import run_of


def words(folder: RunFolder) -> str:
    write_report(folder)
    return " ".join(point.text for point in verdict(Summary.read(folder))).replace("\N{NO-BREAK SPACE}", " ")


def test_the_answer_of_most_samples_is_shown_beside_the_mean(tmp_path):
    folder = run_of(tmp_path / "run", right=(0.5, 0.52), form=(0.6, 0.95), think=(0.4, 0.4))
    titles = {one.title: one for one in Summary.read(folder).measures()}
    assert "Answered right by majority of 4" in titles
    assert "Answered right by majority of 2" not in titles
    measure = titles["Answered right by majority of 4"]
    assert (measure.column, measure.show(measure.of(Summary.read(folder).after))) == (
        "maj@4",
        "75.0\N{NO-BREAK SPACE}%",
    )
    write_report(folder)
    assert folder.report.read_text().count("Answered right by majority of 4") >= 2  # the table, and its curve


def test_a_rise_within_its_interval_is_no_verdict(tmp_path):
    text = words(run_of(tmp_path / "run", right=(0.5, 0.52), form=(0.6, 0.95), think=(0.4, 0.4)))
    given = text.partition("Among those that keep it")[2].partition(".  ")[0]
    assert "more than the form was learned" not in text
    assert "no clear change, as this may be chance" in given
    assert " ± " in given


def test_a_rise_beyond_its_interval_is_one(tmp_path):
    text = words(run_of(tmp_path / "run", right=(0.4, 0.7), form=(0.6, 0.95), think=(0.4, 0.4)))
    assert "more than the form was learned" in text
    assert "Disappearing pattern" not in text


def test_what_is_not_done_any_more_is_told_though_nothing_watches_it(tmp_path):
    folder = run_of(tmp_path / "run", right=(0.4, 0.7), form=(0.6, 0.95), think=(0.4, 0.03))
    assert re.search("Disappearing pattern: tag <think>, .* → .* of responses", words(folder))
    assert "Disappearing pattern: tag <think>" in headline(Summary.read(folder))
    assert "tag &lt;think&gt;" in folder.report.read_text()


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (["Let me look at it closely. 3", "3"], ["3", "4"], ["opening “let me”"]),
        (["It is **3**", "3"], ["It is 3", "3"], ["mark bold type"]),
        (["3", "4"], ["<think>3</think>", "4"], []),  # what is new is seen elsewhere
        (["<a>3", "3"], ["<a>3", "3"], []),
    ],
)
def test_habits_are_tags_openings_and_turns_of_phrase(before, after, found):
    def samples(texts):
        return {
            (index, sample): Sample("p", 1.0, {}, "", None, response=text)
            for index in range(8)
            for sample, text in enumerate(texts)
        }

    assert [habit.what for habit in lost_habits(samples(before), samples(after))] == found


def test_what_few_prompts_show_is_nothing():
    def samples(text):
        return {(index, 0): Sample("p", 1.0, {}, "", None, response=text) for index in range(3)}

    assert lost_habits(samples("<think>"), samples("3")) == []
