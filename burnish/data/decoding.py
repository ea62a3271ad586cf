"""Decodes every picture and video once before a run begins, so that a broken one is named then, and by its record."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from burnish.data.lines import told
from burnish.types.media import Media

log = logging.getLogger(__name__)

THREADS = 8  # at most: decoders leave Python's lock alone, and disks want no more
PAUSE = 20.0  # seconds between two notes on how far it is


def check_media(
    found: Iterable[tuple[str, Media]], unfit: Callable[[int, int], str] = lambda width, height: ""
) -> None:
    """Refuse pictures and videos that can't be decoded; equal ones are looked at once.

    Args:
        found: records, by file and line, and what they show.
        unfit: why a model can't see a picture of some width and height; empty where it can.

    Raises:
        UserError: with the first ones, by record; the others are counted.
    """
    places: dict[Media, dict[str, None]] = {}  # a record may come twice: to learn from, and to judge by
    for where, media in found:
        places.setdefault(media, {})[where] = None
    problems: list[str] = []
    start = noted = time.monotonic()
    with ThreadPoolExecutor(max(1, min(THREADS, os.cpu_count() or 1))) as pool:
        looks = pool.map(lambda media: _problem(media, unfit), places)
        for done, (wheres, problem) in enumerate(zip(places.values(), looks, strict=True), 1):
            problems += [f"{where}: {problem}" for where in wheres if problem]
            if time.monotonic() - noted > PAUSE:
                noted = time.monotonic()
                log.warning(
                    "decoded %d of %d pictures and videos in %.0f s, each once before the run begins "
                    "(data.decode_check=false reads only their headers)", done, len(places), noted - start,
                )  # fmt: skip
    if problems:
        raise told(problems)


def _problem(media: Media, unfit: Callable[[int, int], str]) -> str:
    what = "picture" if media.kind == "image" else "video"
    name = f"has a {what} {media.path or 'in bytes'} that"
    try:
        size = media.decode()
    except Exception as error:  # decoders raise whatever they like
        return f"{name} can't be decoded: {error}"
    reason = unfit(*size) if media.kind == "image" else ""
    return f"{name} {reason}" if reason else ""
