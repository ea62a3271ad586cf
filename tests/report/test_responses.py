"""What is said of responses: no change without its interval, and what the policy stopped doing."""

from __future__ import annotations

import json
import random
import re

import pytest

from burnish.config import dump, load
from burnish.config.run_folder import RunFolder
from burnish.report import write_report
from burnish.report.habits import lost_habits
from burnish.report.samples import Sample
from burnish.report.summary import Summary
from burnish.report.verdict import headline, verdict

PROMPTS, N = 150, 4


def run_of(path, right: tuple[float, float], form: tuple[float, float], think: tuple[float, float]) -> RunFolder:
    """A run that has the form, is right where it has it, and thinks aloud so often, before and after."""
    folder, draw = RunFolder(path), random.Random(0)
    folder.path.mkdir()
    folder.config.write_text(dump(load("vlm_quickstart", [f"output_dir={path}"])))
    rows = []
    for update, side in ((0, 0), (60, 1)):
        scores, samples = [], []
        for index in range(PROMPTS):
            hard = draw.gauss(0, 0.2)
            for sample in range(N):
                formed = float(draw.random() < form[side])
                exact = float(formed and draw.random() < right[side] + hard)
                about = {"index": index, "sample": sample}
                values = {"exact": exact, "format": formed, "tokens": 9.0}
                scores.append(about | {"source": "default", "reward": exact, "values": values})
                response = "<think>a b c</think> It is 3." if draw.random() < think[side] else f"Answer {sample}."
                said = {"prompt": "?", "reward": exact, "components": {}, "note": "", "response": response}
                samples += [about | said] if index < 16 else []
        folder.validation(update).mkdir(parents=True)
        for name, lines in (("scores", scores), ("samples", samples)):
            file = folder.validation(update) / f"{name}.jsonl"
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        exact, formed = (sum(one["values"][name] for one in scores) / len(scores) for name in ("exact", "format"))
        row = {"val-core/default/reward/mean@4": exact, "val-aux/default/exact/mean@4": exact}
        row |= {"val-aux/default/format/mean@4": formed, "val-aux/default/exact_given_format/mean@4": exact / formed}
        row |= {f"val-aux/default/exact/maj@{n}/{k}": v for n, v in ((2, 0.5), (4, 0.75)) for k in ("mean", "std")}
        rows.append({"training/global_step": update} | row)
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


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
