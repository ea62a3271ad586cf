"""The page about a run: what it says is what the numbers say, whole, and never in need of a finished run."""

import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from burnish.commands.show import report
from burnish.report import write_report
from burnish.report.curves import WIDTH
from burnish.report.measures import REWARD, STRICT
from burnish.report.summary import Summary, next_steps
from burnish.report.verdict import headline, verdict
from burnish.utils.errors import UserError
from tests.support.reports import Story, page_of, run_folder

NO_PICTURES = Story(pictures=False)


def said(folder) -> dict[str, str]:
    """The verdict's sentences, joined by kind."""
    found: dict[str, str] = {}
    for point in verdict(Summary.read(folder)):
        found[point.kind] = found.get(point.kind, "") + point.text.replace("\N{NO-BREAK SPACE}", " ")
    return found


def test_numbers_before_and_after_stand_beside_the_reference(tmp_path):
    page = page_of(run_folder(tmp_path / "run", NO_PICTURES))
    rows = {row[0]: row[1:] for row in page.rows if len(row) == 5}
    assert rows["Validation reward"] == ["0.772", "0.965", "+0.193", "0.978"]
    assert rows["Read exactly right"] == ["52.8 %", "90.5 %", "+37.7", "94.8 %"]
    assert rows["Border darkness"] == ["0.002", "0.004", "+0.002", "0.003"]
    assert rows["Variety within a prompt"] == ["0.056", "0.029", "−0.027", "0.051"]
    assert "DiffusionNFT trained LoRA adapters of rank 16" in page.text
    assert "30 policy updates of 8 prompts × 12 pictures: 2 880 pictures" in page.text


def test_the_page_asks_nothing_of_a_network(tmp_path):
    folder = run_folder(tmp_path / "run")
    page = page_of(folder)
    assert page.addresses
    assert all(address.startswith("data:image/") for address in page.addresses)
    html = folder.report.read_text(encoding="utf-8")
    assert not {"link", "iframe", "object", "form"} & set(page.tags)
    assert page.tags.count("script") == 2, "the data of the page, and what shows it"
    assert "default-src 'none'" in html, "nothing else is loaded or run, by the page's own policy"
    assert "url(" not in html
    assert "@import" not in html


def test_each_prompt_shows_the_same_samples_before_and_after_with_what_was_read(tmp_path):
    folder = run_folder(tmp_path / "run")
    page = page_of(folder)
    assert len(page.addresses) == 2 * 16 * 6 + 2 * 4 * 2, "and on the way two of each of the prompts that are open"
    lines = [json.loads(line) for line in (folder.validation(0) / "samples.jsonl").read_text().splitlines()]
    shown = page.text.partition("before training")[2].partition("after 30 updates")[0]
    assert all(line["note"] in shown for line in lines[:6])
    shown = [
        json.loads(line)
        for update in (0, 10, 20, 30)
        for line in (folder.validation(update) / "samples.jsonl").read_text().splitlines()
        if update in (0, 30) or (json.loads(line)["index"] < 4 and json.loads(line)["sample"] < 2)
    ]
    assert page.text.count("✓") == sum(line["components"]["ocr_exact"] == 1.0 for line in shown)
    assert [page.text.count(f"after {update} updates") for update in (10, 20)] == [4, 4]


def test_a_gain_and_its_price_are_both_told(tmp_path):
    points = said(run_folder(tmp_path / "run", NO_PICTURES))
    assert "rose from 0.772 to 0.965" in points["gained"]
    assert "0.056 before, 0.029 after (48 % less)" in points["lost"]
    assert "hardly changed" in points["kept"]
    assert "Guidance 3 alone, without training, reaches 0.978 (94.8 % exactly right)" in points["weigh"]
    assert "twice the sampling cost. Training closed 94 % of that gap, at half the cost." in points["weigh"]


