"""Records of evaluations on disk, what a kill leaves and what belongs together, and intervals over prompts."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from burnish.evaluation.intervals import difference, estimate
from burnish.evaluation.records import HEADER, RECORDS, Folder, Header, merged
from burnish.evaluation.results import check_comparable, compared, result_of

HEADER_OF = Header(
    suite="mine", version=1, changed=[], digest="d", prompts_digest="p", prompts=7, n=2, number="ocr",
    overall="prompts", unit=2, settings={"height": 16}, source="model", model={"weights": "w"}, update=None,
    wrong=[], unwatched=[],
)  # fmt: skip


def unit_of(header, unit, value=0.5):
    return [
        {"index": i, "sample": s, "unit": unit, "key": f"k{i}", "task": "odd" if i % 2 else "even",
         "values": {"ocr": value + i / 10}}
        for i in header.rows(unit) for s in range(header.n)
    ]  # fmt: skip


def filled(path, header=HEADER_OF, units=None, **more) -> Folder:
    folder = Folder(path)
    left = folder.begin(header)
    for unit in left if units is None else units:
        folder.append(unit_of(header, unit, **more))
    return folder


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_killed_evaluation_keeps_what_is_complete(tmp_path, cut):
    whole, killed = filled(tmp_path / "whole"), filled(tmp_path / "killed", units=[0, 1])
    file = killed.path / RECORDS
    file.write_bytes(file.read_bytes()[:-cut])
    left = killed.begin(HEADER_OF)
    assert left == [1, 2, 3]
    assert len(list(killed.records())) == 4
    with pytest.raises(ValueError, match="3 of 4"):
        killed.complete()
    for unit in left:
        killed.append(unit_of(HEADER_OF, unit))
    assert file.read_bytes() == (whole.path / RECORDS).read_bytes()
    assert killed.begin(HEADER_OF) == []


def test_another_evaluation_is_not_mixed_in(tmp_path):
    filled(tmp_path / "a")
    for change, words in (
        ({"digest": "other"}, "digest is 'd'.*'other'"),
        ({"unit": 1}, "unit is 2"),
        ({"model": {"weights": "v"}}, "model is"),
        ({"shard": [1, 2]}, "shard is None"),
    ):
        with pytest.raises(ValueError, match=words):
            Folder(tmp_path / "a").begin(replace(HEADER_OF, **change))
    assert Folder(tmp_path / "a").begin(replace(HEADER_OF, wrong=["a canary"])) == []


def test_shards_cover_all_prompts_once_and_merge_to_the_whole_byte_for_byte(tmp_path):
    assert [list(HEADER_OF.rows(unit)) for unit in HEADER_OF.own()] == [[0, 1], [2, 3], [4, 5], [6]]
    shards = [replace(HEADER_OF, shard=[i, 3]).own() for i in (1, 2, 3)]
    assert sorted(unit for own in shards for unit in own) == HEADER_OF.own()
    whole = filled(tmp_path / "whole")
    whole.finish(result_of(HEADER_OF, whole.complete()))
    parts = [filled(tmp_path / str(i), replace(HEADER_OF, shard=[i, 2])) for i in (1, 2)]
    (parts[1].media / "0002-00.png").write_bytes(b"picture")
    lines = [json.loads(line) for line in (parts[1].path / RECORDS).read_text().splitlines()]
    lines[0]["file"] = "0002-00.png"
    lines[1]["file"] = "../suite.json"
    (parts[1].path / RECORDS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    header, records = merged(Folder(tmp_path / "both"), parts[::-1])
    assert (tmp_path / "both" / "media" / "0002-00.png").read_bytes() == b"picture"
    for record in records:
        record.pop("file", None)
    Folder(tmp_path / "both").finish(result_of(header, records))
    assert records == whole.complete()
    for name in (HEADER, "result.json"):
        assert (tmp_path / "both" / name).read_bytes() == (whole.path / name).read_bytes()


def test_what_is_no_part_or_not_all_is_refused(tmp_path):
    one, two = (filled(tmp_path / str(i), replace(HEADER_OF, shard=[i, 2])) for i in (1, 2))
    other = filled(tmp_path / "other", replace(HEADER_OF, shard=[2, 2], source="another"))
    part = filled(tmp_path / "part", replace(HEADER_OF, shard=[1, 2]), units=[0])
    for parts, words in (
        ([one], "8 of 14 .*1/2"),
        ([one, one], "8 of 14"),
        ([one, other], "source is 'model' and 'another'"),
        ([part, two], "not complete"),
        ([one, Folder(tmp_path)], "no evaluation of a suite"),
    ):
        with pytest.raises(ValueError, match=words):
            merged(Folder(tmp_path / "target"), parts)
    with pytest.raises(ValueError, match="holds an evaluation"):
        merged(one, [one, two])


def test_foreign_records_end_what_is_read(tmp_path):
    folder = filled(tmp_path / "a")
    whole = (folder.path / RECORDS).read_bytes()
    for line in (b"no json\n", b"[1]\n", b'{"index": true}\n', b"[" * 5000 + b"\n"):
        (folder.path / RECORDS).write_bytes(whole + line)
        assert len(list(folder.records())) == 14
    (folder.path / RECORDS).write_bytes(whole)
    sound = json.loads((folder.path / HEADER).read_text())
    for change in ({"suite": 3}, {"unit": 0}, {"prompts": 10**12}, {"shard": [1]}, {"overall": "all"}, {"wrong": None}):
        (folder.path / HEADER).write_text(json.dumps(sound | change))
        with pytest.raises(ValueError, match="not of this version"):
            folder.complete()


def test_a_result_says_what_it_is_worth_and_is_compared_prompt_by_prompt(tmp_path):
    before, after = filled(tmp_path / "a").complete(), filled(tmp_path / "b", value=0.6).complete()
    result = result_of(HEADER_OF, before)
    assert (result["believed"], result["prompts"]) == (True, 7)
    assert result["overall"]["value"] == result["tasks"]["odd"]["value"] == pytest.approx(0.8)
    doubted = result_of(replace(HEADER_OF, wrong=["ocr is broken"]), before)
    assert (doubted["believed"], doubted["why_not"]) == (False, ["ocr is broken"])
    change = compared(HEADER_OF, before, after)
    assert (change["overall"].value, change["even"].prompts) == (pytest.approx(0.1), 4)
    (warned,) = check_comparable(HEADER_OF, replace(HEADER_OF, settings={"height": 32}))
    assert "height is 16" in warned
    with pytest.raises(ValueError, match="version is 1"):
        check_comparable(HEADER_OF, replace(HEADER_OF, version=2))


def test_an_interval_is_that_of_the_normal_distribution_where_there_are_many_prompts():
    values = np.random.default_rng(0).normal(0.4, 0.2, 400)
    found, half = estimate({"all": values.tolist()}, "prompts"), 1.96 * values.std(ddof=1) / math.sqrt(400)
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)
    generator, held = np.random.default_rng(1), 0
    for _ in range(200):
        found = estimate({"all": (generator.random(60) < 0.3).astype(float).tolist()}, "prompts")
        held += found.low <= 0.3 <= found.high
    assert 178 <= held <= 199  # of 190


def test_the_mean_of_tasks_weighs_small_tasks_as_large_ones_in_any_order():
    values = {"small": [0.0] * 5, "large": [1.0] * 95}
    tasks = estimate(values, "tasks")
    assert tasks.value == tasks.low == tasks.high == 0.5  # prompts are drawn within tasks
    assert estimate(values, "prompts").value == 0.95
    mixed = {"a": [0.1, 0.9, 0.4], "b": [0.2, 0.3, 0.8]}
    assert estimate(mixed, "tasks", name="x") == estimate(dict(reversed(mixed.items())), "tasks", name="x")
    assert estimate({"all": [0.0, 1.0, 1.0, 1.0]}, "prompts").low is None  # few prompts have no interval
    assert estimate({"a": [1.0] * 9, "b": [0.0]}, "tasks").low is None
    assert math.isnan(estimate({}, "prompts").value)


def test_changes_are_paired_by_prompt():
    hard = np.random.default_rng(2).random(100)  # prompts differ far more than the models do
    before = {"all": {str(i): value for i, value in enumerate(hard)}}
    after = {"all": {str(i): value + 0.02 for i, value in enumerate(hard)} | {"new": 9.0}}
    change = difference(before, after, "prompts")
    assert (change.value, change.low, change.prompts) == (pytest.approx(0.02), pytest.approx(0.02), 100)
    apart = estimate({"all": list(after["all"].values())[:100]}, "prompts")
    assert apart.high - apart.low > 0.05
