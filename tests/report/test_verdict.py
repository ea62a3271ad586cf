"""What the report of a run says is what its numbers say: measures, sentences, warnings, alarms, prompts, charts."""

import json
import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from burnish.config import dump, load
from burnish.config.run_folder import RunFolder
from burnish.hooks.alarms import ModeCollapse
from burnish.report.samples import Sample, Score
from burnish.report.statistics import by_source, chance, lost_patterns, over_sources, pass_at_k
from tests.support.boards import EVIL
from tests.support.reports import Story, edit, lines_of, plain, report, run_folder, write_lines

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


BARE = Story(images=False)
DEFAULT = "val-core/default/reward/mean@6"


def test_numbers_before_and_after_stand_beside_the_reference(tmp_path):
    told = report(run_folder(tmp_path / "run", BARE))
    assert told.rows["Validation reward"] == ["0.772", "0.965", "+0.193", "0.978"]
    assert told.rows["Read exactly right"] == ["52.8 %", "90.5 %", "+37.7", "94.8 %"]
    assert told.rows["Border darkness"] == ["0.002", "0.004", "+0.002", "0.003"]
    assert told.rows["Variety within a prompt"] == ["0.056", "0.029", "−0.027", "0.051"]
    assert "30 policy updates of 8 prompts × 12 images: 2 880 images" in told.text
    found = told.data["curves"]
    charts = {chart["title"]: chart for chart in found["charts"]}
    assert list(charts)[:6] == [
        "Reward", "Read exactly right", "Border darkness", "Variety within a prompt", "actor/grad_norm",
        "actor/old_deviate",
    ]  # fmt: skip
    assert found["constant"].items() >= {"actor/loss": 0.5, "critic/rewards/group_size": 12, "actor/lr": 0.003}.items()
    assert (charts["perf/time_per_step"]["also"], charts["actor/grad_norm"]["part"]) == (
        ["timing_s/step"],
        "The policy",
    )
    assert [(one["span"], one["reference"]["y"]) for one in found["charts"][1:4:2]] == [(0.02, 0.948), (0, 0.051)]
    assert [values[2] for values in found["axes"].values()] == [2, 192, pytest.approx(7.9432, rel=1e-4)]
    line = found["charts"][0]["series"][-1]
    assert (line["name"], line["x"], line["y"][-1]) == ("validation", [0, 10, 20, 30], 0.965)
    assert "0.772 to 0.965" in told.said["gained"]
    assert "0.056 before, 0.029 after (48 % less)" in told.said["lost"]
    assert "Guidance 3 alone, without training, reaches 0.978 (94.8 % exactly right)" in told.said["weigh"]
    assert "closed 94 % of that gap, at half the cost" in told.said["weigh"]
    assert "seed 0" in told.said["weigh"]


STORIES = {  # how a run went: the kind of sentence, words of it, and words of the headline
    "dirtier": (Story(border=(0.002, 0.091)), "lost", "darker", "at a price: border darkness and variety"),
    "cleaner": (Story(border=(0.091, 0.002)), "gained", "cleaner", "at a price: variety"),
    "worse": (Story(reward=(0.8, 0.7)), "lost", "fell from 0.800 to 0.700", ""),
    "unmoved": (Story(reward=(0.8, 0.802)), "weigh", "from 0.800 to 0.802", ""),
    "beyond guidance": (Story(reward=(0.8, 0.99)), "gained", "beyond that", "learned"),
    "level with guidance": (Story(reward=(0.8, 0.979)), "gained", "level with that", "learned"),
    "as varied": (Story(variety=(0.05, 0.049)), "kept", "as much as before", "nothing that was watched got worse"),
    "unfinished": (Story(updates=20, steps=40), "weigh", "20 of 40", ""),
    "nothing": (
        Story(reward=(0.8, 0.801), exact=(0.7, 0.7), variety=(0.05, 0.05)), "weigh", "0.801", "No clear change",
    ),
    "only a price": (Story(reward=(0.8, 0.801), exact=(0.7, 0.7)), "lost", "alike", "variety within a prompt got wor"),
}  # fmt: skip


@pytest.mark.parametrize(("story", "kind", "words", "headline"), STORIES.values(), ids=list(STORIES))
def test_the_verdict_follows_the_numbers(tmp_path, story, kind, words, headline):
    told = report(run_folder(tmp_path / "run", replace(story, images=False)))
    assert words in told.said[kind]
    assert words in told.text
    assert headline in told.run["headline"]
    assert told.run["headline"] in told.text


