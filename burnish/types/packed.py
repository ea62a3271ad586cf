"""The prompts of a data set: those of text alone as bytes, so that a run may hold millions."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from operator import attrgetter, eq
from typing import Any, overload

from burnish.types.prompt import Prompt, uid_of_text

# what a prompt of text alone has; the first six are its content
FIELDS = ("text", "negative", "answer", "source", "label", "extra", "record", "conversational", "where", "part")
Row = bytes | Prompt
_values = attrgetter(*FIELDS)


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
        return Prompts(self.rows[index]) if isinstance(index, slice) else _prompt(self.rows[index])

    def __iter__(self) -> Iterator[Prompt]:
        return map(_prompt, self.rows)

    def __add__(self, other: Prompts) -> Prompts:
        return Prompts([*self.rows, *other.rows])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def take(self, places: Iterable[int]) -> Prompts:
        """Those at these places."""
        return Prompts([self.rows[place] for place in places])

    @cached_property
    def kinds(self) -> list[Prompt]:
        """Prompts that checks of media, messages, labels and sources need to see: all but those of text alone, and of
        those the first of each kind."""
        first: dict[Any, Row] = {}
        for row in self.rows:
            if isinstance(row, bytes):
                _, negative, answer, source, label, *_ = marshal.loads(row)
                first.setdefault((bool(negative), answer is None, source, label), row)
            else:
                first[id(row)] = row
        return [_prompt(row) for row in first.values()]

    def uids(self) -> Iterator[str]:
        """The uid of each."""
        for row in self.rows:
            if isinstance(row, bytes):
                text, negative, answer, source, label, extra, *_ = marshal.loads(row)
                if not label and not extra:
                    yield uid_of_text(text, negative, answer, source)
                    continue
            yield _prompt(row).uid

    def longer(self, size: int) -> Iterator[Prompt]:
        """Those that may have more than ``size`` bytes, and those that show or play something."""
        return (_prompt(row) for row in self.rows if not isinstance(row, bytes) or len(row) > size)


def packed(prompt: Prompt) -> Row:
    """A prompt as bytes, if it is text alone."""
    if prompt.messages or prompt.images or prompt.videos or prompt.audios or prompt.inputs or prompt.tools:
        return prompt
    return marshal.dumps(_values(prompt))


def _prompt(row: Row) -> Prompt:
    return Prompt(**dict(zip(FIELDS, marshal.loads(row), strict=True))) if isinstance(row, bytes) else row
