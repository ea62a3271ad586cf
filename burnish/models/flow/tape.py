"""What a prompt's encoders returned, in the CPU's memory: what comes before a pipeline's loop is always the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from burnish.types.batch import to_device


class Tape:
    """Results in the order of the calls.

    What is drawn for them comes from generators of their own, so that the noise of a sample doesn't depend on what is
    recorded.
    """

    def __init__(self, seed: int) -> None:
        self.bytes = 0
        self._results: list[tuple[list[Any], Any]] = []  # leaves, tensors with the device where they belong; and tree
        self._seed, self._drawn = seed, 0

    def __len__(self) -> int:
        return len(self._results)

    def leaves(self, count: int) -> list[Any]:
        """What is in the first results, tensors on their devices."""
        return [leaf for leaves, _ in self._results[:count] for leaf in _there(leaves)]

    def answering(
        self, paused: Callable[[], AbstractContextManager[Any]], answer: Callable[[Any], Any]
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """What makes functions answer from the tape in one run, and record where it ends.

        Args:
            paused: to be entered while they run.
            answer: is given each result, and returns it.
        """
        count, inside = 0, False

        def answers(function: Callable[..., Any]) -> Callable[..., Any]:
            def answered(*args: Any, **kwargs: Any) -> Any:
                nonlocal count, inside
                if inside:  # called by another recorded function
                    return function(*args, **kwargs)
                with paused():
                    if count == len(self._results):
                        inside = True
                        try:
                            self._record(function, *tree_map_only(torch.Generator, self._generator, (args, kwargs)))
                        finally:
                            inside = False
                    leaves, tree = self._results[count]
                    count += 1
                    return answer(tree_unflatten(_there(leaves), tree))

            return functools.wraps(function)(answered)

        return answers

    def _generator(self, given: torch.Generator) -> torch.Generator:
        self._drawn += 1  # not the place on the tape, which depends on guidance
        return torch.Generator().manual_seed(self._seed + self._drawn)

    def _record(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        leaves, tree = tree_flatten(function(*args, **kwargs))
        self._results.append(([(x.to("cpu"), x.device) if isinstance(x, Tensor) else x for x in leaves], tree))
        self.bytes += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))


def _there(leaves: list[Any]) -> list[Any]:
    """Tensors on the device where they belong; all else as it is."""
    return [to_device(*leaf) if isinstance(leaf, tuple) else leaf for leaf in leaves]
