"""Philox as published, and numbers that depend on nothing but their key and place."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.language.sampling import philox, uniforms
from burnish.utils import random

# the known answers that come with Random123: counter, key, result
ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return tuple(np.array([int(word, 16)], dtype=np.uint64) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "answer"), ANSWERS)
def test_philox_gives_the_published_answers(counter, key, answer):
    assert [int(word[0]) for word in philox(words(key), words(counter))] == [int(w[0]) for w in words(answer)]


def test_a_number_depends_on_its_key_and_place_alone():
    keys = [random.key(0, "rollout", k) for k in range(5)]
    table = uniforms(keys, 9)
    assert (uniforms(keys[3:4], 9) == table[3:4]).all()
    assert (uniforms(keys[::-1], 7) == table[::-1, :7]).all()
    assert len(np.unique(table)) == table.size


def test_numbers_are_uniform():
    table = uniforms([random.key(k) for k in range(200)], 200)
    assert table.min() >= 0
    assert table.max() < 1
    assert abs(table.mean() - 0.5) < 0.005
    assert abs(table.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(table[:, :-1].ravel(), table[:, 1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]) < 0.02
