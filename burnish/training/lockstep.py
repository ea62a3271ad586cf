"""Ranks that run a network together while they sample: all make the same forwards, or all of them stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from burnish.training.ranks import Ranks
from burnish.utils.errors import Cancelled


class Lockstep:
    """The work of the ranks of a context group on the same samples; entered once.

    Before each forward they agree whether to go on. One that leaves by an error agrees once more, which cancels the
    others; one that fails within a forward can't, and whoever leads the ranks has to end them, as in an update.
    """

    def __init__(self, ranks: Ranks) -> None:
        """Args: ``ranks`` of the group; a rank alone has nobody to agree with."""
        self._ranks, self._waited_for = ranks, ranks.size > 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._waited_for and self._stopped(kind is not None) and kind is None:
            raise Cancelled

    @contextmanager
    def forward(self, check_cancelled: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Around what runs the network.

        Args:
            check_cancelled: called before; what it raises, as Cancelled, ends the work of all ranks.
        """
        if self._ranks.size == 1:
            check_cancelled()
            yield
            return
        try:
            check_cancelled()
        except Cancelled:
            self._stopped(True)
            raise
        if self._stopped(False):
            raise Cancelled
        yield
        self._waited_for = True

    def _stopped(self, here: bool) -> bool:
        """Whether one of the ranks stops, as this one does or not."""
        self._waited_for = False
        return bool(self._ranks.max(int(here)))