@pytest.mark.parametrize(
    ("story", "kind", "words"),
    [
        (Story(border=(0.002, 0.091)), "lost", "background got darker or dirtier"),
        (Story(border=(0.091, 0.002)), "gained", "background got cleaner"),
        (Story(reward=(0.8, 0.7)), "lost", "The validation reward fell from 0.800 to 0.700"),
        (Story(reward=(0.8, 0.7)), "weigh", "Training did not come closer to it"),
        (Story(reward=(0.8, 0.802)), "weigh", "hardly moved: from 0.800 to 0.802"),
        (Story(reward=(0.8, 0.99)), "gained", "The trained model is beyond that"),
        (Story(exact=(0.9, 0.5)), "lost", "exactly right: 90.0 % before, 50.0 % after"),
        (Story(variety=(0.05, 0.049)), "kept", "differ as much as before"),
        (Story(variety=(0.03, 0.05)), "gained", "less alike"),
        (Story(updates=20, steps=40), "weigh", "not finished: 20 of 40"),
    ],
)
def test_the_verdict_follows_the_numbers(tmp_path, story, kind, words):
    folder = run_folder(tmp_path / "run", replace(story, pictures=False))
    assert words in said(folder)[kind]
    assert words in page_of(folder).text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("story", "words"),
    [
        (Story(), "at a price: variety within a prompt got worse"),
        (Story(border=(0.002, 0.09)), "at a price: border darkness and variety within a prompt got worse"),
        (Story(variety=(0.05, 0.05)), "nothing that was watched got worse"),
        (Story(reward=(0.8, 0.7), exact=(0.9, 0.5)), "It got worse at what it was trained for."),
        (Story(reward=(0.8, 0.801), exact=(0.7, 0.7), variety=(0.05, 0.05)), "No clear change in what it was"),
        (Story(reward=(0.8, 0.801), exact=(0.7, 0.7)), ", and variety within a prompt got worse."),
    ],
)
def test_the_headline_follows_the_numbers(tmp_path, story, words):
    folder = run_folder(tmp_path / "run", replace(story, pictures=False))
    assert words in headline(Summary.read(folder))
    assert headline(Summary.read(folder)) in page_of(folder).text


def test_a_change_that_may_be_chance_is_no_gain(tmp_path):
    """Rewards that go up for one prompt and down for the next, as far as the kept samples tell."""
    folder = run_folder(tmp_path / "run", Story(reward=(0.80, 0.83), exact=(0.60, 0.62)))
    for update, way in ((0, -1), (30, 1)):
        file = folder.validation(update) / "samples.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            tilt = way * (0.3 if line["index"] % 2 else -0.25)
            line["reward"] = 0.5 + tilt
            line["components"]["ocr_exact"] = float(tilt > 0)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    points = said(folder)
    assert "gained" not in points
    chance = "; prompts differ so much that this may be chance (+0.030 ± 0.2"
    assert f"No clear change of the validation reward, which went from 0.800 to 0.830{chance}" in points["weigh"]
    assert "60.0 % before, 62.0 % after (+2.0 ± " in points["weigh"]
    assert "points): no clear change, as this may be chance" in points["weigh"]
    assert "No clear change" in headline(Summary.read(folder))
    write_report(folder)
    assert "better</small>" not in folder.report.read_text().replace("is better</small>", "")


def test_what_a_validation_can_not_say_is_said(tmp_path):
    assert "one run with seed 0; another seed gives others" in said(run_folder(tmp_path / "run"))["weigh"]
    folder = run_folder(tmp_path / "same", Story(overrides=("data.val_files=null",)))
    assert "Validation used the training prompts" in said(folder)["weigh"]


def test_half_the_cost_is_claimed_only_by_a_run_without_guidance(tmp_path):
    folder = run_folder(tmp_path / "run", Story(overrides=("rollout.guidance_scale=2.0",), pictures=False))
    text = page_of(folder).text
    assert "half the cost" not in text
    assert "twice the" not in text
    assert "where the run samples at guidance 2" in text


def test_nothing_is_gained_over_guidance_that_too_few_prompts_or_no_rise_show(tmp_path):
    run = Summary.read(run_folder(tmp_path / "run", NO_PICTURES))
    assert any("level with that" in point.text or "gap" in point.text for point in verdict(run))
    for row in (*run.rows, run.reference):
        row.update({key: 0.0 for key in row if key.startswith("val-") and key.endswith("reward/mean@6")})
    for chance in (0.0, math.inf):
        run.doubt[REWARD.key] = chance
        assert not any(point.kind == "gained" and "Guidance" in point.text for point in verdict(run))
    assert any("too few prompts" in point.text for point in verdict(run) if "Guidance" in point.text)


