"""A few media of each kind, from which it is learned how a processor joins them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from burnish.language.model import Audio, Shown, Video
from burnish.models.language.collation import Collation, Inputs, Trial, learn, media_of

SIZES = ((60, 44), (44, 76), (96, 52))  # width and height in pixels: no two alike
FRAMES = (4, 8, 6)
SECONDS = (1.5, 1.0, 2.5)
READERS: dict[str, tuple[str, ...]] = {  # a processor's part for each kind
    "image": ("image_processor",), "video": ("video_processor",), "audio": ("feature_extractor", "audio_processor"),
}  # fmt: skip

Process = Callable[[list[str], Sequence[Shown]], Inputs]


def learn_all(
    processor: Any, ask: Callable[[Sequence[str]], str], process: Process, audio_rate: int | None
) -> tuple[Collation, dict[str, int], dict[str, bool]]:
    """The collation of all kinds of media that a processor reads; see ``collation.learn``.

    Args:
        processor: of the model.
        ask: the text of a prompt with media of these kinds.
        process: what the processor returns for texts and their media.
        audio_rate: samples per second of sounds; None if the model hears none.
    """
    collation = Collation()
    within: dict[str, int] = {}
    appends: dict[str, bool] = {}
    for kind, parts in READERS.items():
        if all(getattr(processor, part, None) is None for part in parts) or (kind == "audio" and audio_rate is None):
            continue
        media = samples(kind, audio_rate or 0)

        def alone(chosen: Sequence[int], kind: str = kind, media: list[Any] = media) -> Inputs:
            some = [media[number] for number in chosen]
            return process([ask([kind] * len(some))], [_shown(kind, some)])

        def together(groups: Sequence[Sequence[int]], kind: str = kind, media: list[Any] = media) -> Inputs:
            texts = [ask([kind] * len(group)) for group in groups]
            return process(texts, [_shown(kind, [media[number] for number in group]) for group in groups])

        try:
            alone([0])
        except Exception:
            continue
        own, axes, appends[kind] = learn(Trial(alone, together))
        collation = Collation(
            collation.axes | own.axes, collation.rows | own.rows, per_token=collation.per_token | own.per_token
        )  # fmt: skip
        within |= axes
    return collation, within, appends


def loses(process: Process, ask: Callable[[Sequence[str]], str]) -> bool:
    """Whether a processor returns less of a picture and a video in one prompt than of both apart (SmolVLM)."""
    picture, video = Shown(images=samples("image")[:1]), Shown(videos=samples("video")[:1])
    apart = [media_of(process([ask([kind])], [shown])) for kind, shown in (("image", picture), ("video", video))]
    try:
        both = media_of(process([ask(["image", "video"])], [Shown(picture.images, video.videos)]))
    except Exception:  # so it says itself
        return False
    return sum(one.numel() for one in both.values()) < sum(one.numel() for each in apart for one in each.values())


def _shown(kind: str, media: Sequence[Any]) -> Shown:
    named: dict[str, Any] = {f"{kind}s": media}
    return Shown(**named)


def samples(kind: str, rate: int = 0) -> list[Any]:
    """Three media of a kind, of unequal sizes; sounds at a rate."""
    from PIL import Image

    draw = np.random.default_rng(0)
    if kind == "image":
        return [Image.fromarray(draw.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in SIZES]
    if kind == "audio":
        return [Audio(draw.normal(0, 0.1, round(s * rate)).astype(np.float32), rate) for s in SECONDS]
    return [Video(draw.integers(0, 256, (count, 48, 64, 3), dtype=np.uint8), 2.0) for count in FRAMES]
