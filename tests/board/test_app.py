"""What the board answers: only to itself, only what runs wrote, only by GET."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

from burnish.commands.board import board as command
from burnish.config.run_folder import RunFolder
from burnish.report.run_list import find_runs, state
from burnish.utils.errors import UserError
from tests.support.boards import ask, board, long_run, recorded
from tests.support.drawing import noise
from tests.support.reports import Story, run_folder

PICTURE = "validation/000010/pictures/000-00.png"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("board") / "runs"
    recorded(run_folder(root / "a", Story(updates=10, guided=False)), 3)
    Image.fromarray(noise(0)).save(root / "a" / PICTURE)  # unlike that of the first validation
    (root.parent / "secret.png").write_bytes(b"\x89PNG secret")
    return root


@pytest.fixture(scope="module")
def port(root: Path) -> Iterator[int]:
    with board(root) as found:
        yield found


def media(port: int, name: str, run: str = "a") -> int:
    return ask(port, f"/media?run={quote(run, safe='')}&file={quote(name, safe='')}")[0]


def test_data_of_a_run(port: int):
    _, found, about = ask(port, "/api/run?run=a")
    assert found["row"]["updates"] == 10
    assert found["headline"]
    assert about["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert about["x-content-type-options"] == "nosniff"
    for what in ("curves", "prompts", "walk", "groups", "time"):
        assert ask(port, f"/api/{what}?run=a&prompt=0")[0] == 200
    assert media(port, PICTURE) == 200
    status, content, about = ask(port, f"/media?run=a&file={quote(PICTURE)}", Range="bytes=0-3")
    assert (status, content, about["content-type"]) == (206, b"\x89PNG", "image/png"), "clips are read in parts"


def test_the_list_has_a_thumbnail_of_the_newest_validation(port: int, root: Path):
    thumbnail = ask(port, "/api/runs")[1]["runs"][0]["thumbnail"]
    assert thumbnail["update"] == 10
    _, content, about = ask(port, f"/media?run=a&side=192&file={quote(thumbnail['file'])}")
    assert content == (root / "a" / PICTURE).read_bytes()
    assert content != (root / "a" / PICTURE.replace("000010", "000000")).read_bytes()
    assert about["content-type"] == "image/png"


@pytest.mark.parametrize(
    "path", ["/", "/board.js", "/board.css", "/api/runs", "/api/run?run=a", f"/media?run=a&file={PICTURE}"]
)
@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1:1", "", "127.0.0.1.evil.example"])
def test_another_name_is_refused(port: int, path: str, host: str):
    assert ask(port, path, Host=host)[0] == 403


def test_another_site_is_refused(port: int):
    assert ask(port, "/api/runs", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(port, "/api/runs", Sec_Fetch_Site="same-origin")[0] == 200


def test_two_names_are_refused(port: int):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        one.sendall(f"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example\r\n\r\n".encode())
        assert one.recv(100).split()[1] in (b"400", b"403")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_nothing_but_get(port: int, method: str):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        one.sendall(f"{method} /api/runs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        assert one.recv(100).split()[1] == b"405"


@pytest.mark.parametrize(
    "name",
    ["../secret.png", "../../secret.png", "/etc/passwd", "config.yaml", "metrics.jsonl", "alarms/../../secret.png",
     "validation/000010/samples.jsonl", "validation/000010/pictures/../../../../secret.png", "samples/../alarms.png",
     "validation/000010/pictures/..%2f..png", "validation/000010/pictures/x.html", "", "\0", "alarms/a\0.png",
     "x" * 3000 + ".png"],
)  # fmt: skip
def test_what_is_no_media_of_a_run_is_refused(port: int, name: str):
    assert media(port, name) in (404, 414)


@pytest.mark.parametrize("run", ["..", ".", "a/..", "/", "a/", "b", "", "a\0", "../runs/a"])
def test_what_is_no_run_is_refused(port: int, run: str):
    assert media(port, PICTURE, run) == 404
    assert ask(port, f"/api/run?run={quote(run, safe='')}")[0] == 404
    assert ask(port, f"/api/compare?run={quote(run, safe='')}")[0] == 404


@pytest.mark.parametrize("query", ["prompt=x", "prompt=-1", "prompt=" + "9" * 30, "prompt=²"])
def test_numbers_are_numbers(port: int, query: str):
    assert ask(port, f"/api/walk?run=a&{quote(query, safe='=')}")[0] == 400


def test_links_lead_nowhere(tmp_path: Path):
    root = tmp_path / "runs"
    outside = run_folder(tmp_path / "outside", Story(updates=10, guided=False)).path
    folder = run_folder(root / "a", Story(updates=10, guided=False))
    (root / "linked").symlink_to(outside)
    pictures = folder.validation(10) / "pictures"
    (pictures / "000-00.png").unlink()
    (pictures / "000-00.png").symlink_to(tmp_path / "outside" / PICTURE)
    shutil.rmtree(folder.validation(0) / "pictures")
    (folder.validation(0) / "pictures").symlink_to(outside / "validation" / "000000" / "pictures")
    half = run_folder(root / "half", Story(updates=0, guided=False, pictures=False)).path
    (half / "metrics.jsonl").unlink()
    (half / "metrics.jsonl").symlink_to(outside / "metrics.jsonl")
    os.mkfifo(pictures / "000-99.png")
    with board(root) as port:
        assert [one["id"] for one in ask(port, "/api/runs")[1]["runs"]] == ["a"]
        assert media(port, PICTURE) == 404
        assert media(port, PICTURE.replace("000-00", "000-99")) == 404
        assert media(port, "validation/000000/pictures/000-01.png") == 404
        assert media(port, PICTURE.replace("000-00", "000-01")) == 200


def test_a_damaged_run_is_listed_and_named(tmp_path: Path):
    root = tmp_path / "runs"
    folder = run_folder(root / "a", Story(updates=10, guided=False, pictures=False))
    folder.config.write_text("[")
    folder.metrics.write_bytes(folder.metrics.read_bytes()[:-40])
    with board(root) as port:
        assert ask(port, "/api/runs")[1]["runs"][0]["error"]
        status, found, _ = ask(port, "/api/run?run=a")
        assert (status, "not the configuration of a run" in found["error"]) == (422, True)


def test_curves_stay_small_and_lose_no_peak(tmp_path: Path):
    folder = long_run(tmp_path / "runs" / "a", 3000, 4)
    rows = folder.read_metrics()
    rows[1777]["actor/grad_norm"] = 99.0
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with board(folder.path.parent) as port:
        charts = {one["title"]: one for one in ask(port, "/api/curves?run=a")[1]["charts"]}
    line = charts["actor/grad_norm"]["series"][0]
    assert len(line["x"]) <= 400
    assert line["y"][line["x"].index(1777)] == 99.0
    assert {one["name"] for one in charts["Reward"]["series"]} == {"training", "validation"}


def test_a_run_of_this_machine_runs_while_its_process_holds_the_folder(tmp_path: Path):
    folder = run_folder(tmp_path / "a", Story(updates=10, guided=False, pictures=False))
    claimed = RunFolder(folder.path)
    assert state(folder, 10, 30) == "stopped"
    claimed.claim()
    assert state(folder, 10, 30) == "running"
    claimed.close()
    assert state(folder, 10, 30) == "stopped" if Path("/proc/locks").exists() else True
    assert state(folder, 30, 30) == "finished" if Path("/proc/locks").exists() else True
    assert find_runs(folder.path) == {".": folder.path}


@pytest.mark.parametrize(
    ("folder", "port", "words"), [("no_such", 0, "which is no folder"), (".", 99999, "--port is 99999")]
)
def test_a_board_of_nothing_is_refused(folder: str, port: int, words: str):
    with pytest.raises(UserError, match=words):
        command(folder, port=port)
