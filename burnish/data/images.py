"""Images and clips of a data set from files: single ones, pairs of a chosen and a rejected one, or some with scores.

Nothing is decoded here.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

from burnish.data.pixels import media_of
from burnish.data.prompts import IMAGES, TEXT, prompt_of
from burnish.data.records import Record, read_files, read_records
from burnish.data.scored import scores_in
from burnish.data.values import find, listed
from burnish.options.data import PromptOptions
from burnish.types.media import Media
from burnish.types.prompt import Prompt

Holds = Literal["images", "pairs", "scored"]

# keys of a record's images, by what the file holds
KEYS: dict[Holds, tuple[tuple[str, ...], ...]] = {
    "images": (("image", "picture", "file_name", "chosen"),),
    "pairs": (("chosen",), ("rejected",)),
    "scored": (("image", "picture", "file_name"),),
}
MOVING = (".mp4", ".webm", ".mov", ".mkv", ".avi")
# usual keys of the images that a prompt begins from
BEGINNING: dict[Holds, tuple[str, ...]] = {"images": ("images",), "pairs": IMAGES, "scored": ("images",)}


@dataclass(frozen=True)
class ImageRecord:
    """A prompt with its image, or with the chosen and the rejected one."""

    prompt: Prompt
    images: tuple[Media, ...]
    where: str  # file and line, for error messages
    scores: tuple[float, ...] = ()  # of an image with scores; NaN where one is missing

    @cached_property
    def uid(self) -> str:
        content = self.prompt.uid + "".join(media.digest for media in self.images)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def read_images(
    files: str | Sequence[str],
    holds: Holds,
    *,
    size: tuple[int | None, int | None] | None,
    keys: PromptOptions,
    scores: Mapping[str, float] | None = None,
) -> list[ImageRecord]:
    """Read records from files, or images with captions from a folder.

    A record has a prompt and, under the keys of ``KEYS``, its images. In a folder every image has its prompt in a
    .txt file of the same name.

    Args:
        files: as prompts have them, but .txt.
        holds: single images, pairs, or images with scores.
        size: height and width that every image must have; None for a side takes that of most images, and None
            for both in place of a pair checks nothing.
        keys: under which records have their prompts.
        scores: data.scores, which records have beside the image.

    Raises:
        UserError: with everything that is wrong, by file and record.
    """

    def read(record: Record) -> list[ImageRecord]:
        images = tuple(image_at(record, usual) for usual in KEYS[holds])
        if len(images) == 2 and images[0] == images[1]:
            raise ValueError("has the same image as chosen and as rejected")
        # ``image`` is the finished image of a single one; what a prompt begins from is ``images`` there
        prompt = prompt_of(record, keys, images=BEGINNING[holds])
        return [ImageRecord(prompt, images, record.where, scores_in(record, scores or {}))]

    image = KEYS[holds][0][0] if holds == "images" else None
    records = partial(read_records, prompt=keys.prompt_key or TEXT[0], image=image)
    check = (lambda found: ()) if size is None else partial(_wrong_sizes, size=size)
    return read_files(files, read, records, check, media_folder=keys.media_folder)


def image_at(record: Record, usual: tuple[str, ...]) -> Media:
    """The image, or the clip, under one of some keys.

    Raises:
        ValueError: there is none.
    """
    key, value = find(record.values, usual)
    if not key:
        raise ValueError(f"has no {usual[0]}; {listed(record.values)}")
    return media_of(value, "video" if is_clip(value) else "image", record.folder)


def is_clip(value: Any) -> bool:
    """Whether the value of a record is a video, as a file or frame by frame."""
    held = isinstance(value, Mapping) and any(name in value for name in ("frames", "video"))
    several = isinstance(value, list | tuple) and value and isinstance(value[0], str | Mapping)  # else pixels
    path = value.get("path") if isinstance(value, Mapping) else value
    return bool(held or several or (isinstance(path, str) and path.lower().endswith(MOVING)))


def _wrong_sizes(records: list[ImageRecord], size: tuple[int | None, int | None]) -> Iterator[str]:
    """Images of the wrong size; a side that is None must be that of most images. Clips are measured as encoded."""
    every = [(record.where, media) for record in records for media in record.images if media.kind == "image"]
    measured = [(where, media.size()[::-1]) for where, media in every]
    common = Counter(got for _, got in measured).most_common(1)[0][0] if measured else (0, 0)
    wanted = tuple(side or usual for side, usual in zip(size, common, strict=True))
    source = "rollout.height x width" if None not in size else "the size of most others"
    for where, got in measured:
        if got != wanted:
            yield (
                f"{where}: has an image of {got[0]} x {got[1]} pixels (height x width), but {source} "
                f"is {wanted[0]} x {wanted[1]}; resize it, or set fit=centre_crop beside train_files"
            )