def test_a_change_that_may_be_chance_is_no_gain(tmp_path):
    """Rewards that go up for one prompt and down for the next, as far as the scores tell."""
    folder = run_folder(tmp_path / "run", Story(reward=(0.80, 0.83), exact=(0.60, 0.62)))
    for update, way in ((0, -1), (30, 1)):

        def tilted(line, way=way):
            tilt = way * (0.3 if line["index"] % 2 else -0.25)
            return line | {"source": "default", "reward": 0.5 + tilt, "values": {"ocr_exact": float(tilt > 0)}}

        place = folder.validation(update)
        write_lines(place / "scores.jsonl", list(map(tilted, lines_of(place / "samples.jsonl"))))
    told = report(folder)
    assert "gained" not in told.said
    assert "0.800 to 0.830" in told.said["weigh"]
    assert "chance (+0.030 ± 0.2" in told.said["weigh"]
    assert "60.0 % before, 62.0 % after (+2.0 ± " in told.said["weigh"]
    assert "No clear change" in told.run["headline"]
    assert "better<" not in told.markdown.replace("is better<", "")


def test_what_is_not_as_usual_is_told(tmp_path):
    overrides = ("rollout.guidance_scale=2.0", "data.val_files=null", "optimizer.schedule=constant")
    story = Story(overrides=overrides, missing=0.02, skipped=(4, 9), images=False)
    folder = run_folder(tmp_path / "run", story)
    edit(folder.metrics, lambda row: {DEFAULT: 0.8} if row["training/global_step"] == 30 else None)
    told = report(folder)
    assert "the cost" not in str(told.said), "half the cost is claimed only by a run without guidance"
    assert "guidance 2" in told.text
    assert "training prompts" in told.said["weigh"]
    assert "after update 20" in told.said["lost"], "a peak that was passed"
    assert "2.0 % of the training rewards could not be computed, in 30 of 30 updates" in told.text
    assert "2 optimizer steps were skipped" in told.text
    clean = report(run_folder(tmp_path / "clean", BARE)).text
    assert "could not be computed" not in clean
    assert "skipped because" not in clean


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
    assert "tag <think>" in told.text
    assert "<think>" not in told.markdown


