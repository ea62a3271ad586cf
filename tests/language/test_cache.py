"""The decoder's cache takes the memory that its rows use, and moves no more than it must."""

from __future__ import annotations

import pytest
import torch

from burnish.language import cache as module
from burnish.language.cache import Cache

LAYERS, PAIRS, WIDTH = 3, 2, 4


def made(rows=8, longest=400):
    return Cache(
        layers=LAYERS, rows=rows, pairs=PAIRS, longest=longest, width=WIDTH, dtype=torch.float32,
        device=torch.device("cpu"),
    )  # fmt: skip


def prompt(length, number):
    """Keys and values that tell whose they are, and which column."""
    return (
        (number + torch.arange(length) / 1000)
        .expand(LAYERS, 2, PAIRS, length)[..., None]
        .expand(LAYERS, 2, PAIRS, length, WIDTH)
    )


def size(cache):
    return sum(layer.numel() for layer in cache.memory)


def step(cache, value):
    cache.advance()
    for keys, values in cache.window():
        keys[:, -1] = value
        values[:, -1] = value


def rows_of(cache):
    """What every row sees, without its own padding."""
    seen = cache.window()[1][0].view(len(cache.begin), PAIRS, -1, WIDTH)[:, 1, :, 0]
    return [row[begin - cache.first :].tolist() for row, begin in zip(seen, cache.begin, strict=True)]


def test_memory_grows_with_what_is_generated():
    cache = made()
    cache.enter([(prompt(20, 1), 4), (prompt(9, 2), 4)])
    started = size(cache)
    for _ in range(30):
        step(cache, 5.0)
    assert size(cache) == started, "a block had room"
    for _ in range(100):
        step(cache, 6.0)
    assert cache.columns <= 1.25 * 150 + module.BLOCK
    assert size(cache) < 0.5 * LAYERS * 2 * 8 * PAIRS * cache.limit * WIDTH
    for row, (length, number) in zip(rows_of(cache), [(20, 1)] * 4 + [(9, 2)] * 4, strict=True):
        assert row == pytest.approx([number + column / 1000 for column in range(length)] + [5.0] * 30 + [6.0] * 100)


def test_it_grows_only_for_rows_that_are_still_to_come():
    cache = made()
    cache.enter([(prompt(20, row), 1) for row in range(8)])
    step(cache, 9.0)
    cache.keep([2, 5], waiting=1)
    assert rows_of(cache) == [pytest.approx([row + c / 1000 for c in range(20)] + [9.0]) for row in (2, 5)]
    for _ in range(100):
        step(cache, 9.0)
    assert [layer.shape[1] for layer in cache.memory] == [3 * PAIRS] * LAYERS


def test_rows_that_stay_are_not_copied(monkeypatch):
    cache = made()
    cache.enter([(prompt(20, row), 1) for row in range(8)])
    copied = []
    select = torch.Tensor.index_select
    monkeypatch.setattr(
        torch.Tensor, "index_select", lambda *given: copied.append(select(*given).numel()) or select(*given)
    )
    step(cache, 9.0)
    cache.keep([0, 1, 2, 3, 4, 6])
    assert copied[:LAYERS] == [2 * PAIRS * 21 * WIDTH] * LAYERS, "one row of one layer at a time"
    cache.keep([0, 1, 2])
    assert len(copied) == LAYERS + 1
    assert [row[0] for row in rows_of(cache)] == [0, 1, 2]


def test_rows_that_come_and_go_need_no_more_than_the_longest(monkeypatch):
    monkeypatch.setattr(module, "SLACK", 2)
    cache = made(rows=3, longest=30)
    cache.enter([(prompt(5, 1), 1), (prompt(7, 2), 1)])
    for turn in range(60):
        step(cache, 9.0)
        if turn % 10 == 9:
            cache.keep([1], waiting=2)
            cache.enter([(prompt(3 + turn % 4, turn), 1)])
    assert cache.columns <= cache.limit == 33
    assert [row[0] for row in rows_of(cache)] == [49, 59][-len(cache.begin) :]
