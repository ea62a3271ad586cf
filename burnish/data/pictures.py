"""Pictures of a data set from files: single ones, pairs of a chosen and a rejected one, or pictures with rewards.

Nothing is decoded here.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from burnish.data.pixels import media_of
from burnish.data.prompts import IMAGES, captioned, is_captioned, prompt_of
from burnish.data.records import SUFFIXES, Record, read_files, read_records
from burnish.data.values import find, listed, number_of
from burnish.options.data import PromptOptions
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError

Holds = Literal["pictures", "pairs", "scored"]

# keys of a record's pictures, by what the file holds
KEYS: dict[Holds, tuple[tuple[str, ...], ...]] = {
    "pictures": (("image", "picture", "file_name", "chosen"),),
    "pairs": (("chosen",), ("rejected",)),
    "scored": (("image", "picture", "file_name"),),
}
REWARDS = ("reward", "score")  # keys of what a picture earned
# usual keys of the pictures that a prompt begins from
BEGINNING: dict[Holds, tuple[str, ...]] = {"pictures": ("images",), "pairs": IMAGES, "scored": ("images",)}


@dataclass(frozen=True)
class PictureRecord:
    """A prompt with its picture, or with the chosen and the rejected one."""

    prompt: Prompt
    pictures: tuple[Media, ...]
    where: str  # file and line, for error messages
    reward: float = math.nan  # of a picture with a reward; NaN where it is missing

    @cached_property
    def uid(self) -> str:
        content = self.prompt.uid + "".join(media.digest for media in self.pictures)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class ScoredGroup:
    """Pictures of one prompt, each with its reward."""

    members: tuple[PictureRecord, ...]
    first: int = 0  # number of the first of them among the samples of the prompt in an update

    @property
    def prompt(self) -> Prompt:
        return self.members[0].prompt

    @property
    def pictures(self) -> tuple[Media, ...]:
        return tuple(media for member in self.members for media in member.pictures)

    @property
    def where(self) -> str:
        return self.members[0].where

    @property
    def uid(self) -> str:
        return self.prompt.uid


def scored_groups(records: Sequence[PictureRecord]) -> list[ScoredGroup]:
    """Pictures with a reward, by their prompts, in order."""
    members: dict[str, list[PictureRecord]] = {}
    for record in records:
        if not math.isnan(record.reward):
            members.setdefault(record.prompt.uid, []).append(record)
    return [ScoredGroup(tuple(some)) for some in members.values()]


def read_pictures(
    files: str | Sequence[str], holds: Holds, *, size: tuple[int | None, int | None] | None, keys: PromptOptions
) -> list[PictureRecord]:
    """Read records from files, or pictures with captions from a folder.

    A record has a prompt and, under the keys of ``KEYS``, its pictures. In a folder every picture has its prompt in a
    .txt file of the same name.

    Args:
        files: as prompts have them, but .txt.
        holds: single pictures, pairs, or pictures with rewards; a reward that is null is missing.
        size: height and width that every picture must have; None for a side takes that of most pictures, and None
            for both in place of a pair checks nothing.
        keys: under which records have their prompts.

    Raises:
        UserError: with everything that is wrong, by file and record.
    """

    def read(record: Record) -> list[PictureRecord]:
        pictures = tuple(picture_at(record, usual) for usual in KEYS[holds])
        if len(pictures) == 2 and pictures[0] == pictures[1]:
            raise ValueError("has the same picture as chosen and as rejected")
        # ``image`` is the finished picture of a single one; what a prompt begins from is ``images`` there
        prompt = prompt_of(record, keys, images=BEGINNING[holds])
        return [PictureRecord(prompt, pictures, record.where, reward_of(record) if holds == "scored" else math.nan)]

    def records(path: Path) -> Iterator[Record]:
        if is_captioned(path) and holds == "pictures":
            yield from captioned(path, keys.prompt_key or "prompt", KEYS[holds][0][0])
        elif is_captioned(path) or (path.exists() and not path.is_dir() and path.suffix not in SUFFIXES):
            folder = " a folder of pictures with .txt captions," if holds == "pictures" else ""
            what = "pictures with rewards" if holds == "scored" else holds
            ways = f"{', '.join(SUFFIXES)},{folder} or a folder with metadata.jsonl"
            raise UserError(f"{path} can't be read as {what}; give {ways}")
        else:
            yield from read_records(path)

    def check(found: list[PictureRecord]) -> Iterable[str]:
        return () if size is None else _wrong_sizes(found, size)

    return read_files(files, read, records, check, media_folder=keys.media_folder)


def picture_at(record: Record, usual: tuple[str, ...]) -> Media:
    """The picture under one of some keys.

    Raises:
        ValueError: there is none.
    """
    key, value = find(record.values, usual)
    if not key:
        raise ValueError(f"has no {usual[0]}; {listed(record.values)}")
    return media_of(value, "image", record.folder)


def reward_of(record: Record) -> float:
    """What the picture of a record earned; NaN where it is null.

    Raises:
        ValueError: it has none, or no number.
    """
    key, value = find(record.values, REWARDS)
    if key:
        return number_of(value, key)
    if not any(name in record.values for name in REWARDS):
        raise ValueError(f"has no reward; {listed(record.values)}")
    return math.nan


def _wrong_sizes(records: list[PictureRecord], size: tuple[int | None, int | None]) -> Iterator[str]:
    """Pictures of the wrong size; a side that is None must be that of most pictures."""
    measured = [(record.where, media.size()[::-1]) for record in records for media in record.pictures]
    common = Counter(got for _, got in measured).most_common(1)[0][0] if measured else (0, 0)
    wanted = tuple(side or usual for side, usual in zip(size, common, strict=True))
    source = "rollout.height x width" if None not in size else "the size of most others"
    for where, got in measured:
        if got != wanted:
            yield (
                f"{where}: has a picture of {got[0]} x {got[1]} pixels (height x width), but {source} "
                f"is {wanted[0]} x {wanted[1]}; resize it, or set fit=centre_crop beside train_files"
            )
