"""One thread makes what another one uses, and neither waits for the other for ever."""

import threading

import pytest

from burnish.runtime.hand_over import handed_over

LIMIT = 20.0  # seconds


def test_all_come_in_order():
    used = []
    handed_over(iter(range(50)), used.append)
    assert used == list(range(50))


def test_the_next_is_made_while_one_is_used_and_no_more_than_two_wait():
    making, made, highest, used = threading.Event(), [], [], []

    def make():
        for number in range(6):
            made.append(number)
            if number == 1:
                making.set()
            yield number

    def use(number):
        assert making.wait(LIMIT), "the second was not made while the first was used"
        used.append(number)
        highest.append(len(made) - len(used))

    handed_over(make(), use)
    assert max(highest) <= 2
    assert used == list(range(6))


@pytest.mark.parametrize("side", ["making", "using"])
def test_an_error_of_either_side_ends_both(side):
    def make():
        yield 1
        yield 2
        if side == "making":
            raise ZeroDivisionError
        yield from range(100)

    def use(number):
        if side == "using" and number == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handed_over(make(), use)
    assert not [one for one in threading.enumerate() if one.name == "hand over"]
