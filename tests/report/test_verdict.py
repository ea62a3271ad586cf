"""What the report of a run says is what its numbers say: measures, sentences, warnings, alarms, prompts, charts."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.support.boards import EVIL
from tests.support.reports import Story, edit, lines_of, plain, report, run_folder, write_lines
from tests.support.responding_run import run_of

BARE = Story(pictures=False)
DEFAULT = "val-core/default/reward/mean@6"


def test_numbers_before_and_after_stand_beside_the_reference(tmp_path):
    told = report(run_folder(tmp_path / "run", BARE))
    assert told.rows["Validation reward"] == ["0.772", "0.965", "+0.193", "0.978"]
    assert told.rows["Read exactly right"] == ["52.8 %", "90.5 %", "+37.7", "94.8 %"]
    assert told.rows["Border darkness"] == ["0.002", "0.004", "+0.002", "0.003"]
    assert told.rows["Variety within a prompt"] == ["0.056", "0.029", "−0.027", "0.051"]
    assert "30 policy updates of 8 prompts × 12 pictures: 2 880 pictures" in told.page.text
    assert "0.772 to 0.965" in told.said["gained"]
    assert "0.056 before, 0.029 after (48 % less)" in told.said["lost"]
    assert "Guidance 3 alone, without training, reaches 0.978 (94.8 % exactly right)" in told.said["weigh"]
    assert "closed 94 % of that gap, at half the cost" in told.said["weigh"]
    assert "seed 0" in told.said["weigh"]


STORIES = {  # how a run went: the kind of sentence, words of it, and words of the headline
    "dirtier": (Story(border=(0.002, 0.091)), "lost", "darker", "at a price: border darkness and variety"),
    "cleaner": (Story(border=(0.091, 0.002)), "gained", "cleaner", "at a price: variety"),
    "worse": (Story(reward=(0.8, 0.7)), "lost", "fell from 0.800 to 0.700", ""),
    "further from guidance": (Story(reward=(0.8, 0.7)), "weigh", "did not come closer", ""),
    "unmoved": (Story(reward=(0.8, 0.802)), "weigh", "from 0.800 to 0.802", ""),
    "beyond guidance": (Story(reward=(0.8, 0.99)), "gained", "beyond that", "learned"),
    "less exact": (Story(exact=(0.9, 0.5)), "lost", "90.0 % before, 50.0 % after", ""),
    "as varied": (Story(variety=(0.05, 0.049)), "kept", "as much as before", "nothing that was watched got worse"),
    "more varied": (Story(variety=(0.03, 0.05)), "gained", "less alike", ""),
    "unfinished": (Story(updates=20, steps=40), "weigh", "20 of 40", ""),
    "all worse": (Story(reward=(0.8, 0.7), exact=(0.9, 0.5)), "lost", "fell", "got worse at what it was trained for"),
    "nothing": (
        Story(reward=(0.8, 0.801), exact=(0.7, 0.7), variety=(0.05, 0.05)), "weigh", "0.801", "No clear change",
    ),
    "only a price": (Story(reward=(0.8, 0.801), exact=(0.7, 0.7)), "lost", "alike", "variety within a prompt got wor"),
}  # fmt: skip


@pytest.mark.parametrize(("story", "kind", "words", "headline"), STORIES.values(), ids=list(STORIES))
def test_the_verdict_follows_the_numbers(tmp_path, story, kind, words, headline):
    told = report(run_folder(tmp_path / "run", replace(story, pictures=False)))
    assert words in told.said[kind]
    assert words in plain(told.page.text)
    assert headline in told.run["headline"]
    assert told.run["headline"] in told.page.text


def test_a_change_that_may_be_chance_is_no_gain(tmp_path):
    """Rewards that go up for one prompt and down for the next, as far as the kept samples tell."""
    folder = run_folder(tmp_path / "run", Story(reward=(0.80, 0.83), exact=(0.60, 0.62)))
    for update, way in ((0, -1), (30, 1)):

        def tilted(line, way=way):
            tilt = way * (0.3 if line["index"] % 2 else -0.25)
            return {"reward": 0.5 + tilt, "components": line["components"] | {"ocr_exact": float(tilt > 0)}}

        edit(folder.validation(update) / "samples.jsonl", tilted)
    told = report(folder)
    assert "gained" not in told.said
    assert "0.800 to 0.830" in told.said["weigh"]
    assert "chance (+0.030 ± 0.2" in told.said["weigh"]
    assert "60.0 % before, 62.0 % after (+2.0 ± " in told.said["weigh"]
    assert "No clear change" in told.run["headline"]
    assert "better</small>" not in told.html.replace("is better</small>", "")


def test_few_prompts_show_no_gain_over_guidance(tmp_path):
    folder = run_folder(tmp_path / "run", Story(reward=(0.8, 0.99)))
    for update in (0, 30):
        file = folder.validation(update) / "samples.jsonl"
        write_lines(file, [line for line in lines_of(file) if line["index"] < 3])
    told = report(folder)
    assert "too few prompts" in told.said["weigh"]
    assert "Guidance" not in told.said.get("gained", "")
    edit(folder.metrics, lambda row: {DEFAULT: 0.0} if DEFAULT in row else None)
    (folder.reference / "metrics.json").write_text(json.dumps({"guidance_scale": 3.0, DEFAULT: 0.0}))
    assert "Guidance" not in report(folder).said.get("gained", ""), "nothing is gained over nothing"


def test_what_is_not_as_usual_is_told(tmp_path):
    overrides = ("rollout.guidance_scale=2.0", "data.val_files=null", "optimizer.schedule=constant")
    story = Story(overrides=overrides, missing=0.02, skipped=(4, 9), pictures=False)
    folder = run_folder(tmp_path / "run", story)
    edit(folder.metrics, lambda row: {DEFAULT: 0.8} if row["training/global_step"] == 30 else None)
    told = report(folder)
    assert "the cost" not in str(told.said), "half the cost is claimed only by a run without guidance"
    assert "guidance 2" in told.page.text
    assert "training prompts" in told.said["weigh"]
    assert "after update 20" in told.said["lost"], "a peak that was passed"
    assert "2.0 % of the training rewards could not be computed, in 30 of 30 updates" in told.page.text
    assert "2 optimizer steps were skipped" in told.page.text
    clean = report(run_folder(tmp_path / "clean", BARE)).page.text
    assert "could not be computed" not in clean
    assert "skipped because" not in clean


def test_rounded_numbers_do_not_contradict_each_other(tmp_path):
    story = Story(border=(0.0024, 0.0036), variety=(0.05, 0.05), guided=False, pictures=False, exact=(0.5234, 0.8531))
    rows = report(run_folder(tmp_path / "run", story)).rows
    assert rows["Border darkness"] == ["0.0024", "0.0036", "+0.0012"]
    assert rows["Read exactly right"] == ["52.3 %", "85.3 %", "+33.0"]


def test_why_rewards_are_missing_is_told(tmp_path):
    folder = run_folder(tmp_path / "run", Story(missing=1.0))

    def lost(row):
        kept = {name: value for name, value in row.items() if not name.startswith(("val-core/", "val-aux/default/"))}
        return kept | ({"val-aux/missing": 1.0} if "val-aux/missing" in row else {})

    write_lines(folder.metrics, [lost(row) for row in lines_of(folder.metrics)])
    edit(folder.validation(30) / "samples.jsonl", lambda line: {"reward": None, "note": "KeyError: 'x'"})
    text = report(folder).page.text
    assert "No reward of any validation could be computed" in text
    assert "KeyError: 'x'" in text


def test_every_chart_of_health_is_explained_once_and_none_is_cut(tmp_path):
    folder = run_folder(tmp_path / "run", BARE)
    edit(folder.metrics, lambda row: row["training/global_step"] and {
        "actor/pg_loss": row["actor/grad_norm"], "actor/entropy": 1.0 - 1e-7 * row["training/global_step"],
    })  # fmt: skip
    section = report(folder).html.partition("Health of the training")[2].partition("Where the time goes")[0]
    charts = re.findall(r"<figcaption>(.*?)</figcaption>", section)
    assert len(charts) == len({chart.partition("<")[0] for chart in charts}) == 5
    assert all("<small>" in chart for chart in charts), charts
    assert any("actor/grad_norm" in chart and "; the same as actor/pg_loss" in chart for chart in charts)
    for svg in re.findall(r"<svg.*?</svg>", section):
        (frame,) = re.findall(r'viewBox="0 0 (\d+)', svg[:200])
        for x, anchor, text in re.findall(r'<text x="([\d.]+)" y="[\d.]+" class="(\w+)">([^<]*)<', svg):
            width = 5.6 * len(text)
            start = float(x) - (width if anchor == "end" else width / 2)
            assert 0 <= start <= start + width <= int(frame), f"{text} is cut"


def test_several_data_sources_are_averaged(tmp_path):
    folder = run_folder(tmp_path / "run", BARE)
    edit(folder.metrics, lambda row: "val-aux/variety" in row and {
        "val-core/other/source/reward/mean@6": 0.0, "val-aux/other/source/ocr_exact/mean@6": None,
    })  # fmt: skip
    rows = report(folder).rows
    assert rows["Validation reward"][:2] == ["0.386", "0.482"]
    assert rows["Read exactly right"][:2] == ["52.8 %", "90.5 %"]
    assert rows["default"] == ["0.772", "0.965", "52.8 %", "90.5 %"]
    assert rows["other/source"] == ["0.000", "0.000", "–", "–"]


def test_watched_statistics_are_behind_one_click(tmp_path):
    folder = run_folder(tmp_path / "run", Story(guided=False))
    edit(folder.metrics, lambda row: "val-aux/variety" in row and {
        "val-aux/default/file_size/mean@6": 12.0 if row["training/global_step"] else 17.0,
        "val-aux/default/brightness/mean@6": 0.5,
    })  # fmt: skip
    told = report(folder)
    outside = re.sub(r"<details.*?</details>", "", told.html.partition("Over the policy updates")[0], flags=re.DOTALL)
    assert "Validation reward" in outside
    assert "File size" not in outside
    numbers = told.run["numbers"]
    assert [row["title"] for row in numbers["watched"]] == ["Brightness", "File size"]
    assert {"File size", "Brightness"}.isdisjoint(row["title"] for row in numbers["rows"])
    assert numbers["moved"].startswith("2 ")
    assert numbers["moved"].endswith("clear change: File size")
    watched = {one["title"] for one in told.data["curves"]["charts"] if one["part"] == "Watched statistics"}
    assert watched == {"Brightness", "File size"}


def dots(told) -> list[tuple[float, float]]:
    """Of the validations in the chart of the reward."""
    chart = re.search(r"<figcaption>Reward.*?</figcaption><svg.*?</svg>", told.html, re.DOTALL)
    return [
        (float(x), float(y))
        for x, y in re.findall(r'<circle class="dot validation" cx="([\d.]+)" cy="([\d.]+)"', chart[0])
    ]


CURVES = [
    (0.0, 0.5, 1.0, 1.5), (3.0, 3.0, 3.0, 3.0), (0.0, 0.0, 0.0, 0.0), (-1e-9, 1e-9, 0.0, 0.0), (1e12, 2e12, 1e12, 1.0),
    (-5.0, 7.0, 0.0, 0.0), (0.1, 0.1 + 1e-15, 0.1, 0.1), (0.5, None, 0.7, 0.6),
]  # fmt: skip


@pytest.mark.parametrize("values", CURVES, ids=str)
def test_points_of_a_curve_are_where_their_values_say(tmp_path, values):
    folder = run_folder(tmp_path / "run", Story(pictures=False, guided=False))
    at = dict(zip((0, 10, 20, 30), values, strict=True))
    edit(folder.metrics, lambda row: {"critic/rewards/mean": None} | (
        {DEFAULT: at[row["training/global_step"]]} if DEFAULT in row else {}))  # fmt: skip
    told = report(folder)
    places = dots(told)
    assert len(places) == sum(value is not None for value in values)
    assert all(44 <= x <= 350 and 10 <= y <= 164 for x, y in places), "inside the frame"
    known = [value for value in values if value is not None]
    for (_, y), value in zip(places, known, strict=True):
        assert (y == min(y for _, y in places)) == (value == max(known)) or max(known) - min(known) < 1e-2
    if values == CURVES[0]:
        steps = np.diff(np.array(places), axis=0)
        np.testing.assert_allclose(steps, [steps[0]] * 3, atol=0.15)
        assert steps[0][1] < -30


def test_axes_make_no_cliff_of_a_small_change_and_show_proportions(tmp_path):
    told = report(run_folder(tmp_path / "run", Story(pictures=False)))
    charts = re.findall(r'<figure class="chart"><figcaption>(.*?)</figcaption>(<svg.*?</svg>)', told.html, re.DOTALL)
    charts = {title.partition("<")[0]: svg for title, svg in charts}
    heights = [float(y) for y in re.findall(r'<circle[^>]* cy="([\d.]+)"', charts["Border darkness"])]
    assert 0 < heights[0] - heights[-1] < 15
    assert ">0</text>" in charts["Variety within a prompt"]
    assert " %</text>" in charts["Read exactly right"]
    assert 'class="line reference"' in charts["Reward"]
    for svg in charts.values():
        ticks = re.findall(r'<text x="[\d.]+" y="182" class="middle">([^<]*)<', svg)
        assert ticks[0] == "0"
        assert 2 <= len(ticks) <= 8
        assert all(tick.isdigit() for tick in ticks), "updates are whole"


# responses: shares that are right, that keep to the form and that think aloud, before and after


def test_a_rise_of_responses_within_its_interval_is_no_verdict(tmp_path):
    told = report(run_of(tmp_path / "run", right=(0.5, 0.52), form=(0.6, 0.95), think=(0.4, 0.4)))
    given = " ".join(told.said.values()).partition("Among those that keep it")[2].partition(".  ")[0]
    assert "more than the form was learned" not in str(told.said)
    assert "chance" in given
    assert " ± " in given
    majority = {title: cells for title, cells in told.rows.items() if "majority" in title}
    assert {title: cells[1] for title, cells in majority.items()} == {"Answered right by majority of 4": "75.0 %"}


def test_what_responses_do_not_do_any_more_is_told_though_nothing_watches_it(tmp_path):
    told = report(run_of(tmp_path / "run", right=(0.4, 0.7), form=(0.6, 0.95), think=(0.4, 0.03)))
    assert "more than the form was learned" in str(told.said)
    assert re.search("tag <think>, .* → .* of responses", str(told.said))
    assert "tag <think>" in told.run["headline"]
    assert "tag &lt;think&gt;" in told.html


HABITS = {  # what two samples of each prompt said before and after, and what is gone
    "a turn of phrase": (["Let me look at it closely. 3", "3"], ["3", "4"], "opening “let me”"),
    "a mark": (["It is **3**", "3"], ["It is 3", "3"], "mark bold type"),
    "what is new": (["3", "4"], ["<think>3</think>", "4"], ""),
    "what stayed": (["<a>3", "3"], ["<a>3", "3"], ""),
}


@pytest.mark.parametrize(("before", "after", "gone"), HABITS.values(), ids=list(HABITS))
def test_habits_are_tags_openings_and_turns_of_phrase(tmp_path, before, after, gone):
    folder = run_of(tmp_path / "run", right=(0.5, 0.5), form=(1, 1), think=(0, 0))
    for prompts, habit in ((8, gone), (3, "")):  # few prompts show nothing
        for update, texts in ((0, before), (60, after)):
            about = {"prompt": "p", "reward": 1.0, "components": {}, "note": ""}
            write_lines(folder.validation(update) / "samples.jsonl", [
                about | {"index": index, "sample": sample, "response": text}
                for index in range(prompts) for sample, text in enumerate(texts)
            ])  # fmt: skip
        told = " ".join(report(folder).said.values())
        assert ("isappearing" in told) == bool(habit)
        assert habit in told


BEST = {"learning": (0.9, 0.7), "sharpening": (0.6, 0.55), "narrowing": (0.5, 0.45), "neither": (0.7, 0.4)}


@pytest.mark.parametrize("kind", BEST)
def test_the_best_of_a_prompts_samples_tells_learning_from_sharpening(tmp_path, kind):
    folder = run_folder(tmp_path / "run", BARE)
    for update, (best, mean) in ((0, (0.6, 0.4)), (30, BEST[kind])):
        folder.validation(update).mkdir(parents=True)
        lines = [
            {"index": index, "sample": sample, "source": "default", "reward": 0.5,
             "values": {"ocr_exact": value + 0.02 * (index % 3)}}
            for index in range(40) for sample, value in enumerate((best, 2 * mean - best))
        ]  # fmt: skip
        write_lines(folder.validation(update) / "scores.jsonl", lines)
        (folder.validation(update) / "samples.jsonl").touch()
    kinds = [one["word"].split()[-1] for one in report(folder).run["verdict"] if "best of 2 samples" in one["text"]]
    assert kinds == {"learning": ["gained"], "sharpening": ["weigh"], "narrowing": ["lost"], "neither": []}[kind]
    write_lines(folder.validation(30) / "scores.jsonl", lines[::2])  # one sample can't be compared with two
    assert "best of 2" not in str(report(folder).said)


def test_a_mean_of_hardly_any_samples_is_no_gain(tmp_path):
    """Of 40 prompts one still keeps to the form, and is right: that is not better than most of those that all do."""
    folder = run_of(tmp_path / "run", right=(0.85, 1.0), form=(1, 0.02), think=(0, 0))
    assert "Among those that keep it" not in report(folder).said.get("gained", "")


@pytest.mark.parametrize(("rewards", "change", "never"), [
    ([[1.0, 2 / 3], [float(np.float32(1.0)), float(np.float32(2 / 3))]], 0.0, True),
    ([[0.5, 0.5], [0.5, 0.75]], 0.125, False),
    ([[0.5, 0.5], [0.5, 0.25]], -0.125, True),
    ([[1.0, 1.0], [1.0, 1.0]], 0.0, False),  # there was nothing to learn
])  # fmt: skip
def test_rounding_is_no_change_of_a_prompt(tmp_path, rewards, change, never):
    folder = run_folder(tmp_path / "run", BARE)
    for update, values in zip((0, 30), rewards, strict=True):
        folder.validation(update).mkdir(parents=True)
        (folder.validation(update) / "samples.jsonl").touch()
        about = {"source": "default", "values": {}}
        rows = [about | {"index": 0, "sample": sample, "reward": value} for sample, value in enumerate(values)]
        rows.append(about | {"index": 1, "sample": 0, "reward": 1.0})
        write_lines(folder.validation(update) / "scores.jsonl", rows)
    row = report(folder).data["prompts"]["prompts"][0]
    assert (row["change"], row["never"]) == (change, never)


def test_alarms_are_shown_with_their_evidence_and_those_that_stand_are_first(tmp_path):
    folder = run_folder(tmp_path / "run")
    edit(folder.metrics, lambda row: row["training/global_step"] and {
        "critic/dark_share/mean": 0.1 + 0.02 * row["training/global_step"],
    })  # fmt: skip
    (folder.path / "alarms").mkdir()
    for name, shade in (("first", 250), ("000009-dark_share", 9)):
        Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(folder.path / "alarms" / f"{name}.png")
    about = {"sheets": [], "quotes": [], "metric": "", "before": None, "spread": None, "kind": "level"}
    dark = {"update": 9, "name": "dark_share", "kind": "drift", "since": 4, "text": "dark_share rose",
            "metric": "critic/dark_share/mean", "before": 0.1, "spread": 0.05, "quotes": [],
            "sheets": ["first.png", "000009-dark_share.png"]}  # fmt: skip
    quotes = [[{"prompt": EVIL, "response": EVIL, "reward": 0.5}], [{"prompt": "Wh?", "response": "", "reward": None}]]
    form = about | {"update": 10, "name": "unfamiliar_form", "since": 7, "text": EVIL, "quotes": quotes}
    gradient = about | {"update": 11, "name": "gradient", "since": 9, "text": "the gradient norm jumped"}
    lines = [dark, form, gradient, {"update": 14, "over": "gradient"}]
    write_lines(folder.alarms, lines)
    told = report(folder)
    written = told.html.partition('<script type="application/json"')[0]
    assert "<h2>Alarms</h2>" in written
    assert "By update 30 it is 0.690, 11.8 standard deviations from the start." in written
    assert "update 14" in written
    assert "<script>window" not in told.html
    assert told.run["headline"].endswith("dark share, unfamiliar form.")
    found = told.run["alarms"]
    assert [(one["name"], one["over"]) for one in found] == [
        ("dark share", False), ("unfamiliar form", False), ("gradient", True),
    ]  # fmt: skip
    assert [sheet["file"] for sheet in found[0]["sheets"]] == ["alarms/first.png", "alarms/000009-dark_share.png"]
    assert found[1]["quotes"][0]["said"] == [{"prompt": EVIL, "response": EVIL, "reward": 0.5}]
    bad: tuple[dict, ...] = (
        {"name": 3}, {"kind": "oracle"}, {"update": -1}, {"update": True}, {"since": "4"}, {"text": None},
        {"sheets": ["../../etc/passwd"]}, {"sheets": ["a/b.png"]}, {"sheets": "first.png"},
        {"quotes": [[{"prompt": 1}]]}, {"before": "much"}, {"quotes": 3},
    )  # fmt: skip
    write_lines(folder.alarms, [dark | change for change in bad] + [form | {"text": "x" * 100_000}])
    with folder.alarms.open("a") as file:
        file.write('{\n[1]\n3\n{"update": 3}\n')
    (one,) = report(folder).run["alarms"]
    assert (one["name"], "x" * 4000 in str(one), "x" * 4001 in str(one)) == ("unfamiliar form", True, False)
    folder.alarms.rename(tmp_path / "alarms.jsonl")
    folder.alarms.symlink_to(tmp_path / "alarms.jsonl")
    assert report(folder).run["alarms"] == []
