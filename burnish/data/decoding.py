"""Looks at every picture, video and sound once before a run: broken ones are reported early, with their records.

Of many, evenly spaced ones are decoded; of the others a picture must have a header that can be read and its end, which
were looked at when its record was read.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import TypeVar

from burnish.data.lines import data_error
from burnish.data.pixels import NAMES
from burnish.types.media import Media

log = logging.getLogger(__name__)

THREADS = 8  # at most: decoders release the GIL, and more would not make disks faster
DECODED = 2000  # pictures, videos and sounds that are decoded; of more, the headers and ends of the others are read
TOGETHER = 50  # that a thread takes at once: most cost less than handing them over does
PAUSE = 20.0  # seconds between two progress messages

T = TypeVar("T")


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
    records = _by_content(found)
    every, refused = -(-len(records) // DECODED), cache(refusal)  # the sizes of a data set repeat
    problems: list[str] = []
    done, start = 0, time.monotonic()
    noted = start

    def look(several: Sequence[tuple[int, Media]]) -> list[str]:
        return [_problem(media, refused, fully=number % every == 0) for number, media in several]

    with ThreadPoolExecutor(max(1, min(THREADS, os.cpu_count() or 1))) as pool:
        named = iter(records.values())
        for checked in pool.map(look, _chunks(enumerate(records))):
            for problem, where in zip(checked, named, strict=False):
                if problem:
                    problems += [f"{one}: {problem}" for one in ([where] if isinstance(where, str) else where)]
            done += len(checked)
            if time.monotonic() - noted > PAUSE:
                noted = time.monotonic()
                log.warning(
                    "checked %d of %d pictures, videos and sounds in %.0f s before the run "
                    "(data.decode_check=false reads only their headers)", done, len(records), noted - start,
                )  # fmt: skip
    if problems:
        raise data_error(problems)


def _by_content(found: Iterable[tuple[str, Media]]) -> dict[Media, str | dict[str, None]]:
    """The records of each picture, video and sound: mostly one, which may be used in training and in validation."""
    records: dict[Media, str | dict[str, None]] = {}
    for where, media in found:
        known = records.setdefault(media, where)
        if isinstance(known, dict):
            known[where] = None
        elif known != where:
            records[media] = {known: None, where: None}
    return records


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while some := list(islice(remaining, TOGETHER)):
        yield some


def _problem(media: Media, refusal: Callable[[int, int], str], *, fully: bool) -> str:
    name = f"has a {NAMES[media.kind]} {media.path or 'in bytes'} that"
    try:
        # large ones take seconds to decode, and their header tells whether they are used
        if media.kind == "image" and (reason := refusal(*media.stated())):
            return f"{name} {reason}"
        if fully:
            media.decode()
        else:
            media.outline()
    except Exception as error:  # decoders raise errors of any type
        return f"{name} can't be decoded: {error}"
    return ""
