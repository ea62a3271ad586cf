"""Folders of runs as burnish train leaves them, with numbers that a test chooses, made without a model."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import unescape
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from burnish.config import dump, load
from burnish.config.run_folder import TIME, RunFolder
from burnish.metrics import timing_metrics
from burnish.tasks.drawings import write_sample
from burnish.types.samples import Sample
from tests.support.tiny_run import burnish

VOID = {"meta", "img"}
GUIDED = {"reward": 0.978, "ocr_exact": 0.948, "border_darkness": 0.003, "variety": 0.051}


@dataclass(frozen=True)
class Story:
    """How a run went: each measure before and after, and what went wrong."""

    updates: int = 30
    steps: int = 30
    every: int = 10
    reward: tuple[float, float] = (0.772, 0.965)
    exact: tuple[float, float] = (0.528, 0.905)
    border: tuple[float, float] = (0.002, 0.004)
    variety: tuple[float, float] = (0.056, 0.029)
    missing: float = 0.0
    skipped: tuple[int, ...] = ()
    guided: bool = True
    images: bool = True
    size: tuple[int, int] = (32, 16)
    overrides: tuple[str, ...] = ()


def run_folder(path: Path, story: Story = Story()) -> RunFolder:
    """Write everything but the checkpoints and the report."""
    folder = RunFolder(path)
    config = load(
        "quickstart",
        # a schedule that ends is the story of a test of its own
        [f"output_dir={path}", f"steps={story.steps}", *(story.overrides or ("optimizer.schedule=constant",))],
    )
    folder.path.mkdir(parents=True)
    folder.config.write_text(dump(config))
    draw = np.random.RandomState(0)
    lines = [_line(story, update, draw) for update in range(story.updates + 1)]
    took = accumulate(line.get("timing_s/step", 0) + line.get("timing_s/testing", 0) for line in lines)
    lines = [line | {TIME: seconds} for line, seconds in zip(lines, took, strict=True)]
    write_lines(folder.metrics, lines)
    judged = [line["training/global_step"] for line in lines if "val-aux/variety" in line]
    if story.images:
        for update in judged:
            _images(folder.validation(update), story, update)
    if story.guided:
        guided = {"guidance_scale": 3.0} | _validation(*GUIDED.values())
        folder.reference.mkdir()
        (folder.reference / "metrics.json").write_text(json.dumps(guided))
        if story.images:
            _images(folder.reference, replace(story, exact=(0.95, 0.95)), 0)
    return folder


def _line(story: Story, update: int, draw: np.random.RandomState) -> dict[str, Any]:
    part = (1 - np.exp(-3.5 * update / story.steps)) / (1 - np.exp(-3.5))
    measures = (story.reward, story.exact, story.border, story.variety)
    reward, exact, border, variety = (before + part * (after - before) for before, after in measures)
    line: dict[str, Any] = {"training/global_step": update}
    if update:
        shaken = reward + draw.normal(0, 0.015)
        line |= {
            "critic/rewards/mean": shaken, "critic/rewards/max": 1.0, "critic/rewards/min": 0.33,
            "critic/rewards/zero_std_ratio": float(0.5 * part), "critic/rewards/std_mean": 0.2 * (1 - 0.7 * part),
            "critic/rewards/group_size": 12.0, "critic/missing_ratio": story.missing, "critic/ocr/mean": shaken,
            "critic/ocr_exact/mean": exact, "critic/border_darkness/mean": border * draw.uniform(0.8, 1.3),
            "actor/grad_norm": float(0.3 * np.exp(draw.normal(0, 0.3))), "actor/lr": 3e-3, "actor/loss": 0.5,
            "actor/old_deviate": float(0.002 * draw.uniform(0.5, 2)),
            "actor/skipped_updates": float(update in story.skipped), "old_policy/decay": 0.0,
        }  # fmt: skip
        seconds = {"gen": 0.8, "reward": 0.7, "old_log_prob": 0.35, "update_actor": 0.8, "adv": 0.002}
        seconds = {name: float(value * draw.uniform(0.9, 1.2)) for name, value in seconds.items()}
        seconds["update_weights"] = 0.0001
        seconds["step"] = sum(seconds.values()) + 0.01
        if update % story.every == 1:
            seconds["testing"] = 2.4
        line |= timing_metrics(seconds, 96)
    if update % story.every == 0 or update == story.steps:
        line |= _validation(reward, exact, border, variety)
    return line


def _validation(reward: float, exact: float, border: float, variety: float) -> dict[str, float]:
    return {
        "val-core/default/reward/mean@6": reward, "val-core/default/reward/best@6/mean": min(reward + 0.1, 1.0),
        "val-aux/default/reward/std@6": 0.15, "val-aux/default/ocr/mean@6": reward,
        "val-aux/default/ocr_exact/mean@6": exact, "val-aux/default/border_darkness/mean@6": border,
        "val-aux/variety": variety, "val-aux/missing": 0.0,
    }  # fmt: skip


def _images(target: Path, story: Story, update: int) -> None:
    """Numbers in the place of samples: wrong ones as often, and borders as dark, as the story says."""
    done = update / story.steps
    exact = story.exact[0] + (story.exact[1] - story.exact[0]) * done
    border = story.border[0] + (story.border[1] - story.border[0]) * done
    (target / "pictures").mkdir(parents=True)
    lines = []
    for index in range(16):
        answer = str(100 + (index * 389) % 900)
        for sample in range(6):
            luck = ((index * 6 + sample) * 0.618034) % 1
            read = answer if luck < exact else answer[:2] + str((int(answer[2]) + 3) % 10)
            right = float(read == answer)
            _number(read, border, story.size, sample).save(target / "pictures" / f"{index:03d}-{sample:02d}.png")
            value = {"ocr": 1.0 if right else 2 / 3, "ocr_exact": right, "border_darkness": border}
            about = {"prompt": f"the number {answer}", "answer": answer, "index": index, "sample": sample}
            lines.append(about | {"reward": value["ocr"], "components": value, "note": read})
    write_lines(target / "samples.jsonl", lines)


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def write_lines(file: Path, lines: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit(file: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Change every line; what ``change`` gives is laid over it."""
    write_lines(file, [line | (change(line) or {}) for line in lines_of(file)])


