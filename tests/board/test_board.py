"""The board as a person uses it, in a headless browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tests.support.boards import EVIL, board, recorded, scored
from tests.support.browser import Browser, browser
from tests.support.clips import moving_square
from tests.support.reports import Story, draw_instead, run_folder
from tests.support.tiny_run import burnish

pytestmark = pytest.mark.slow

SMALL = Story(updates=20, steps=30, guided=False, overrides=("seed=0", "optimizer.schedule=constant"))
PHONE = 390
TABS = ["Overview", "Curves", "Gallery", "Prompts", "Groups", "Time and memory", "Configuration"]


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(autouse=True)
def nothing_wrong(page: Browser) -> Iterator[None]:
    """No error in the console, and nothing asked of anybody but the board."""
    page.errors.clear()
    page.asked.clear()
    yield
    assert page.errors == []
    asked = [urlsplit(one) for one in page.asked]
    assert {one.hostname for one in asked if one.scheme not in ("data", "about", "file")} <= {"127.0.0.1"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with pictures, and another with clips."""
    root = tmp_path_factory.mktemp("runs")
    recorded(run_folder(root / "seed0", SMALL), 3)
    clips = run_folder(root / "clips", SMALL)
    draw_instead(clips, lambda update, sample: moving_square(4))
    return root


@pytest.fixture(scope="module")
def port(runs: Path) -> Iterator[int]:
    with board(runs) as found:
        yield found


def go(page: Browser, port: int, where: str = "", **window: object) -> None:
    page.open("about:blank")
    page.open(f"http://127.0.0.1:{port}/{where}", **window)  # type: ignore[arg-type]
    page.until("document.querySelector('#board h1')")


def test_a_run_that_goes_appears_and_moves_on(page: Browser, tmp_path: Path):
    root = tmp_path / "runs"
    root.mkdir()
    with board(root) as port:
        go(page, port)
        assert "no runs in this folder yet" in page.text()
        folder = run_folder(root / "new", SMALL)
        page.until("document.body.innerText.includes('20 of 30')")
        page.click("new")
        page.until("document.body.innerText.includes('20 of 30 policy updates')")
        row = folder.read_metrics()[-1] | {"training/global_step": 21}
        with folder.metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")
        page.until("document.body.innerText.includes('21 of 30 policy updates')")
        assert page.ask("EVERY") <= 2500, "milliseconds between looks: what is new is there within five seconds"
        page.open("about:blank")


def test_pictures_and_verdict_are_seen_first(page: Browser, port: int):
    go(page, port)
    page.until("[...document.querySelectorAll('.newest img')].filter((one) => one.naturalWidth > 0).length === 1")
    assert page.ask("document.querySelector('.newest img').src.includes('000020%2Fpictures%2F000-00.png')")
    page.until("document.querySelector('.newest video').readyState >= 1")
    go(page, port, "#/run?run=seed0")
    page.until("[...document.querySelectorAll('.glimpse img')].filter((one) => one.naturalWidth > 0).length === 8")
    below = "(one) => document.querySelector(one).getBoundingClientRect().bottom"
    assert page.ask(f"['.glimpse', '.verdict'].map({below}).every((bottom) => bottom < innerHeight)")
    assert page.ask("document.querySelector('.glimpse').getBoundingClientRect().right") <= page.ask(
        "document.querySelector('.verdict').getBoundingClientRect().left"
    )
    page.click("All of them are in the gallery.")
    page.until("document.querySelector('[aria-selected=true]').textContent === 'Gallery'")
    go(page, port, "#/run?run=clips")
    page.until("document.querySelector('.glimpse video').readyState >= 1")


@pytest.fixture
def hostile(tmp_path: Path):
    """A run in which everything that others write is made to be taken for something else."""
    folder = run_folder(tmp_path / "runs" / "<b>run & 'co' #?%2f", SMALL)
    scored(folder, 3)
    recorded(folder, 2)
    for update in folder.validations():
        file = folder.validation(update) / "samples.jsonl"
        words = {"prompt": EVIL + "long " * 20_000, "note": EVIL, "answer": EVIL}
        said = {"response": EVIL + "0" * 100_000, "token_texts": [EVIL], "token_logprobs": [-1.0], "images": [EVIL]}
        line = {"index": 0, "sample": 0, "reward": 1.0, "components": {EVIL: 1.0}} | words | said
        file.write_text(json.dumps(line) + "\n")
        (folder.validation(update) / "prompts.jsonl").unlink()
    rows = [row | {f"actor/{EVIL}": float(update)} for update, row in enumerate(folder.read_metrics())]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder.groups.write_text(folder.groups.read_text().replace("draw seven", json.dumps(EVIL)[1:-1]))
    folder.timeline.write_text(folder.timeline.read_text().replace("train 0", json.dumps(EVIL)[1:-1]))
    return folder


def test_what_others_wrote_is_text(page: Browser, hostile):
    with board(hostile.path.parent) as port:
        go(page, port)
        page.click(hostile.path.name)
        page.until("document.querySelector('[role=tab]')")
        for tab in TABS:
            page.click(tab)
            page.until(f"document.querySelector('[aria-selected=true]').textContent === {json.dumps(tab)}")
            page.until("document.querySelector('#panel').textContent.length > 20")
        page.click("Gallery")
        page.until("document.querySelector('.response code').textContent.includes('window.pwned=1')")
        page.click(f"all {len(EVIL) + 100_000:,} characters")
        page.until("document.querySelector('.words.tall').textContent.length > 100000")
        assert page.ask("window.pwned === undefined && document.querySelectorAll('main script').length === 0")
        page.open("about:blank")
    burnish("report", hostile.path)
    page.open(f"file://{quote(str(hostile.report))}")
    page.until("document.querySelector('#board h1')")
    page.click("Gallery")
    page.until("document.querySelector('#panel .response')")
    assert page.ask("window.pwned === undefined")


@pytest.mark.thorough
def test_the_report_is_the_same_page_in_one_file(page: Browser, runs: Path, tmp_path: Path):
    burnish("report", runs / "clips")
    alone = shutil.copy(runs / "clips" / "report.html", tmp_path / "clips.html")
    page.open(f"file://{alone}", width=PHONE, height=800)
    page.until("document.querySelector('#board h1')")
    for tab in TABS:
        page.click(tab)
        page.until("document.querySelector('#panel').innerText.length > 20")
        assert page.ask("document.documentElement.scrollWidth") <= PHONE, tab
    page.click("Gallery")
    page.until("document.querySelector('#panel .side:not([hidden]) video').src.startsWith('data:')")
    assert "tab=gallery" in page.ask("location.hash"), "the address says what is seen"
    assert not [one for one in page.asked if one.startswith("http")]
