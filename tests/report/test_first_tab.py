"""What is seen first of a run: samples before and after beside the verdict; watched statistics are behind one click."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest
from PIL import Image

from burnish.board.media import NoSuchFile, media_file
from burnish.config.run_folder import RunFolder
from burnish.report import write_report
from burnish.report.run_list import run_row
from tests.support.clips import moving_square
from tests.support.drawing import noise
from tests.support.reports import Story, draw_instead, run_folder
from tests.support.responding_run import run_of

STORY = Story(guided=False)


def parts(folder: RunFolder) -> tuple[str, dict[str, Any]]:
    """The text that is read without JavaScript, and the data of the tabs."""
    html = write_report(folder).read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="frozen">(.*?)</script>', html)
    assert found is not None
    return html.partition('<div id="written">')[2][: html.index("<script type")], json.loads(found[1])


def watch(folder: RunFolder, name: str, before: float, after: float) -> None:
    """Log a statistic that no reward has a weight for."""
    rows = folder.read_metrics()
    for row in rows:
        if "val-aux/variety" in row:
            row[f"val-aux/default/{name}/mean@6"] = after if row["training/global_step"] else before
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_samples_and_verdict_come_before_any_table(tmp_path):
    folder = run_folder(tmp_path / "run", STORY)
    html, data = parts(folder)
    first = html[: html.index("<table")]
    assert 'class="first"' in first
    assert first.count("data:image/png") > 8
    assert "The validation reward rose from 0.772 to 0.965" in first.replace("\N{NO-BREAK SPACE}", " ")
    pairs = data["run"]["glimpse"]
    assert [one["prompt"] for one in pairs] == [f"the number {100 + (i * 389) % 900}" for i in range(4)]
    for index, pair in enumerate(pairs):
        assert [side["title"] for side in pair["sides"]] == ["before training", "after 30 updates"]
        assert [side["file"] for side in pair["sides"]] == [
            f"validation/0000{update}/pictures/00{index}-00.png" for update in ("00", "30")
        ]
        assert all(f'data-file="{side["file"]}"' in html for side in pair["sides"])


def test_watched_statistics_are_behind_one_click(tmp_path):
    folder = run_folder(tmp_path / "run", STORY)
    watch(folder, "file_size", 17.0, 12.0)
    watch(folder, "brightness", 0.5, 0.5)
    html, data = parts(folder)
    outside = re.sub(r"<details.*?</details>", "", html[: html.index("Over the policy updates")], flags=re.DOTALL)
    assert "Validation reward" in outside
    assert "File size" not in outside
    assert "<td>File size<small>bits per pixel as JPEG</small></td>" in html
    numbers = data["run"]["numbers"]
    assert [row["title"] for row in numbers["watched"]] == ["Brightness", "File size"]
    assert {"File size", "Brightness"}.isdisjoint(row["title"] for row in numbers["rows"])
    assert numbers["moved"] == "2 watched statistics; clear change: File size"
    watched = {one["title"] for one in data["curves"]["charts"] if one["part"] == "Watched statistics"}
    assert watched == {"Brightness", "File size"}


def test_a_question_shows_its_picture_and_the_responses(tmp_path):
    folder = run_of(tmp_path / "run", right=(0.5, 0.9), form=(0.6, 0.95), think=(0.4, 0.4))
    for update in folder.validations():
        pictures = folder.validation(update) / "pictures"
        pictures.mkdir()
        file = pictures.parent / "samples.jsonl"
        lines = [json.loads(line) | {"images": ["asked.png"], "answer": "3"} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        Image.fromarray(noise(update, 8, 8)).save(pictures / "asked.png")
    html, data = parts(folder)
    pairs = data["run"]["glimpse"]
    assert [len(one["sides"]) for one in pairs] == [2, 2, 2]
    for one in pairs:
        assert one["answer"] == "3"
        assert all(side["response"] for side in one["sides"])
        assert one["shown"], "the picture of the question"
        assert all(f'data-file="{file}"' in html for file in one["shown"]), "and the page has it"


def test_clips_are_seen_first(tmp_path):
    folder = run_folder(tmp_path / "run", Story(updates=10, steps=10, guided=False))
    draw_instead(folder, lambda update, sample: moving_square(4))
    html, data = parts(folder)
    files = [side["file"] for pair in data["run"]["glimpse"] for side in pair["sides"]]
    assert all(file.endswith(".mp4") and f'data-file="{file}"' in html for file in files)
    assert html.index("<video") < html.index("<table")


def test_without_samples_or_validation_there_is_still_a_page(tmp_path):
    html, data = parts(run_folder(tmp_path / "a", Story(pictures=False, guided=False)))
    assert data["run"]["glimpse"] == []
    assert "The validation reward rose" in html
    folder = run_folder(tmp_path / "b", Story(pictures=False, guided=False))
    folder.metrics.write_text("".join(f'{{"training/global_step": {update}}}\n' for update in range(3)))
    html, data = parts(folder)
    assert data["run"]["glimpse"] == []
    assert "There is no validation yet" in html
    assert run_row("b", folder.path)["thumbnail"] is None
    only = run_folder(tmp_path / "c", Story(updates=0, guided=False))
    assert [[side["title"] for side in one["sides"]] for one in parts(only)[1]["run"]["glimpse"]] == [
        ["before training"]
    ] * 4


def test_the_thumbnail_is_the_first_sample_of_the_newest_validation(tmp_path):
    folder = run_folder(tmp_path / "run", STORY)
    found = run_row("run", folder.path)["thumbnail"]
    assert found == {
        "update": 30, "prompt": "the number 100", "text": None, "file": "validation/000030/pictures/000-00.png",
    }  # fmt: skip
    shutil.rmtree(folder.validation(30))
    assert run_row("run", folder.path)["thumbnail"]["update"] == 20
    (folder.validation(20) / "pictures" / "000-00.png").unlink()
    assert run_row("run", folder.path)["thumbnail"]["file"] is None


def test_the_thumbnail_of_a_response_is_its_text(tmp_path):
    folder = run_of(tmp_path / "run", right=(0.5, 0.9), form=(0.6, 0.95), think=(0.0, 0.0))
    found = run_row("run", folder.path)["thumbnail"]
    assert (found["update"], found["text"], found["file"]) == (60, "Answer 0.", None)


@pytest.mark.parametrize("line", ["", "{", "[]", '{"index": 0}', "\x00" * 100, "9" * 5000])
def test_a_damaged_sample_is_no_thumbnail(tmp_path, line):
    folder = run_folder(tmp_path / "run", STORY)
    (folder.validation(30) / "samples.jsonl").write_text(line + "\n")
    assert run_row("run", folder.path)["thumbnail"] is None


@pytest.mark.parametrize("name", ["../../../../secret.png", "/etc/passwd", "../samples.jsonl", 3, None])
def test_a_thumbnail_leads_nowhere_else(tmp_path, name):
    folder = run_folder(tmp_path / "run", STORY)
    (tmp_path / "secret.png").write_bytes(b"\x89PNG secret")
    file = folder.validation(30) / "samples.jsonl"
    lines = [json.loads(line) | {"file": name} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = run_row("run", folder.path)["thumbnail"]
    if found is not None and found["file"] is not None:
        with pytest.raises(NoSuchFile):
            media_file(folder.path, found["file"])


@pytest.mark.parametrize(("option", "value"), [("seed", ".nan"), ("seed", "[1]"), ("lr", ".inf"), ("lr", "{a: 1}")])
def test_a_number_of_a_foreign_configuration_is_a_number_or_nothing(tmp_path, option, value):
    folder = run_folder(tmp_path / "run", STORY)
    text = re.sub(rf"^( *){option}: .*$", rf"\1{option}: {value}", folder.config.read_text(), flags=re.MULTILINE)
    folder.config.write_text(text)
    row = run_row("run", folder.path)
    assert row[option] is None
    json.dumps(row, allow_nan=False)