def change_samples(folder: RunFolder, **changes: object) -> None:
    for update in folder.validations():
        edit(folder.validation(update) / "samples.jsonl", lambda line: changes)


def one_sample(folder: RunFolder) -> None:
    """Keep the first sample of every validation alone."""
    for update in folder.validations():
        file = folder.validation(update) / "samples.jsonl"
        write_lines(file, lines_of(file)[:1])


def draw_instead(folder: RunFolder, made: Callable[[int, int], Sample]) -> None:
    """Put other samples in the place of images: ``made`` of the validation's update and the sample's number."""
    for update in folder.validations():
        target = folder.validation(update)
        lines = lines_of(target / "samples.jsonl")
        for line in lines:
            stem = f"{line['index']:03d}-{line['sample']:02d}"
            (target / "pictures" / f"{stem}.png").unlink()
            line["file"] = write_sample(target / "pictures", stem, made(update, line["sample"]))
        write_lines(target / "samples.jsonl", lines)


def _number(text: str, border: float, size: tuple[int, int], sample: int) -> Image.Image:
    sheet = Image.new("RGB", size, "white")
    if border > 0.02:
        pixels = np.asarray(sheet).copy()
        pixels[np.indices(pixels.shape[:2]).sum(0) % 4 < 2] = 255 - int(600 * border)
        sheet = Image.fromarray(pixels)
    font = ImageFont.load_default(round(size[1] * 0.75))
    ImageDraw.Draw(sheet).text((size[0] * (0.1 + 0.02 * sample), size[1] * 0.1), text, font=font, fill="black")
    return sheet


class Page(HTMLParser):
    """Checks that tags are balanced, and collects them with their addresses."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@dataclass(frozen=True)
class Report:
    """What was written about a run: a page and a text."""

    html: str
    data: dict[str, Any]  # what the page's script shows
    markdown: str

    @property
    def page(self) -> Page:
        return Page(self.html)

    @property
    def run(self) -> dict[str, Any]:
        return self.data["run"]

    @property
    def addresses(self) -> list[str]:
        """Media inside the page."""
        return [one[kind] for one in self.data["media"].values() for kind in ("image", "video", "sound") if kind in one]

    @property
    def text(self) -> str:
        """The text as a reader sees it."""
        return plain(unescape(self.markdown))

    @property
    def said(self) -> dict[str, str]:
        """Sentences of the verdict by kind: gained, lost, kept and what is to weigh."""
        found: dict[str, str] = {}
        for one in self.run["verdict"]:
            kind = one["word"].split()[-1]
            found[kind] = found.get(kind, "") + plain(one["text"])
        return found

    @property
    def rows(self) -> dict[str, list[str]]:
        """Cells of the table of measures by the title of their row."""
        rows = self.run["numbers"]["rows"] + self.run["numbers"]["watched"]
        return {row["title"]: [plain(cell["text"]) for cell in row["cells"]] for row in rows}


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def report(path: Path | RunFolder) -> Report:
    place = path.path if isinstance(path, RunFolder) else path
    burnish("report", place)
    html = (place / "report.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="frozen">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return Report(html, json.loads(found[1]), (place / "report.md").read_text(encoding="utf-8"))
