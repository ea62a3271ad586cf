"""Many pictures in one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

GAP, FRAME, LABEL_WIDTH, FONT_SIZE = 4, 2, 220, 14
READABLE = 96  # pixels: a smaller picture is enlarged until its longer side has about as many
Color = tuple[int, int, int]


def grid(
    pictures: Sequence[np.ndarray],
    columns: int,
    labels: Sequence[str] | None = None,
    frames: Sequence[Color | None] | None = None,
    scale: int | None = None,
) -> Image.Image:
    """Pictures of one size in rows.

    Args:
        pictures: uint8, [H, W] or [H, W, 3].
        columns: pictures in a row; with ``labels``, one prompt is one row.
        labels: text to the left of each row.
        frames: colour around each picture; None for none.
        scale: how many pixels one pixel becomes; None enlarges small pictures until they can be looked at.
    """
    height, width = pictures[0].shape[:2]
    scale = scale or max(1, round(READABLE / max(height, width)))
    rows = -(-len(pictures) // columns)
    cell_w, cell_h = width * scale + 2 * FRAME + GAP, height * scale + 2 * FRAME + GAP
    font = ImageFont.load_default(FONT_SIZE)
    left = LABEL_WIDTH if labels else 0
    sheet = Image.new("RGB", (left + columns * cell_w + GAP, rows * cell_h + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for i, picture in enumerate(pictures):
        x, y = left + GAP + i % columns * cell_w, GAP + i // columns * cell_h
        enlarged = Image.fromarray(picture).resize((width * scale, height * scale), Image.Resampling.NEAREST)
        color = frames[i] if frames else None
        if color is not None:
            draw.rectangle((x, y, x + cell_w - GAP - 1, y + cell_h - GAP - 1), fill=color)
        sheet.paste(enlarged.convert("RGB"), (x + FRAME, y + FRAME))
    for row, label in enumerate(labels or ()):
        _write(draw, label, (GAP, GAP + row * cell_h, LABEL_WIDTH - 2 * GAP, cell_h - GAP), font)
    return sheet


def _write(
    draw: ImageDraw.ImageDraw,
    text: str,
    box: tuple[int, int, int, int],
    font: ImageFont.ImageFont | ImageFont.FreeTypeFont,
) -> None:
    """Text in a box, in lines, cut with an ellipsis where the box is full."""
    x, y, width, height = box
    room = max(1, height // (FONT_SIZE + 4))
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if not lines[-1] or draw.textlength(longer, font=font) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"{lines[room - 1]} …"]
    lines = [_fit(draw, line, width, font) for line in lines]
    top = y + max(0, (height - len(lines) * (FONT_SIZE + 4)) // 2)
    draw.text((x, top), "\n".join(lines), fill="black", font=font, spacing=4)


def _fit(
    draw: ImageDraw.ImageDraw, line: str, width: int, font: ImageFont.ImageFont | ImageFont.FreeTypeFont
) -> str:
    if draw.textlength(line, font=font) <= width:
        return line
    line = line.removesuffix(" …")
    while line and draw.textlength(f"{line}…", font=font) > width:
        line = line[:-1]
    return f"{line}…"
