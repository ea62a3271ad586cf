"""Looks at every picture, video and sound once before a run: broken ones are reported early, with their records.

Of many, evenly spaced ones are decoded; of the others a picture must have a header that can be read and its end.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from burnish.data.lines import data_error
from burnish.data.pixels import NAMES
from burnish.types.media import Media

log = logging.getLogger(__name__)

THREADS = 8  # at most: decoders release the GIL, and more would not make disks faster
DECODED = 2000  # pictures, videos and sounds that are decoded; of more, the headers and ends of the others are read
PAUSE = 20.0  # seconds between two progress messages


def check_media(
    found: Iterable[tuple[str, Media]], refusal: Callable[[int, int], str] = lambda width, height: ""
) -> None:
    """Refuse pictures, videos and sounds that can't be decoded; equal ones are looked at once.

    Args:
        found: pictures, videos and sounds, each with the file and line of its record.
        refusal: why the model can't read pictures of a width and height; "" if it can.

    Raises:
        UserError: it names the first records; the others are counted.
    """
    records: dict[Media, dict[str, None]] = {}  # a record may be used twice: in training and in validation
    for where, media in found:
        records.setdefault(media, {})[where] = None
    problems: list[str] = []
    start = noted = time.monotonic()
    with ThreadPoolExecutor(max(1, min(THREADS, os.cpu_count() or 1))) as pool:
        every = -(-len(records) // DECODED)
        checked = pool.map(lambda one: _problem(one[1], refusal, fully=one[0] % every == 0), enumerate(records))
        for done, (wheres, problem) in enumerate(zip(records.values(), checked, strict=True), 1):
            problems += [f"{where}: {problem}" for where in wheres if problem]
            if time.monotonic() - noted > PAUSE:
                noted = time.monotonic()
                log.warning(
                    "checked %d of %d pictures, videos and sounds in %.0f s before the run "
                    "(data.decode_check=false reads only their headers)", done, len(records), noted - start,
                )  # fmt: skip
    if problems:
        raise data_error(problems)


def _problem(media: Media, refusal: Callable[[int, int], str], *, fully: bool) -> str:
    name = f"has a {NAMES[media.kind]} {media.path or 'in bytes'} that"
    try:
        size = media.decode() if fully else media.outline()
    except Exception as error:  # decoders raise errors of any type
        return f"{name} can't be decoded: {error}"
    reason = refusal(*size) if media.kind == "image" else ""
    return f"{name} {reason}" if reason else ""
