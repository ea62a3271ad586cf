"""Lists of data in shares, and a part of them."""

from collections import Counter

import pytest

from burnish.data.order import limited
from burnish.data.stream import PromptStream
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError

SIZES = (5, 3, 20)


def stream(weights=(2.0, 1.0, 1.0), sizes=SIZES, batch=4, seed=0, shuffle=True):
    prompts = [Prompt(text=f"{part}-{i}", part=part) for part, size in enumerate(sizes) for i in range(size)]
    return PromptStream(prompts, batch, seed=seed, shuffle=shuffle, mix=([one.part for one in prompts], weights))


def texts(found, batches):
    return [prompt.text for _ in range(batches) for prompt in found.next_batch()]


@pytest.mark.parametrize("weights", [(2.0, 1.0, 1.0), (0.1, 0.2, 0.7), (5.0, 1e-3, 1.0)])
def test_every_stretch_has_the_shares(weights):
    found = texts(stream(weights), 100)
    for length in (4, 16, 100, 400):
        counts = Counter(int(text[0]) for text in found[:length])
        for part, weight in enumerate(weights):
            assert abs(counts[part] - length * weight / sum(weights)) <= 1.0001


def test_every_list_has_an_order_and_epochs_of_its_own():
    found = [text for text in texts(stream(), 40) if text[0] == "0"]
    for start in range(0, 40, 5):
        assert sorted(found[start : start + 5]) == [f"0-{i}" for i in range(5)]
    assert found[:5] != found[5:10]
    alone = [text for text in texts(stream((2.0, 1.0), SIZES[:2]), 40) if text[0] == "0"]
    assert alone[:20] == found[:20], "another list changes nothing about the order of this one"
    plain = [text for text in texts(stream(shuffle=False), 20) if text[0] == "1"]
    assert plain[:6] == ["1-0", "1-1", "1-2"] * 2


@pytest.mark.parametrize("taken", [0, 1, 7, 30])
def test_a_resumed_mixture_goes_on_as_if_nothing_had_happened(taken):
    whole, resumed = stream(), stream()
    texts(whole, taken)
    texts(resumed, 9)
    resumed.load_state_dict(whole.state_dict())
    assert texts(resumed, 12) == texts(whole, 12)


@pytest.mark.parametrize(
    "other", [stream((1.0, 1.0, 1.0)), stream(sizes=(6, 2, 20)), stream(sizes=(5, 3, 19))],
    ids=["weights", "lists", "fewer"],
)  # fmt: skip
def test_another_mixture_is_refused(other):
    with pytest.raises(UserError, match=r"data\.mix or data\.sampler"):
        other.load_state_dict(stream().state_dict())


def test_a_list_that_is_empty_is_refused():
    with pytest.raises(UserError, match=r"weight for train_files\[1\], of which no record is left"):
        stream(sizes=(2, 0, 3))


def test_a_part_of_the_records_is_drawn_by_the_seed_alone():
    items = [f"record {i}" for i in range(100)]
    some = limited(items, 10, seed=3, shuffle=True)
    assert some == limited(items, 10, seed=3, shuffle=True) != limited(items, 10, seed=4, shuffle=True)
    assert len(set(some)) == 10
    assert some == [one for one in items if one in some], "their order is kept"
    assert limited(items, 10, seed=3, shuffle=False) == items[:10]
    assert limited(items, 200, seed=3, shuffle=True) == limited(items, None, seed=3, shuffle=True) == items