def test_a_peak_that_was_passed_is_told(tmp_path):
    folder = run_folder(tmp_path / "run", NO_PICTURES)
    rows = folder.read_metrics()
    rows[30]["val-core/default/reward/mean@6"] = 0.8
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "after update 20" in said(folder)["lost"]


def test_missing_rewards_and_skipped_updates_are_told(tmp_path):
    text = page_of(run_folder(tmp_path / "run", Story(missing=0.02, skipped=(4, 9), pictures=False))).text
    assert "2.0 % of the training rewards could not be computed, in 30 of 30 updates" in text
    assert "2 optimizer steps were skipped" in text
    clean = page_of(run_folder(tmp_path / "clean", NO_PICTURES)).text
    assert "could not be computed" not in clean
    assert "skipped because" not in clean


def test_rounded_numbers_do_not_contradict_each_other(tmp_path):
    story = Story(border=(0.0024, 0.0036), variety=(0.05, 0.05), guided=False, pictures=False)
    found = {row[0]: row[1:] for row in page_of(run_folder(tmp_path / "run", story)).rows}
    assert found["Border darkness"] == ["0.0024", "0.0036", "+0.0012"]
    assert found["Validation reward"] == ["0.772", "0.965", "+0.193"]


def test_numbers_have_no_more_digits_than_anyone_reads():
    before, after = 0.5234375, 0.85286458  # whose rounded values and rounded difference agree with four decimals only
    measure = STRICT.precise([before, after])
    assert [measure.show(before), measure.show(after)] == ["52.3\N{NO-BREAK SPACE}%", "85.3\N{NO-BREAK SPACE}%"]
    assert measure.change(before, after) == "+33.0\N{NO-BREAK SPACE}points"


