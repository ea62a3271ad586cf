"""Finished pictures from files: to imitate, or in pairs of a chosen and a rejected one. Nothing is decoded here."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from burnish.data.flow.prompts import prompt_of
from burnish.data.language.pixels import media_of
from burnish.data.lines import decoded, parse_object, read_lines, told
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError

Holds = Literal["pictures", "pairs"]

# the keys of the pictures of a record, by what a file holds
KEYS: dict[Holds, tuple[tuple[str, ...], ...]] = {
    "pictures": (("image", "picture", "file_name"),),
    "pairs": (("chosen",), ("rejected",)),
}
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
TURNED = (5, 6, 7, 8)  # values of EXIF's orientation that swap height and width
ORIENTATION = 0x0112


@dataclass(frozen=True)
class PictureRecord:
    """A prompt with its finished pictures: one to imitate, or the chosen and the rejected one."""

    prompt: Prompt
    pictures: tuple[Media, ...]
    where: str  # file and line, for complaints

    @cached_property
    def uid(self) -> str:
        content = self.prompt.uid + "".join(media.digest for media in self.pictures)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def read_pictures(path: Path, holds: Holds, *, size: tuple[int | None, int | None] | None) -> list[PictureRecord]:
    """Read records from a .jsonl file, or pictures with captions from a folder.

    A line is an object with a prompt and, under the keys of ``KEYS``, paths (from the file's own folder), base64 or
    data URIs. In a folder every picture has its prompt in a .txt file of the same name.

    Args:
        path: file or folder.
        holds: single pictures or pairs.
        size: height and width that every picture must have, None for any; None as a whole if sizes don't matter.

    Raises:
        UserError: with everything that is wrong, by file and line.
    """
    if path.is_dir() and holds == "pictures":
        found = _from_folder(path)
    elif path.suffix == ".jsonl":
        found = _from_lines(path, holds)
    else:
        wanted = "a .jsonl file or a folder of pictures with .txt captions" if holds == "pictures" else "a .jsonl file"
        raise UserError(f"{path} is no file of {holds}; it must be {wanted}, or .safetensors with latents")
    records: list[PictureRecord] = []
    problems: list[str] = []
    for item in found:
        if isinstance(item, str):
            problems.append(item)
        else:
            records.append(item)
    if size is not None:
        problems += _sizes(records, size)
    if problems:
        raise told(problems)
    if not records:
        raise UserError(f"{path} holds no {holds}; give a folder or a file that does")
    return records


def _from_lines(path: Path, holds: Holds) -> Iterator[PictureRecord | str]:
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        try:
            record = parse_object(decoded(line))
            pictures = tuple(_picture(record, keys, path.parent) for keys in KEYS[holds])
            if len(pictures) == 2 and pictures[0] == pictures[1]:
                raise ValueError("has the same picture as chosen and as rejected")
            yield PictureRecord(prompt_of(record, where), pictures, where)
        except ValueError as error:
            yield f"{where}: {error}"


def _picture(record: Mapping[str, Any], keys: tuple[str, ...], folder: Path) -> Media:
    found = [key for key in keys if record.get(key) is not None]
    if not found:
        raise ValueError(f"has no {keys[0]}; its keys are {', '.join(map(repr, record)) or 'none'}")
    if len(found) > 1:
        raise ValueError(f"has {found[0]!r} and {found[1]!r}, which mean the same; keep one")
    return media_of(record[found[0]], "image", folder)


def _from_folder(path: Path) -> Iterator[PictureRecord | str]:
    for file in sorted(path.rglob("*")):
        if file.suffix.lower() not in SUFFIXES:
            continue
        caption = file.with_suffix(".txt")
        if not caption.is_file():  # a pipe would be waited for
            yield f"{file}: has no prompt beside it; write one into {caption.name}"
            continue
        try:
            text = decoded(caption.read_bytes())
            if not text:
                raise ValueError(f"has an empty prompt in {caption.name}")
            # absolute: a relative path would be taken to start in the folder, and is part of it already
            picture = media_of(str(file.absolute()), "image", path)
            yield PictureRecord(Prompt(text=text, where=str(file)), (picture,), str(file))
        except OSError:
            yield f"{file}: has no prompt beside it; write one into {caption.name}"
        except ValueError as error:
            yield f"{file}: {error}"


def _sizes(records: list[PictureRecord], size: tuple[int | None, int | None]) -> Iterator[str]:
    """What is wrong with the sizes of pictures; where none is asked for, the commonest is the measure."""
    measured = [(record.where, size_of(media)) for record in records for media in record.pictures]
    common = Counter(got for _, got in measured).most_common(1)[0][0] if measured else (0, 0)
    wanted = tuple(side or usual for side, usual in zip(size, common, strict=True))
    asked = "rollout.height x width" if None not in size else "most others"
    for where, got in measured:
        if got != wanted:
            yield (
                f"{where}: has a picture of {got[0]} x {got[1]} pixels (height x width), but {asked} "
                f"is {wanted[0]} x {wanted[1]}; resize it, or let fit=centre_crop do it"
            )


def size_of(media: Media) -> tuple[int, int]:
    """Height and width of a picture, upright, by its header alone."""
    from PIL import Image

    with Image.open(io.BytesIO(media.read())) as opened:
        width, height = opened.size
        return (width, height) if opened.getexif().get(ORIENTATION) in TURNED else (height, width)
