"""The same prompts and the same noise, before and after training."""

from __future__ import annotations

import base64
import io
from html import escape

from PIL import Image

from burnish.folder import STEP, RunFolder
from burnish.report.samples import Sample, Samples, read_samples
from burnish.report.summary import Summary

OPEN = 4  # prompts that are seen at once; the others unfold
MOST = 8  # samples of a prompt that are shown
LONGEST = 256  # pixels: larger pictures are made smaller, so that the page can be sent
GONE = '<span class="gone">no picture</span>'


def gallery(folder: RunFolder, run: Summary) -> str:
    """HTML; says so where no validation kept pictures."""
    sides: list[tuple[str, Samples]] = []
    for row in (run.before, run.after):
        kept = read_samples(folder.validation(row[STEP])) if row is not None else {}
        if row is not None and kept:
            sides.append((_title(row[STEP]), kept))
    if not sides:
        return "<h2>Pictures</h2><p>No validation has kept pictures yet.</p>"
    numbers = sorted({index for index, _ in sides[-1][1]})
    cards = [_card(index, sides) for index in numbers]
    hidden = ""
    if len(cards) > OPEN:
        more = f"{len(cards) - OPEN} more prompts"
        hidden = f"<details><summary>{more}</summary>{''.join(cards[OPEN:])}</details>"
    same = " Each pair of pictures began from the same noise." if len(sides) == 2 else ""
    prompts = "The first validation prompts, not chosen by how they turned out."
    return (
        f"<h2>Pictures</h2><p>{prompts}{same} Below each picture is its reward, and what the reward "
        f"noted, such as the text that was read.</p>{''.join(cards[:OPEN])}{hidden}"
    )


def _title(update: int) -> str:
    return f"after {update} updates" if update else "before training"


def _card(index: int, sides: list[tuple[str, Samples]]) -> str:
    columns, prompt = [], ""
    for title, samples in sides:
        shown = [sample for (number, _), sample in sorted(samples.items()) if number == index][:MOST]
        prompt = shown[0].prompt if shown else prompt
        across = min(len(shown), 4 if len(shown) % 3 else 3) or 1
        figures = "".join(map(_figure, shown))
        columns.append(f'<div><h4>{title}</h4><div class="pictures" style="--columns:{across}">{figures}</div></div>')
    sided = "sides" if len(sides) == 2 else "sides alone"
    body = f'<div class="{sided}">{"".join(columns)}</div>'
    return f'<section class="card"><h3>{escape(prompt)}</h3>{body}</section>'


def _figure(sample: Sample) -> str:
    reward = "missing" if sample.reward is None else f"{sample.reward:.2f}".replace("-", "−")
    mark = {
        None: "",
        True: '<b class="good" title="exactly right">✓</b>',
        False: '<b class="bad" title="not exactly right">×</b>',
    }[sample.exact]
    note = f'<span class="note">{escape(sample.note)}</span>' if sample.note else ""
    return f"<figure>{_picture(sample)}<figcaption>{mark}<span>{reward}</span>{note}</figcaption></figure>"


def _picture(sample: Sample) -> str:
    try:
        content, kind = sample.picture.read_bytes(), "png"
        with Image.open(io.BytesIO(content)) as image:
            width, height = image.size
            if max(width, height) > LONGEST:
                image.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
                smaller = io.BytesIO()
                image.convert("RGB").save(smaller, format="JPEG", quality=85)
                content, kind = smaller.getvalue(), "jpeg"
    except OSError:  # removed, or torn by a crash
        return GONE
    look = ' class="pixels"' if max(width, height) <= 64 else ""
    alt = escape(f"{sample.prompt}, {sample.picture.stem}", quote=True)
    data = base64.b64encode(content).decode()
    return f'<img{look} alt="{alt}" width="{width}" height="{height}" src="data:image/{kind};base64,{data}">'
