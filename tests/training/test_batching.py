"""The order in which the samples of an update are learned."""

from __future__ import annotations

import pytest

from burnish.options import StepOptions
from burnish.training.batching import learned_rows, mini_batches
from burnish.training.ranks import SINGLE_RANK
from tests.support.forward_batches import given

UIDS = "abcdefg"


def minis(update: int = 1, **options) -> list[str]:
    return ["".join(mini.uid) for mini in mini_batches(given(1, UIDS), StepOptions(**options), 0, update)]


def test_samples_may_be_learned_in_their_order():
    assert minis(mini_batch_size=3, epochs=2, shuffle=False) == ["abc", "def", "g"] * 2
    assert learned_rows([1] * 7, StepOptions(mini_batch_size=3, shuffle=False), 0, 1, SINGLE_RANK) == list(range(7))


def test_every_pass_draws_an_order_of_its_own():
    passes = [minis(update, mini_batch_size=3, epochs=2)[start : start + 3] for update in (1, 2) for start in (0, 3)]
    orders = {"".join(each) for each in passes}
    assert len(orders) == 4
    assert {"".join(sorted(order)) for order in orders} == {UIDS}


@pytest.mark.parametrize("shuffle", [False, True])
def test_one_mini_batch_is_the_update_as_it_is(shuffle):
    assert minis(shuffle=shuffle) == [UIDS]
