"""The board as a person uses it, in a headless browser."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tests.support.boards import EVIL, board, recorded
from tests.support.browser import SECONDS, Browser, browser
from tests.support.clips import moving_square
from tests.support.reports import Story, draw_instead, run_folder
from tests.support.tiny_run import burnish

pytestmark = pytest.mark.slow

SMALL = Story(updates=20, steps=30, guided=False, overrides=("seed=0", "optimizer.schedule=constant"))
TABS = ["Overview", "Curves", "Gallery", "Prompts", "Groups", "System", "Configuration"]


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
    """A run with images, and another with clips."""
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


def test_images_and_verdict_are_seen_first(page: Browser, port: int):
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


def put(page: Browser, where: str, value: str) -> None:
    find = f"document.querySelector({json.dumps(where)})"
    page.until(find)
    page.ask(f"{find}.value = {json.dumps(value)}")
    page.ask(f"['input', 'change'].map((one) => {find}.dispatchEvent(new Event(one)))")


def test_runs_are_sorted_found_grouped_and_swept(page: Browser, tmp_path: Path):
    for rate, seed in [(rate, seed) for rate in ("0.001", "0.0001") for seed in (0, 1)]:
        overrides = (f"optimizer.lr={rate}", f"seed={seed}", "optimizer.schedule=constant")
        story = replace(SMALL, images=False, steps=20, reward=(0.7, 0.8 + 0.1 * seed), overrides=overrides)
        run_folder(tmp_path / "runs" / f"{rate}-{seed}", story)
    (tmp_path / "runs" / "0.001-1" / "notes.md").write_text("<b>kept</b> #base")
    names = "[...document.querySelectorAll('.run .what a')].map((one) => one.textContent)"
    with board(tmp_path / "runs") as port:
        go(page, port)
        page.click("best ↕")
        assert [name[-1] for name in page.ask(names)] == ["1", "1", "0", "0"]
        assert page.ask("document.querySelector('.run.head [aria-sort]').textContent") == "best ↓"
        put(page, "[aria-label='filter by option']", "optimizer.lr=0.001")
        assert len(page.ask(names)) == 2
        put(page, "input[type=search]", "lr=0.001 #base")
        assert page.ask(names) == ["0.001-1"]
        assert "<b>kept</b>" in page.text()
        put(page, "input[type=search]", "")
        put(page, ".tools .choice select", "optimizer.lr")
        heads = page.ask("[...document.querySelectorAll('.group-head')].map((one) => one.textContent)")
        assert all("2 runs · best 0.850 ± 0.071" in head for head in heads)
        page.click("sweep")
        page.until("document.querySelectorAll('.run-line').length === 4")
        assert page.ask("document.querySelectorAll('.sweep tbody tr').length") == 2
        assert {"sort=best", "group=optimizer.lr", "view=sweep"} <= set(page.ask("location.hash.split(/[?&]/)"))
        page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
        page.click("CSV")
        end = time.monotonic() + SECONDS
        while not (saved := list(tmp_path.glob("*.csv"))) and time.monotonic() < end:
            time.sleep(0.05)
        assert saved[0].read_text().startswith("optimizer.lr,runs,best,best std")
        page.click("list")
        page.ask("document.querySelector('.run.head input').click()")
        page.click("compare 4 runs")
        page.until("document.querySelectorAll('.runs-legend li').length === 2")
        put(page, ".tools .choice select", "optimizer.lr")
        page.until("document.querySelector('.runs-legend').textContent.includes('optimizer.lr 0.0001')")
        page.until("document.querySelectorAll('.band').length > 0")
        page.open("about:blank")


def test_curves_are_zoomed_smoothed_and_drawn_over_time(page: Browser, port: int):
    first = "document.querySelector('[aria-label=\"first value of the x-axis\"]').value"
    go(page, port, "#/run?run=seed0&tab=curves")
    page.until("document.querySelectorAll('.chart svg svg').length > 1")
    box = page.ask("document.querySelector('.chart > svg').getBoundingClientRect().toJSON()")
    for kind, share in (("mousePressed", 0.4), ("mouseMoved", 0.6), ("mouseReleased", 0.8)):
        at = {"x": box["x"] + share * box["width"], "y": box["y"] + 60}
        page.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)
    page.until(f"Number({first}) > 4")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
    page.ask("document.querySelector('.chart').focus()")
    for key in ("0", "ArrowRight"):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    page.until(f"{first} === '0' && document.querySelector('.readout').textContent.startsWith('update 0: ')")
    put(page, ".tools .choice select", "seconds")
    put(page, "[aria-label=smoothing]", "0.9")
    page.ask("document.querySelector('.tools .toggle input').click()")
    page.until("document.querySelector('.line.raw')")
    assert {"axis=seconds", "smooth=0.9", "log=true"} <= set(page.ask("location.hash.split(/[?&]/)"))
    assert "over time" in page.ask("document.querySelector('.chart > svg').getAttribute('aria-label')")


@pytest.fixture
def hostile(tmp_path: Path):
    """A run in which everything that others write is made to be taken for something else."""
    folder = run_folder(tmp_path / "runs" / "<b>run & 'co' #?%2f", SMALL)
    recorded(folder, 2)
    for update in folder.validations():
        file = folder.validation(update) / "samples.jsonl"
        words = {"prompt": EVIL + "long " * 20_000, "note": EVIL, "answer": EVIL}
        said = {"response": EVIL + "0" * 100_000, "token_texts": [EVIL], "token_logprobs": [-1.0], "images": [EVIL]}
        line = {"index": 0, "sample": 0, "reward": 1.0, "components": {EVIL: 1.0}} | words | said
        file.write_text(json.dumps(line) + "\n")
        score = {"index": 0, "sample": 0, "source": EVIL, "reward": 1.0, "values": {EVIL: 1.0}}
        file.with_name("scores.jsonl").write_text(json.dumps(score) + "\n")
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