def test_what_is_lost_is_told_once_the_largest_loss_first():
    """Of 16 responses to 8 prompts; whoever opened with "well then" thought aloud, too, and headings were rare."""

    def samples(*texts: str | None) -> dict[tuple[int, int], Sample]:
        about = {"prompt": "?", "reward": 1.0, "components": {}, "note": ""}
        return {divmod(row, 2): Sample(index=row // 2, sample=row % 2, response=text, **about)
                for row, text in enumerate(texts)}  # fmt: skip

    def said(row: int) -> str:
        text = "<think>" * (row < 12) + "Well then " * (row < 10) + 3 * chr(97 + row) + " \\boxed" * (row > 3)
        return text + "\n# h" * (row < 3) + "\n- l" * (row % 2 == 0)

    before, after = samples(*map(said, range(16))), samples("a \\boxed", "b", "c \\boxed", *["d"] * 13)
    found = lost_patterns(before, after)
    assert [(one.what, one.before, one.after) for one in found] == [
        ("tag <think>", 0.75, 0), ("mark box", 0.75, 0.125), ("mark list", 0.5, 0),
    ]  # fmt: skip
    assert plain(found[1].text()) == "mark box, 75 % → 12 % of responses"
    assert lost_patterns(before, samples(None, *["b"] * 15)) == []
    assert lost_patterns({place: before[place] for place in list(before)[:6]}, after) == []


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
    assert "## Alarms" in told.text
    assert "By update 30 it is 0.690, 11.8 standard deviations from the start." in told.text
    assert "update 14" in told.text
    assert "<script>window" not in told.html + told.markdown
    found = told.run["alarms"]
    assert [(one["name"], one["over"]) for one in found] == [
        ("dark share", False), ("unfamiliar form", False), ("gradient", True),
    ]  # fmt: skip
    assert [sheet["file"] for sheet in found[0]["sheets"]] == ["alarms/first.png", "alarms/000009-dark_share.png"]
    assert found[1]["quotes"][0]["said"] == [{"prompt": EVIL, "response": EVIL, "reward": 0.5}]
    bad: tuple[dict, ...] = (
        {"name": 3}, {"update": -1}, {"text": None}, {"sheets": ["../../etc/passwd"]}, {"sheets": "first.png"},
        {"quotes": [[{"prompt": 1}]]}, {"before": "much"},
    )  # fmt: skip
    write_lines(folder.alarms, [dark | change for change in bad] + [form | {"text": "x" * 100_000}])
    (one,) = report(folder).run["alarms"]
    assert one["name"] == "unfamiliar form"


def scores_of(source: str, values: list[list[float | None]], start: int = 0) -> dict[tuple[int, int], Score]:
    """Of prompts from a number on, with the values of their samples."""
    return {
        (index, sample): Score(source, value, {"exact": value}, index, sample)
        for index, own in enumerate(values, start) for sample, value in enumerate(own)
    }  # fmt: skip


def test_intervals_are_those_of_prompts_paired_and_of_sources_that_count_alike():
    before, after = np.random.default_rng(0).random((2, 14, 3))
    sides = [
        scores_of("a", side[:6]) | scores_of("b", side[6:11], 6) | scores_of("c", side[11:], 11)
        for side in (before, after)
    ]  # fmt: skip
    moves = (after - before).mean(1)
    parts = np.split(moves, [6, 11])
    every = np.concatenate([own - own.mean() for own in parts])  # those of c are too few to say it themselves
    errors = [np.var(own, ddof=1) / len(own) for own in parts[:2]] + [np.var(every, ddof=1) / 3]
    assert chance(*sides, "exact") == pytest.approx(2 * math.sqrt(sum(errors)) / 3)
    assert chance(sides[0], sides[1] | scores_of("d", [[None] * 3] * 5, 14), "reward") == chance(*sides, "reward")
    assert chance(sides[0] | scores_of("e", [[0.5]] * 5, 30), sides[1], "exact") == chance(*sides, "exact")
    assert (chance({}, {}, "reward"), chance(*[scores_of("a", [[0.5]] * 3)] * 2, "reward")) == (0, math.inf)
    means, halves = before.mean(1), {}
    for name, own in (("a", means[:6]), ("b", means[6:11])):
        halves[name] = 1.96 * float(np.std(own, ddof=1)) / math.sqrt(len(own))
        interval = own.mean() - halves[name], own.mean() + halves[name]
        assert by_source(sides[0], "exact")[name] == (pytest.approx(own.mean()), pytest.approx(interval))
    of = by_source(sides[0], "exact")
    assert (of["c"], over_sources(of)[1]) == ((pytest.approx(means[11:].mean()), None), None)
    centre, (low, high) = over_sources({name: of[name] for name in "ab"})
    assert (2 * centre, high - low) == pytest.approx((of["a"][0] + of["b"][0], math.hypot(*halves.values())))


ONE, NONE = [1.0, 0.0, 0.0, 0.0], [0.0] * 4


@pytest.mark.parametrize(("kind", "first", "last", "best"), [
    ("learning", [ONE] * 4 + [NONE] * 8, [[1.0, 1.0, 0.0, 0.0]] * 12, (1 / 3, 1.0)),
    ("sharpening", [ONE] * 12, [[1.0, 1.0, 1.0, 0.0]] * 12, (1.0, 1.0)),
    ("collapse", [ONE] * 12, [[1.0] * 4] * 8 + [NONE] * 4, (1.0, 2 / 3)), ("", [ONE] * 12, [ONE] * 12, (1.0, 1.0)),
])  # fmt: skip
def test_the_best_of_a_prompt_s_samples_says_what_was_learned(tmp_path, kind, first, last, best):
    folder = run_folder(tmp_path / "run", replace(BARE, updates=10, steps=10, guided=False))
    for update, values in ((0, first), (10, last)):
        folder.validation(update).mkdir(parents=True)
        lines = [vars(score) | {"values": {"ocr_exact": score.reward}} for score in scores_of("a", values).values()]
        write_lines(folder.validation(update) / "scores.jsonl", lines)
    compared = pass_at_k(scores_of("a", first), scores_of("a", last), "exact")
    doubt = 2 * np.std(np.max(last, 1) - np.max(first, 1), ddof=1) / math.sqrt(12)
    assert (compared.kind, compared.n, compared.best) == (kind, 4, pytest.approx((*best, doubt)))
    assert compared.mean[:2] == pytest.approx((np.mean(first), np.mean(last)))
    assert pass_at_k(scores_of("a", first), scores_of("a", [own[:3] for own in last]), "exact") is None
    told, words = report(folder).said, f"the best of 4 samples went from {best[0]:.3f} to {best[1]:.3f}"
    ways = {"learning": "gained", "sharpening": "weigh", "collapse": "lost"}
    assert {name for name, said in told.items() if words in said} == ({ways[kind]} if kind else set())
    detector = ModeCollapse(folder)
    for row in [*lines_of(folder.metrics)[:11:10], {}]:
        detector.add(row.get("training/global_step", 11), row)
    assert (detector.alarm is not None) == (kind == "collapse")
    if detector.alarm is not None:
        assert (
            "fell from 1.000 to 0.667 (-0.333 ± 0.284) while the mean rose from 0.250 to 0.667" in detector.alarm.text
        )
        detector.add(0, lines_of(folder.metrics)[0])
        assert detector.alarm is None


def test_a_mean_of_hardly_any_samples_is_no_gain():
    """Of 40 prompts one still keeps to the form, and is right: that is not better than 35 of 40."""
    before = {(index, 0): Score("a", 1.0, {"exact": float(index > 4), "format": 1.0}) for index in range(40)}
    after = {(index, 0): Score("a", 1.0, {"exact": 1.0, "format": float(index == 7)}) for index in range(40)}
    assert chance(before, after, "exact_given_format") == math.inf
    assert 0 < chance(before, before | {(0, 0): after[7, 0]}, "exact_given_format") < math.inf
    formless = {(index, 1): Score("a", 0.0, {"exact": 0.0, "format": 0.0}) for index in range(9)}
    assert by_source(before | formless, "exact_given_format")["a"][0] == 35 / 40
