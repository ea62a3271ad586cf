"""Pictures of a data set from files: single ones, or pairs of a chosen and a rejected one. Nothing is decoded here."""

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
from burnish.data.lines import decoded, parse_object, read_all, read_lines
from burnish.data.values import find, listed
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError

Holds = Literal["pictures", "pairs"]

# keys of a record's pictures, by what the file holds
KEYS: dict[Holds, tuple[tuple[str, ...], ...]] = {
    "pictures": (("image", "picture", "file_name"),),
    "pairs": (("chosen",), ("rejected",)),
}
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
ORIENTATION = 0x0112  # EXIF tag
ROTATED = (5, 6, 7, 8)  # its values that swap height and width


@dataclass(frozen=True)
class PictureRecord:
    """A prompt with its picture, or with the chosen and the rejected one."""

    prompt: Prompt
    pictures: tuple[Media, ...]
    where: str  # file and line, for error messages

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
        size: height and width that every picture must have; None for a side takes that of most pictures, and None
            for both in place of a pair checks nothing.

    Raises:
        UserError: with everything that is wrong, by file and line.
    """

    def check(records: list[PictureRecord]) -> Iterator[str]:
        return iter(()) if size is None else _wrong_sizes(records, size)

    if path.is_dir() and holds == "pictures":
        files = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in SUFFIXES]
        records = read_all(((str(file), file) for file in files), _captioned, check)
    elif path.suffix == ".jsonl":
        records = read_all(read_lines(path), lambda where, line: [_record(where, line, holds, path.parent)], check)
    else:
        wanted = "a .jsonl file or a folder of pictures with .txt captions" if holds == "pictures" else "a .jsonl file"
        raise UserError(f"{path} can't be read as {holds}; give {wanted}, or .safetensors with latents")
    if not records:
        raise UserError(f"{path} holds no {holds}; give a folder or a file that does")
    return records


def _record(where: str, line: bytes, holds: Holds, folder: Path) -> PictureRecord:
    record = parse_object(decoded(line))
    pictures = tuple(_picture(record, keys, folder) for keys in KEYS[holds])
    if len(pictures) == 2 and pictures[0] == pictures[1]:
        raise ValueError("has the same picture as chosen and as rejected")
    return PictureRecord(prompt_of(record, where), pictures, where)


def _picture(record: Mapping[str, Any], keys: tuple[str, ...], folder: Path) -> Media:
    key, value = find(record, keys)
    if not key:
        raise ValueError(f"has no {keys[0]}; {listed(record)}")
    return media_of(value, "image", folder)


def _captioned(where: str, file: Path) -> Iterator[PictureRecord]:
    caption = file.with_suffix(".txt")
    missing = f"has no caption; write its prompt into {caption.name} in the same folder"
    if not caption.is_file():  # reading a pipe would never end
        raise ValueError(missing)
    try:
        text = decoded(caption.read_bytes())
        if not text:
            raise ValueError(f"has an empty prompt in {caption.name}")
        # absolute, because relative paths are resolved against the folder, which is part of this one already
        picture = media_of(str(file.absolute()), "image", file.parent)
    except OSError:
        raise ValueError(missing) from None
    yield PictureRecord(Prompt(text=text, where=where), (picture,), where)


def _wrong_sizes(records: list[PictureRecord], size: tuple[int | None, int | None]) -> Iterator[str]:
    """Pictures of the wrong size; a side that is None must be that of most pictures."""
    measured = [(record.where, size_of(media)) for record in records for media in record.pictures]
    common = Counter(got for _, got in measured).most_common(1)[0][0] if measured else (0, 0)
    wanted = tuple(side or usual for side, usual in zip(size, common, strict=True))
    source = "rollout.height x width" if None not in size else "the size of most others"
    for where, got in measured:
        if got != wanted:
            yield (
                f"{where}: has a picture of {got[0]} x {got[1]} pixels (height x width), but {source} "
                f"is {wanted[0]} x {wanted[1]}; resize it, or set fit=centre_crop beside train_files"
            )


def size_of(media: Media) -> tuple[int, int]:
    """Height and width of a picture after its EXIF rotation, by its header alone."""
    from PIL import Image

    with Image.open(io.BytesIO(media.read())) as opened:
        width, height = opened.size
        return (width, height) if opened.getexif().get(ORIENTATION) in ROTATED else (height, width)