def test_why_rewards_are_missing_is_told(tmp_path):
    folder = run_folder(tmp_path / "run", Story(missing=1.0))
    rows = folder.read_metrics()
    for row in rows:
        row |= {"val-aux/missing": 1.0} if "val-aux/missing" in row else {}
        for name in [name for name in row if name.startswith(("val-core/", "val-aux/default/"))]:
            del row[name]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = folder.validation(30) / "samples.jsonl"
    lines = [json.loads(line) | {"reward": None, "note": "KeyError: 'x'"} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = page_of(folder).text
    assert "No reward of any validation could be computed" in text
    assert "Most frequent cause in the last validation: KeyError: 'x'" in text


def test_every_chart_of_health_is_explained_once(tmp_path):
    folder = run_folder(tmp_path / "run", NO_PICTURES)
    rows = folder.read_metrics()
    for row in rows[1:]:
        row["actor/pg_loss"] = row["actor/grad_norm"]
        row["actor/entropy"] = 1.0 - 1e-7 * row["training/global_step"]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    html = page_of(folder) and folder.report.read_text()
    section = html.partition("Health of the training")[2].partition("Where the time goes")[0]
    charts = re.findall(r"<figcaption>(.*?)</figcaption>", section)
    assert len(charts) == len({chart.partition("<")[0] for chart in charts}) == 5
    assert all("<small>" in chart for chart in charts), charts
    assert any("actor/grad_norm" in chart and "; the same as actor/pg_loss" in chart for chart in charts)
    for svg in re.findall(r"<svg.*?</svg>", section):
        for x, anchor, text in re.findall(r'<text x="([\d.]+)" y="[\d.]+" class="(\w+)">([^<]*)<', svg):
            width = 5.6 * len(text)
            start = float(x) - (width if anchor == "end" else width / 2)
            assert start >= 0, f"{text} is cut"
            assert start + width <= WIDTH, f"{text} is cut"


def test_several_data_sources_are_averaged(tmp_path):
    folder = run_folder(tmp_path / "run", NO_PICTURES)
    rows = folder.read_metrics()
    for row in rows:
        if "val-aux/variety" in row:
            row["val-core/other/source/reward/mean@6"] = 0.0
            row["val-aux/other/source/ocr_exact/mean@6"] = None
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {row[0]: row[1:3] for row in page_of(folder).rows if len(row) == 5}
    assert found["Validation reward"] == ["0.386", "0.482"]
    assert found["Read exactly right"] == ["52.8 %", "90.5 %"]
    by_source = [row for row in page_of(folder).rows if row and row[0] in ("default", "other/source")]
    assert by_source == [
        ["default", "0.772", "0.965", "52.8 %", "90.5 %"],
        ["other/source", "0.000", "0.000", "–", "–"],
    ]


def test_what_others_wrote_is_text_and_never_markup(tmp_path):
    folder = run_folder(tmp_path / "<b>run & co")
    evil = '"><script>alert(1)</script><img src=http://example.org/x>'
    for update in (0, 30):
        file = folder.validation(update) / "samples.jsonl"
        lines = [json.loads(line) | {"prompt": evil, "note": evil} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = page_of(folder)
    assert page.tags.count("script") == 2
    assert folder.report.read_text().count("<script") == 2
    assert all(address.startswith("data:image/") for address in page.addresses)
    assert evil in page.text
    assert page.text.startswith("\n<b>run & co")


def _nothing_but(*kept):
    def prune(folder):
        for part in folder.path.iterdir():
            if part.name not in kept:
                shutil.rmtree(part) if part.is_dir() else part.unlink()

    return prune


def _torn(folder):
    folder.metrics.write_bytes(folder.metrics.read_bytes()[:-40])


def _empty(folder):
    folder.metrics.write_bytes(b"")


def _torn_everywhere(folder):
    """What a power cut may leave of files that were being written."""
    for file in (folder.reference / "metrics.json", *folder.path.glob("validation/*/samples.jsonl")):
        file.write_bytes(file.read_bytes()[:-30])
    for file in folder.path.glob("validation/*/pictures/*.png"):
        file.write_bytes(file.read_bytes()[:20])


def _no_pictures(folder):
    for file in folder.path.glob("validation/*/pictures/*.png"):
        file.unlink()


def _without_first_validation(folder):
    shutil.rmtree(folder.validation(0))
    lines = folder.metrics.read_bytes().split(b"\n")
    folder.metrics.write_bytes(b"\n".join(lines[11:]))


@pytest.mark.parametrize(
    "damage",
    [_nothing_but("config.yaml"), _nothing_but("metrics.jsonl"), _nothing_but("config.yaml", "metrics.jsonl"),
     _torn, _torn_everywhere, _empty, _no_pictures, _without_first_validation],
)  # fmt: skip
def test_a_page_can_be_written_at_any_time(tmp_path, damage):
    folder = run_folder(tmp_path / "run")
    damage(folder)
    assert "burnish train" in page_of(folder).text


def test_before_the_first_update_there_is_nothing_to_compare(tmp_path):
    folder = run_folder(tmp_path / "run", Story(updates=0))
    page = page_of(folder)
    assert "0 of 30 policy updates" in page.text
    assert "What was gained" not in page.text
    assert said(folder) == {}


def test_writing_again_gives_the_same_page_and_touches_nothing_else(tmp_path):
    folder = run_folder(tmp_path / "run")

    def content() -> dict[str, str]:
        files = (file for file in folder.path.rglob("*") if file.is_file() and file != folder.report)
        return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    before = content()
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first
    assert content() == before


def test_large_pictures_do_not_make_a_large_page(tmp_path):
    folder = run_folder(tmp_path / "run", Story(updates=0, size=(400, 300), guided=False))
    assert 0 < write_report(folder).stat().st_size < 2_000_000
    html = folder.report.read_text()
    assert "data:image/jpeg" in html
    assert 'class="pixels"' not in html


def test_the_command_writes_the_page_and_says_where(tmp_path, capsys):
    folder = run_folder(tmp_path / "run", Story(pictures=False))
    assert report(str(folder.path)) == 0
    assert str(folder.report) in capsys.readouterr().out
    assert folder.report.exists()


def test_the_command_refuses_what_is_no_run(tmp_path):
    with pytest.raises(UserError, match="not the folder of a run"):
        report(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_report_needs_no_torch():
    code = "import sys, burnish.commands.show; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_run_without_an_update_is_not_exported(tmp_path):
    folder = run_folder(tmp_path / "run", Story(updates=0, guided=False, pictures=False))
    offered = [command for _, command in next_steps(folder, Summary.read(folder))]
    assert len(offered) == 1
    assert offered[0].startswith("burnish train")
