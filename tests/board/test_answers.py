"""What the board answers: numbers of runs and of several beside each other, only to itself, only by GET."""

import json
import math
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

from burnish.config.run_folder import STEP, TIME, RunFolder
from burnish.evaluation.records import Folder, Header, result_of
from burnish.report.runs import differences, other_rewards
from burnish.report.samples import cut, series
from burnish.utils.paths import CLAIM
from tests.support.boards import ask, board, recorded
from tests.support.drawing import noise
from tests.support.reports import Story, report, run_folder, write_lines
from tests.support.tiny_run import burnish

HEADER_OF = Header(
    suite="mine", version=1, changed=[], digest="d", prompts_digest="p", prompts=12, n=1, primary_metric="ocr",
    aggregation="tasks", unit=4, settings={}, source="run", model={}, wrong=[], unwatched=[],
)  # fmt: skip


def evaluated(run: Path, update: int, value: float, header: Header = HEADER_OF) -> Folder:
    """A complete evaluation by a validation."""
    return evaluation(run / "validation" / f"{update:06d}" / "suites" / header.suite, value, header)


def evaluation(place: Path, value: float, header: Header = HEADER_OF) -> Folder:
    """A complete evaluation in a folder; every prompt got ``value`` more than its number says."""
    folder = Folder(place)
    for unit in folder.begin(header):
        folder.append([
            {"index": i, "sample": 0, "unit": unit, "key": f"k{i}", "task": "<b>" if i % 2 else "even",
             "values": {"ocr": i / 20 + value}} for i in header.rows(unit)
        ])  # fmt: skip
    folder.finish(result_of(*folder.complete()))
    return folder


BARE = Story(updates=10, guided=False, images=False)
IMAGE = "validation/000010/pictures/000-00.png"
KEPT = "samples/000002-0"
REWARD = "val-core/default/reward/mean@6"
SAID = ("first", "last", "best", "change", "zero", "never")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("board") / "runs"
    recorded(run_folder(root / "a", Story(updates=10, guided=False)), 3)
    Image.fromarray(noise(0)).save(root / "a" / IMAGE)  # unlike that of the first validation
    for update, scored in ((0, [[1, 0], [0.5, 0.5], [0], [1]]), (10, [[1, 1], [0, 0, None], [0.5, None], [1]])):
        write_lines(root / "a" / f"validation/{update:06d}/scores.jsonl", [
            {"source": "hard" if index else "easy", "reward": reward, "values": {}, "index": index, "sample": sample}
            for index, own in enumerate(scored) for sample, reward in enumerate(own)
        ])  # fmt: skip
    (root / "a" / KEPT).mkdir(parents=True)
    Image.fromarray(noise(0)).save(root / "a" / KEPT / "000.png")
    said = {"response": "hello", "token_texts": ["he"], "token_logprobs": [-1.0], "note": "n", "components": {"ocr": 1}}
    kept = [{"sample": 0, "file_name": "000.png"}, {"sample": 1, "file_name": "../a.png"} | said]
    write_lines(root / "a" / KEPT / "records.jsonl", [{"uid": "0a"} | one for one in kept])
    asked = {"index": 0, "prompt": "the number 100", "answer": "100"}
    write_lines(root / "a" / "validation/000010/prompts.jsonl", [asked])
    (root.parent / "secret.png").write_bytes(b"\x89PNG secret")
    return root


@pytest.fixture(scope="module")
def port(root: Path) -> Iterator[int]:
    with board(root) as found:
        yield found


def media(port: int, name: str, run: str = "a") -> int:
    return ask(port, f"/media?run={quote(run, safe='')}&file={quote(name, safe='')}")[0]


