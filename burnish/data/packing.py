"""Prompts of records as bytes. Records that have the same keys, with text and numbers alone, are read alike."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from burnish.data.records import Record
from burnish.data.values import text_of
from burnish.types.prompt import FIELDS, PLACES, Prompt, Row, packed, unpacked, values_of
from burnish.utils.json_text import parse_json

# a value of each type that a plain record may have, which no other key of it has
PROBES: dict[type, Callable[[int], Any]] = {
    str: "value {}".format, int: (1000).__add__, float: (0.5).__add__, type(None): lambda place: None,
}  # fmt: skip
MOST = 1000  # sets of keys that are told apart
USUAL = values_of(Prompt(text=""))  # what ``Prompts`` keeps of one, where its record says nothing else
TEXT, RECORD, WHERE, PART = map(FIELDS.index, ("text", "record", "where", "part"))


class Packer:
    """Makes rows of ``Prompts`` of records.

    A run may hold millions of records. What ``read`` makes of those of the same keys and types is found once, from a
    record whose values are all different; the others take a fifth of the time.
    """

    def __init__(self, read: Callable[[Record], Prompt], *, by_text: bool) -> None:
        """Args: ``by_text`` tells that how ``read`` reads a record depends on its texts, as with a template."""
        self.read, self._most = read, 0 if by_text else MOST
        self._plain: dict[Any, _Plain | None] = {}

    def __call__(self, record: Record) -> list[Row]:
        """The prompt of a record.

        Raises:
            ValueError: as ``read``.
        """
        values = record.values
        shape = tuple(values), tuple(map(type, values.values()))
        try:
            plain = self._plain[shape]
        except KeyError:
            if len(self._plain) == self._most:
                return [packed(self.read(record))]
            plain = self._plain[shape] = _plain(self.read, record)
        # an empty text may be none at all, and "<image>" stands for an image
        if plain is None or "" in values.values() or "<" in (text := values[plain.text]) or text.isspace():
            return [packed(self.read(record))]
        return [plain.packed(record)]


@dataclass(frozen=True, slots=True)
class _Plain:
    """Under which keys records have what a prompt has."""

    text: str
    keys: tuple[tuple[int, str], ...]  # places in what ``Prompts`` keeps of one, and the keys whose values are there
    own: tuple[str, ...]  # keys that only rewards read

    def packed(self, record: Record) -> bytes:
        """A record's prompt.

        Raises:
            ValueError: a text can't be encoded as UTF-8, or a number is not finite.
        """
        values, row = record.values, [*USUAL]
        for place, key in self.keys:
            value = values[key]
            plain = type(value) is str and value.isascii()
            row[place] = value if plain else text_of(value, key, numbers=True)
        if self.own:
            row[RECORD] = {key: values[key] for key in self.own}
        before = record.where.rstrip("0123456789")
        row[WHERE], row[PART] = int(record.where[len(before) :]), _place(before, record.part)
        return bytes(memoryview(marshal.dumps(row)))  # a copy without the room that marshal had taken


@cache
def _place(before: str, part: int) -> int:
    """Where ``PLACES`` has the beginning of what tells where records are, so that a million rows don't repeat it."""
    PLACES.append((before, part))
    return len(PLACES) - 1


def _plain(read: Callable[[Record], Prompt], record: Record) -> _Plain | None:
    """How records of these keys and types are read; None where each has to be read by itself."""
    if not all(type(value) in PROBES for value in record.values.values()):
        return None
    probe = {key: PROBES[type(value)](place) for place, (key, value) in enumerate(record.values.items())}
    probed = replace(record, values=probe)
    try:
        prompt = read(probed)
    except ValueError:
        return None
    keys_of = {str(value): key for key, value in probe.items() if value is not None}
    said = enumerate(map(str, values_of(prompt)[:RECORD]))
    keys = {place: keys_of[value] for place, value in said if value in keys_of}
    own = tuple(parse_json(prompt.record)) if prompt.record else ()
    if TEXT not in keys or not set(own) <= set(probe):
        return None
    plain = _Plain(keys[TEXT], tuple(keys.items()), own)
    return plain if repr(unpacked(plain.packed(probed))) == repr(prompt) else None
