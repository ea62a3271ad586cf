"""Alarms on the page: what was said, how it stands now, pictures and responses, all of it as text."""

import json
import math

import numpy as np
import pytest
from PIL import Image

from burnish.alarms.base import Alarm
from burnish.alarms.record import Raised
from burnish.report import write_report
from burnish.report.overview import overview
from burnish.report.passes import passes
from burnish.report.samples import Score, chance
from burnish.report.summary import Summary
from burnish.report.verdict import headline, verdict
from burnish.types.response_stats import Quote
from tests.support.boards import EVIL
from tests.support.reports import run_folder


def alarmed(path):
    """A run whose pictures got dark, whose responses say evil things, and of which an alarm is over."""
    folder = run_folder(path / "run")
    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    for row in rows[1:]:
        row["critic/dark_share/mean"] = 0.1 + 0.02 * row["training/global_step"]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder.alarms_first.parent.mkdir()
    for name, shade in (("first", 250), ("000009-dark_share", 9)):
        Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(folder.alarm_sheet(name))
    dark = Alarm("dark_share", "drift", 4, "dark_share rose", "critic/dark_share/mean", 0.1, 0.05)
    form = Alarm("unfamiliar_form", "level", 7, f"{EVIL}")
    quotes = ((Quote(EVIL, EVIL, 0.5),), (Quote("Which?", "", None),))
    lines = [
        Raised(9, dark, sheets=("first.png", "000009-dark_share.png")).record(),
        Raised(10, form, quotes=quotes).record(),
        Raised(11, Alarm("gradient", "level", 9, "the gradient norm jumped")).record(),
        {"update": 14, "over": "gradient"},
    ]
    folder.alarms.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_the_page_shows_alarms_with_their_evidence(tmp_path):
    folder = alarmed(tmp_path)
    page = write_report(folder).read_text()
    written = page.partition('<script type="application/json"')[0]
    assert "<h2>Alarms</h2>" in written
    assert "Update 9: dark_share rose." in written
    assert "By update 30 it is 0.690, 11.8 standard deviations from the start." in written
    assert "Over since update 14." in written
    assert "<i>nothing</i>" in written
    assert "<script>window" not in page
    assert "no reward" in written


def test_the_headline_names_those_that_stand(tmp_path):
    run = Summary.read(alarmed(tmp_path))
    assert headline(run).endswith("Look at the alarms: dark share, unfamiliar form.")
    assert "Alarms, shown below: dark_share, unfamiliar_form." in run.warnings()


def test_the_boards_data_have_those_that_stand_first(tmp_path):
    folder = alarmed(tmp_path)
    found = overview(folder, Summary.read(folder))["alarms"]
    assert [(one["name"], one["over"]) for one in found] == [
        ("dark share", False), ("unfamiliar form", False), ("gradient", True),
    ]  # fmt: skip
    assert [sheet["file"] for sheet in found[0]["sheets"]] == ["alarms/first.png", "alarms/000009-dark_share.png"]
    assert found[1]["quotes"][0]["said"] == [{"prompt": EVIL, "response": EVIL, "reward": 0.5}]


def scores(best: float, mean: float, prompts: int = 40):
    """Two samples of each prompt."""
    found = {}
    for index in range(prompts):
        luck = 0.02 * (index % 3)
        found[index, 0] = Score("default", best + luck, {})
        found[index, 1] = Score("default", 2 * mean - best + luck, {})
    return found


@pytest.mark.parametrize(
    ("after", "kind"),
    [((0.9, 0.7), "learning"), ((0.6, 0.55), "sharpening"), ((0.5, 0.45), "narrowing"), ((0.7, 0.4), "")],
)
def test_the_best_of_a_prompts_samples_tells_learning_from_sharpening(after, kind):
    found = passes(scores(0.6, 0.4), scores(*after), "reward")
    assert found is not None
    assert (found.n, found.kind) == (2, kind)


def test_the_verdict_says_it_with_its_interval(tmp_path):
    run = Summary.read(run_folder(tmp_path / "run"))
    run.passes = passes(scores(0.6, 0.4), scores(0.9, 0.7), "reward")
    assert any(one.text.startswith("It can do more than before: the best of 2 samples") for one in verdict(run))
    run.passes = passes(scores(0.6, 0.4), scores(0.6, 0.55), "reward")
    (one,) = [one for one in verdict(run) if "best of 2 samples" in one.text]
    assert (one.kind, "more often what it could do before" in one.text) == ("weigh", True)


def test_validations_that_cannot_be_compared_say_nothing():
    one, two = scores(0.6, 0.4), {place: score for place, score in scores(0.6, 0.4).items() if place[1] == 0}
    assert passes(one, two, "reward") is None  # two samples of a prompt, and one
    assert passes(two, two, "reward") is None
    assert passes({}, {}, "reward") is None


def test_a_mean_of_hardly_any_samples_is_no_gain():
    """Of 40 prompts one still keeps to the form, and is right: that is not better than 35 of 40."""
    before = {(index, 0): Score("a", 1.0, {"exact": float(index > 4), "format": 1.0}) for index in range(40)}
    after = {(index, 0): Score("a", 1.0, {"exact": 1.0, "format": float(index == 7)}) for index in range(40)}
    assert chance(before, after, "exact_given_format") == math.inf
    assert 0 < chance(before, before | {(0, 0): after[7, 0]}, "exact_given_format") < math.inf
