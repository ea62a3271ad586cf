"""The prompts of a data set: those of text alone as bytes, so that a run may hold millions."""

from __future__ import annotations

import json
import marshal
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from operator import attrgetter, eq
from typing import Any, overload

from burnish.types.prompt import Prompt, uid_of_text

# what a prompt of text alone has; the first six are its content, and the record is JSON, or what that is made of
FIELDS = ("text", "negative", "answer", "source", "label", "extra", "record", "conversational", "where", "part")
Row = bytes | Prompt
_JSON = json.JSONEncoder(sort_keys=True)
values_of = attrgetter(*FIELDS)


class Prompts(Sequence[Prompt]):
    """Prompts in order. One of text alone is made anew each time that it is asked for."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Args: ``rows`` are the prompts as ``packed`` returns them."""
        self.rows = rows

    @classmethod
    def of(cls, prompts: Iterable[Prompt]) -> Prompts:
        return prompts if isinstance(prompts, Prompts) else cls([packed(prompt) for prompt in prompts])

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...

    @overload
    def __getitem__(self, index: slice) -> Prompts: ...

    def __getitem__(self, index: int | slice) -> Prompt | Prompts:
        return Prompts(self.rows[index]) if isinstance(index, slice) else unpacked(self.rows[index])

    def __iter__(self) -> Iterator[Prompt]:
        return map(unpacked, self.rows)

    def __add__(self, other: Prompts) -> Prompts:
        joined = Prompts([*self.rows, *other.rows])
        joined._kinds = self._kinds | {kind: row for kind, row in other._kinds.items() if kind not in self._kinds}
        return joined

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def take(self, places: Iterable[int]) -> Prompts:
        """Those at these places."""
        return Prompts([self.rows[place] for place in places])

    @property
    def kinds(self) -> list[Prompt]:
        """Prompts that checks of media, messages, labels, sources and missing answers need to see: all but those of
        text alone, and of those the first of each kind."""
        return [unpacked(row) for row in self._kinds.values()]

    @cached_property
    def _kinds(self) -> dict[Any, Row]:
        first: dict[Any, Row] = {}
        for row in self.rows:
            if isinstance(row, bytes):
                _, negative, answer, source, label, *_ = marshal.loads(row)
                answered = None if answer is None else bool(answer.strip())
                first.setdefault((bool(negative), answered, source, label), row)
            else:
                first[id(row)] = row
        return first

    def uids(self) -> Iterator[str]:
        """The uid of each."""
        for row in self.rows:
            if isinstance(row, bytes):
                text, negative, answer, source, label, extra, *_ = marshal.loads(row)
                if not label and not extra:
                    yield uid_of_text(text, negative, answer, source)
                    continue
            yield unpacked(row).uid

    def longer(self, size: int) -> Iterator[Prompt]:
        """Those that may have more than ``size`` bytes, and those that show or play something."""
        return (unpacked(row) for row in self.rows if not isinstance(row, bytes) or len(row) > size)


def texts_of(prompts: Sequence[Prompt]) -> Iterator[str]:
    """The text of each, and the negative prompt where there is one."""
    for row in prompts.rows if isinstance(prompts, Prompts) else prompts:
        text, negative = marshal.loads(row)[:2] if isinstance(row, bytes) else (row.text, row.negative)
        yield text
        if negative:
            yield negative


def kinds_of(prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """Those of them that ``Prompts.kinds`` names."""
    return prompts.kinds if isinstance(prompts, Prompts) else prompts


def packed(prompt: Prompt) -> Row:
    """A prompt as bytes, if it is text alone."""
    if prompt.messages or prompt.images or prompt.videos or prompt.audios or prompt.inputs or prompt.tools:
        return prompt
    return marshal.dumps(values_of(prompt))


def unpacked(row: Row) -> Prompt:
    """The prompt of a row."""
    if not isinstance(row, bytes):
        return row
    values = dict(zip(FIELDS, marshal.loads(row), strict=True))
    if isinstance(values["record"], dict):
        values["record"] = _JSON.encode(values["record"])
    return Prompt(**values)