def test_data_of_a_run(port: int, root: Path):
    _, found, about = ask(port, "/api/run?run=a")
    row, last = found["row"], RunFolder(root / "a").read_metrics()[-1]
    names = ("updates", "steps", "state", "algorithm", "seed", "name", "error")
    assert [row[name] for name in names] == [10, 30, "stopped", "diffusion_nft", 0, "a", ""]
    assert row["best"] == {"update": 10, "reward": row["last"]} == {"update": 10, "reward": last[REWARD]}
    assert (row["validation"]["x"], row["seconds"]) == ([0, 10], last[TIME])
    assert found["headline"]
    assert about["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert about["x-content-type-options"] == "nosniff"
    steps = [row["timing_s/step"] for row in RunFolder(root / "a").read_metrics()[1:]]
    found = ask(port, "/api/time?run=a")[1]
    assert (found["x"], found["updates"], found["update"]) == (list(range(1, 11)), [1, 2, 3], 3)
    assert (found["step"], found["means"]["step"]) == (pytest.approx(steps, 1e-5), pytest.approx(sum(steps) / 10, 1e-5))
    assert {"gen", "testing"} <= found["phases"].keys() < found["means"].keys()
    lanes = [
        {"lane": f"train {rank}", "spans": [["gen", 0, 0.5 + rank], ["update_actor", 1.6, 0.4]]} for rank in (0, 1)
    ]
    assert found["spans"] == lanes
    found = ask(port, "/api/groups?run=a")[1]
    drawn = [[group["prompt"], group["source"], *group["samples"]] for group in found["groups"]]
    assert drawn == [
        [prompt, "default", {"sample": 0, "reward": first, "advantage": 0.7071},
         {"sample": 1, "reward": second, "advantage": -0.7071}]
        for prompt, first, second in (("draw seven", 1, 0.5), ("draw one", pytest.approx(0.5), None))
    ]  # fmt: skip
    assert (found["updates"], found["update"], found["kept"]) == ([1, 2, 3], 3, [2])
    assert ask(port, "/api/groups?run=a&update=2")[1]["groups"][0]["samples"] == [
        {"sample": 0, "reward": 1, "advantage": 0.7071, "note": "", "components": {}, "file": f"{KEPT}/000.png"},
        {"sample": 1, "reward": 0, "advantage": -0.7071, "note": "n", "components": {"ocr": 1}, "response": "hello",
         "tokens": [["he", -1, None]]},
    ]  # fmt: skip
    thumbnail = ask(port, "/api/runs")[1]["runs"][0]["thumbnail"]
    assert thumbnail == {"update": 10, "prompt": "the number 100", "text": None, "file": IMAGE}
    _, content, about = ask(port, f"/media?run=a&side=192&file={quote(IMAGE)}")
    assert (content, about["content-type"]) == ((root / "a" / IMAGE).read_bytes(), "image/png")
    status, content, _ = ask(port, f"/media?run=a&file={quote(IMAGE)}", Range="bytes=0-3")
    assert (status, content) == (206, b"\x89PNG"), "clips are read in parts"


def test_how_prompts_went(port: int):
    """Of a validation the highest reward is 1: there was room above what stayed at 0.5."""
    found = ask(port, "/api/prompts?run=a&of=training")[1]
    about = {"source": "default", "answer": None, "seen": 3, "update": 3}
    assert (found["updates"], found["kept"]) == ([1, 2, 3], [])
    assert found["prompts"] == [about | one for one in (
        {"index": 0, "prompt": "draw seven", "first": 0.625, "last": 0.75, "best": 0.75, "change": 0.125, "zero": 0,
         "never": False, "spark": [0.625, 0.5, 0.75]},
        {"index": 1, "prompt": "draw one", "first": 0.5, "last": 0.5, "best": 0.5, "change": 0, "zero": None,
         "never": True, "spark": [0.5] * 3},
    )]  # fmt: skip
    found = ask(port, "/api/prompts?run=a")[1]
    assert (found["updates"], found["kept"]) == ([0, 10], list(range(16)))
    assert [[row[name] for name in ("prompt", "answer", "source", *SAID)] for row in found["prompts"]] == [
        ["the number 100", "100", "easy", 0.5, 1, 1, 0.5, 0.5, False], ["", None, "hard", 0.5, 0, 0.5, -0.5, 1, True],
        ["", None, "hard", 0, 0.5, 0.5, 0.5, None, False], ["", None, "hard", 1, 1, 1, 0, None, False],
    ]  # fmt: skip
    walked = ask(port, "/api/walk?run=a&prompt=1")[1]
    assert (walked["index"], walked["prompt"], walked["answer"]) == (1, "the number 489", "489")
    assert [(one["update"], [own["sample"] for own in one["samples"]]) for one in walked["updates"]] == [
        (0, list(range(6))), (10, list(range(6))),
    ]  # fmt: skip
    drawn = walked["updates"][1]["samples"]
    assert drawn[2]["file"] == "validation/000010/pictures/001-02.png"
    assert [one["exact"] for one in drawn] == [one["reward"] == 1 for one in drawn]
    assert len({one["exact"] for one in drawn}) == 2


@pytest.mark.parametrize("path", ["/", "/board.js", "/board.css", "/api/runs", f"/media?run=a&file={IMAGE}"])
def test_another_name_or_site_is_refused(port: int, path: str):
    for host in ("evil.example", "evil.example:80", "127.0.0.1:1", "", "127.0.0.1.evil.example"):
        assert ask(port, path, Host=host)[0] == 403
    assert ask(port, path, Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(port, path, Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize(("method", "more", "codes"), [
    *((method, "", [b"405"]) for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")),
    ("GET", "Host: evil.example\r\n", [b"400", b"403"]),
])  # fmt: skip
def test_nothing_but_get_and_one_name(port: int, method: str, more: str, codes: list[bytes]):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        head = f"{method} /api/runs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{more}Connection: close\r\n\r\n"
        one.sendall(head.encode())
        assert one.recv(100).split()[1] in codes


@pytest.mark.parametrize("name", [
    "../secret.png", "../../secret.png", "/etc/passwd", "config.yaml", "metrics.jsonl", "alarms/../../secret.png",
    "validation/000010/samples.jsonl", "validation/000010/pictures/../../../../secret.png", "", "\0",
    "validation/000010/pictures/..%2f..png", "validation/000010/pictures/x.html", "x" * 3000 + ".png",
])  # fmt: skip
def test_what_is_no_media_of_a_run_is_refused(port: int, name: str):
    assert media(port, name) in (404, 414)


@pytest.mark.parametrize("run", ["..", "a/..", "/", "b", "", "a\0", "../runs/a"])
def test_what_is_no_run_is_refused(port: int, run: str):
    assert media(port, IMAGE, run) == 404
    for what in ("run", "compare"):
        assert ask(port, f"/api/{what}?run={quote(run, safe='')}")[0] == 404


def test_links_lead_nowhere(tmp_path: Path):
    root = tmp_path / "runs"
    outside = run_folder(tmp_path / "outside", Story(updates=10, guided=False)).path
    folder = run_folder(root / "a", Story(updates=10, guided=False))
    (root / "linked").symlink_to(outside)
    images = folder.validation(10) / "pictures"
    (images / "000-00.png").unlink()
    (images / "000-00.png").symlink_to(tmp_path / "outside" / IMAGE)
    shutil.rmtree(folder.validation(0) / "pictures")
    (folder.validation(0) / "pictures").symlink_to(outside / "validation" / "000000" / "pictures")
    (root / "half").mkdir()
    (root / "half" / "metrics.jsonl").symlink_to(outside / "metrics.jsonl")
    os.mkfifo(images / "000-99.png")
    for place in ("b/c/d/e", "b/c/d/f/g", ".b", "a/b", "b/alarms"):  # runs lie in up to four folders
        (root / place).mkdir(parents=True)
        os.mkfifo(root / place / "config.yaml")  # which nobody writes, as no float is as large as that reward
        (root / place / "metrics.jsonl").write_text(f'{{"{STEP}": 1, "val-core/a/reward/mean@1": 1{400 * "0"}}}\n')
    with board(root) as port:
        assert sorted(one["id"] for one in ask(port, "/api/runs")[1]["runs"]) == ["a", "b/c/d/e"]
        for name in (IMAGE, IMAGE.replace("000-00", "000-99"), "validation/000000/pictures/000-01.png"):
            assert media(port, name) == 404
        assert media(port, IMAGE.replace("000-00", "000-01")) == 200


def test_a_run_of_this_machine_runs_while_its_process_holds_the_folder(tmp_path: Path):
    folder = run_folder(tmp_path / "a", BARE)

    def state() -> str:
        return ask(port, "/api/runs")[1]["runs"][0]["state"]

    with board(tmp_path / "a") as port:
        assert state() == "stopped"
        claimed = RunFolder(folder.path)
        claimed.claim()
        assert state() == "running"
        claimed.close()
        if Path("/proc/locks").exists():
            assert state() == "stopped"
            row = {"training/global_step": 30}
            folder.metrics.write_text(folder.metrics.read_text() + json.dumps(row) + "\n")
            assert state() == "finished"
        (tmp_path / "a" / CLAIM).write_text("process 1 on another, whose locks nobody sees here")
        folder.metrics.write_text("".join(folder.metrics.read_text().splitlines(keepends=True)[:3]))
        assert state() == "running"
        os.utime(folder.metrics, (1e9, 1e9))
        assert state() == "stopped"


def test_runs_beside_each_other(tmp_path: Path):
    common = "optimizer.schedule=constant"
    for name, more in (("a", ["seed=0"]), ("b", ["seed=1"])):
        run_folder(tmp_path / name, replace(BARE, overrides=(common, *more)))
    (tmp_path / "a" / "notes.md").write_text(" kept #base\n")
    (tmp_path / "b" / "notes.md").symlink_to(tmp_path / "a" / "config.yaml")
    with board(tmp_path) as port:
        assert {row["id"]: row["notes"] for row in ask(port, "/api/runs")[1]["runs"]} == {"a": "kept #base", "b": ""}
        options = ask(port, "/api/options")[1]
        assert (options["runs"], options["values"]["seed"]) == (["a", "b"], ["0", "1"])
        assert options["values"]["optimizer.schedule"] == '"constant"', "what all have is said once"
        zoomed = ask(port, "/api/curves?run=a&from=3&to=5")[1]
        assert zoomed["charts"][0]["series"][0]["x"] == [3, 4, 5]
        _, seeds, _ = ask(port, "/api/compare?run=a&run=b")
        assert [len(run["axes"]["samples"]) for run in seeds["runs"]] == [11, 11]
        assert [row["option"] for row in seeds["differences"]] == ["seed", "output_dir"]
        assert seeds["rewards"] == ""
        assert ask(port, "/api/curves?run=a&from=x")[0] == 400
        assert ask(port, f"/api/compare?{'&'.join(f'run={i}' for i in range(99))}")[0] == 400
    one, other = {"x": "1", "rewards.a.weight": "1.0", "rewards.a.cap": "null"}, {"x": "2", "rewards.b.weight": "-0.5"}
    named = {row["option"]: row["values"] for row in differences({"one": one, "other": other})}
    assert named == {"x": ["1", "2"], "rewards.a.weight": ["1.0", None], "rewards.b.weight": [None, "-0.5"]}
    assert "one: a; other: b." in other_rewards({"one": one | {"rewards.b.weight": "-0.0"}, "other": other})
    assert other_rewards({"one": one, "other": one | {"rewards.c.weight": "0"}}) == ""
    said = " ".join(burnish("compare", tmp_path / "a", tmp_path / "b").out.split())
    for words in ("updates 10/30 10/30", "Validation reward 0.772 → 0.", "Options that differ: ", "seed 0 1"):
        assert words in said
    assert "two different runs" in burnish("compare", tmp_path / "a", tmp_path / "a", status=2).message
    listed = [" ".join(line.split()) for line in burnish("runs", tmp_path).out.splitlines()]
    assert [line.split()[:3] for line in listed if "10/30" in line] in ([[f"{one}", "stopped", "10/30"] for one in pair]
                                                                       for pair in ("ab", "ba"))  # fmt: skip


def test_a_curve_with_fewer_points_keeps_its_extremes_and_its_mean():
    values = [0, 5, 1, 2, -3, 2, 9, 8, 7, None, 1, 6]
    line = series("a", "training", list(enumerate(values)), [(0.0, 1.0), None, *[(2.0, 3.0)] * 10], most=6)
    assert [line[name] for name in ("x", "y", "low", "high")] == [
        [0, 1, 4, 6, 10, 11], [0, 5, -3, 9, 1, 6], [0, None, 2, 2, 2, 2], [1, None, 3, 3, 3, 3],
    ]  # fmt: skip
    assert line["mean"] == pytest.approx([0, 8 / 3, 0.5, 6.5, 16 / 3, 6], rel=1e-5)
    line = series("a", "training", [(update, None) for update in range(9)], most=6)
    assert (line["x"], line["mean"]) == ([0, 4, 8], [None] * 3)
    assert series("a", "training", [(0, math.inf)]) == {"name": "a", "style": "training", "x": [0], "y": [None]}
    assert [cut(text, 3) for text in ("abc", "abcd")] == ["abc", "abc… (1 more characters)"]


def test_suites_before_and_after_have_paired_intervals_and_doubts(tmp_path: Path):
    folder = run_folder(tmp_path / "run", BARE)
    for update, value in ((0, 0.0), (10, 0.3)):
        evaluated(folder.path, update, value)
    evaluated(folder.path, 20, 0.1, replace(HEADER_OF, wrong=["ocr gives <i>right</i> and wrong the same"]))
    told = report(folder)
    assert "after 10 updates" not in told.text.partition("## Suites")[2].partition("## Next")[0]
    assert "+0.100<br><sub>[+0.100, +0.100]</sub>" in told.text
    assert "wrong: ocr" not in told.text
    assert "ocr gives <i>right</i> and wrong the same" in told.text
    assert "<i>" not in told.markdown
    line = told.run["suites"][0]["series"]
    assert line["x"] == [0, 10, 20]
    assert [high - low > 0.05 for low, high in zip(line["low"], line["high"], strict=True)] == [True] * 3
    assert line["y"][1] - line["y"][0] == pytest.approx(0.3)
