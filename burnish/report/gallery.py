"""The same prompts and the same noise, before and after training."""

from __future__ import annotations

import base64
import io
import json
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from burnish.folder import STEP, RunFolder
from burnish.report.summary import Summary

OPEN = 4  # prompts that are seen at once; the others unfold
LONGEST = 256  # pixels: larger pictures are made smaller, so that the page can be sent

Sample = dict[str, Any]


def gallery(folder: RunFolder, run: Summary) -> str:
    """HTML; empty where no validation kept pictures."""
    kept = set(folder.validations())
    updates = [row[STEP] for row in (run.before, run.after) if row is not None and row[STEP] in kept]
    if not updates:
        return ""
    sides = [(_title(update), _by_prompt(folder.validation(update))) for update in updates]
    cards = [_card(index, sides) for index in sides[-1][1]]
    hidden = ""
    if len(cards) > OPEN:
        more = f"{len(cards) - OPEN} more prompts"
        hidden = f"<details><summary>{more}</summary>{''.join(cards[OPEN:])}</details>"
    same = (
        "Held-out prompts; each pair of pictures began from the same noise. "
        if len(sides) == 2
        else "Held-out prompts. "
    )
    return (
        f"<h2>Pictures</h2><p>{same}Below each picture is its reward, and what the reward noted, "
        f"such as the text that was read.</p>{''.join(cards[:OPEN])}{hidden}"
    )


def _title(update: int) -> str:
    return f"after {update} updates" if update else "before training"


def _by_prompt(validation: Path) -> dict[int, list[tuple[Sample, str]]]:
    """Samples with their pictures as data, by the number of the prompt."""
    found: dict[int, list[tuple[Sample, str]]] = {}
    for line in (validation / "samples.jsonl").read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        file = validation / "pictures" / f"{sample['index']:03d}-{sample['sample']:02d}.png"
        found.setdefault(sample["index"], []).append((sample, _picture(file, sample)))
    return found


def _card(index: int, sides: list[tuple[str, dict[int, list[tuple[Sample, str]]]]]) -> str:
    prompt = sides[-1][1][index][0][0]["prompt"]
    count = len(sides[-1][1][index])
    across = min(count, 4 if count % 3 else 3)
    columns = "".join(
        f'<div><h4>{title}</h4><div class="pictures" style="--columns:{across}">'
        f"{''.join(_figure(sample, picture) for sample, picture in by_prompt.get(index, []))}</div></div>"
        for title, by_prompt in sides
    )
    return f'<section class="card"><h3>{escape(prompt)}</h3><div class="sides">{columns}</div></section>'


def _figure(sample: Sample, picture: str) -> str:
    reward = "missing" if sample["reward"] is None else f"{sample['reward']:.2f}".replace("-", "−")
    exact = sample["components"].get("ocr_exact")
    mark = "" if exact is None else '<b class="right" title="exactly right">✓</b> ' if exact else ""
    note = f'<span class="note">{escape(sample["note"])}</span>' if sample["note"] else ""
    return f"<figure>{picture}<figcaption>{mark}<span>{reward}</span>{note}</figcaption></figure>"


def _picture(file: Path, sample: Sample) -> str:
    if not file.exists():
        return '<span class="gone">no picture</span>'
    content, kind = file.read_bytes(), "png"
    with Image.open(io.BytesIO(content)) as image:
        width, height = image.size
        if max(width, height) > LONGEST:
            image.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
            smaller = io.BytesIO()
            image.convert("RGB").save(smaller, format="JPEG", quality=85)
            content, kind = smaller.getvalue(), "jpeg"
    look = ' class="pixels"' if max(width, height) <= 64 else ""
    alt = escape(f"{sample['prompt']}, sample {sample['sample']}", quote=True)
    data = base64.b64encode(content).decode()
    return f'<img{look} alt="{alt}" width="{width}" height="{height}" src="data:image/{kind};base64,{data}">'
