"""Suites in the report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from burnish.config.run_folder import RunFolder
from burnish.evaluation.records import HEADER, RECORDS
from burnish.report.suites import suite_data, suites_beside, suites_section
from tests.support.evaluations import HEADER_OF, evaluated, evaluation


def test_before_and_after_with_paired_intervals(tmp_path):
    evaluated(tmp_path, 0, 0.0)
    evaluated(tmp_path, 10, 0.3)
    evaluated(tmp_path, 20, 0.1)
    page = suites_section(RunFolder(tmp_path))
    assert "after 0 updates" in page
    assert "after 20 updates" in page
    assert "after 10 updates" not in page
    assert "+0.100<small>[+0.100, +0.100]</small>" in page
    assert "&lt;b&gt;" in page
    assert "not to be believed" not in page.lower()


def test_doubts_are_shown(tmp_path):
    evaluated(tmp_path, 0, 0.0, replace(HEADER_OF, wrong=["ocr gives <i>right</i> and wrong the same"]))
    page = suites_section(RunFolder(tmp_path))
    assert "Not to be believed: ocr gives &lt;i&gt;right&lt;/i&gt; and wrong the same" in page


def test_other_prompts_are_not_compared(tmp_path):
    evaluated(tmp_path, 0, 0.0)
    evaluated(tmp_path, 20, 0.1, replace(HEADER_OF, prompts_digest="q"))
    assert '">change' not in suites_section(RunFolder(tmp_path))


@pytest.mark.parametrize("file", [HEADER, RECORDS])
def test_what_is_damaged_incomplete_or_leads_elsewhere_is_left_out(tmp_path, file):
    assert suites_section(RunFolder(tmp_path)) == ""
    folder = evaluated(tmp_path / "run", 0, 0.0)
    run, place = RunFolder(tmp_path / "run"), folder.path / file
    content = place.read_bytes()
    for damage in (b"", content[: len(content) // 2], b"[" * 9000, json.dumps({"n": -1}).encode()):
        place.write_bytes(damage)
        assert suites_section(run) == ""
    place.unlink()
    (tmp_path / "elsewhere").write_bytes(content)
    place.symlink_to(tmp_path / "elsewhere")
    assert suites_section(run) == ""
    (tmp_path / "run" / "validation" / "0x" / "suites").mkdir(parents=True)
    assert suites_section(run) == ""


def test_every_validation_is_on_the_curve(tmp_path):
    for update, value in ((0, 0.0), (10, 0.3), (20, 0.1)):
        evaluated(tmp_path, update, value)
    (one,) = suite_data(RunFolder(tmp_path))
    line = one["series"]
    assert line["x"] == [0, 10, 20]
    assert [high - low > 0.05 for low, high in zip(line["low"], line["high"], strict=True)] == [True] * 3
    assert line["y"][1] - line["y"][0] == pytest.approx(0.3)
    (tmp_path / "validation" / "000010" / "suites" / "mine" / "result.json").write_text('{"overall": {"value": "1"}}')
    assert suite_data(RunFolder(tmp_path))[0]["series"]["x"] == [0, 20]


def test_evaluations_beside_a_run_are_its_own_where_they_say_so(tmp_path):
    run, others = tmp_path / "run", [tmp_path / name for name in ("judged", "other", "shard", "model", "odd")]
    run.mkdir()
    its = replace(HEADER_OF, source=str(run), update=20, suite="full")
    evaluation(run / "before", 0.0, replace(its, update=0, source=str(run / "checkpoints" / "000000")))
    evaluation(others[0], 0.2, its)
    evaluation(others[1], 0.4, replace(its, source=str(tmp_path / "another")))
    evaluation(others[2], 0.4, replace(its, shard=[1, 1]))
    evaluation(others[3], 0.4, replace(its, update=None))
    evaluation(others[4], 0.4, replace(its, source="a\0b"))
    (one,) = suite_data(RunFolder(run), others)
    assert one["heads"] == ["after 0 updates, before", "after 20 updates, judged", "change"]
    assert one["rows"][0]["cells"][2] == {"text": "+0.200", "note": "[+0.200, +0.200]"}
    assert suite_data(RunFolder(run))[0]["heads"] == ["after 0 updates, before"]


def test_runs_are_compared_on_the_same_prompts(tmp_path):
    runs = {name: (RunFolder(tmp_path / name), ()) for name in "abc"}
    guided = replace(HEADER_OF, settings={"guidance_scale": 3.0})
    evaluated(tmp_path / "a", 10, 0.1, guided)
    evaluated(tmp_path / "b", 0, 0.0, guided)
    evaluated(tmp_path / "b", 20, 0.4, guided)
    evaluated(tmp_path / "c", 20, 0.4, replace(HEADER_OF, prompts_digest="q"))
    assert suites_beside({name: runs[name] for name in "ac"}) == []
    (one,) = suites_beside(runs)
    assert one["heads"] == ["a, after 10 updates", "b, after 20 updates", "b − a"]
    assert [row["title"] for row in one["rows"]] == ["overall", "<b>", "even"]
    assert one["rows"][0]["cells"][2] == {"text": "+0.300", "note": "[+0.300, +0.300]"}
    assert one["doubts"] == []
    evaluated(tmp_path / "a", 10, 0.1, replace(HEADER_OF, settings={"guidance_scale": 1.0}, suite="other"))
    evaluated(tmp_path / "b", 10, 0.1, replace(guided, suite="other"))
    other = next(one for one in suites_beside(runs) if one["name"] == "other")
    assert other["doubts"] == ["Not the model alone: guidance_scale is 1.0 in a and 3.0 in b"]
