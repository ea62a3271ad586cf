"""Prompts with pictures of their own cross processes as numbers, whatever the size of the pictures."""

import pickle
from dataclasses import dataclass, replace

import pytest

from burnish.rollout.requests import RolloutRequest, numbered
from burnish.runtime.prompt_numbers import PromptNumbers
from burnish.types.media import Media
from burnish.types.prompt import Prompt


@dataclass
class Request:
    prompts: list[Prompt]


def prompts(size: int) -> list[Prompt]:
    return [Prompt(text=f"{i}", images=(Media.encoded(bytes([i]) * size),)) for i in range(5)]


@pytest.mark.parametrize("size", [100, 100_000])
def test_bytes_on_the_way_do_not_depend_on_the_size_of_pictures(size):
    here, there = prompts(size), prompts(size)  # each process has read the data
    sent = PromptNumbers(lambda: here).numbered(Request([here[3], here[3], here[0]]))
    assert len(pickle.dumps(sent)) < 200
    found = PromptNumbers(lambda: there).named(pickle.loads(pickle.dumps(sent)))
    assert [one is there[i] for one, i in zip(found.prompts, [3, 3, 0], strict=True)] == [True] * 3


def test_prompts_that_are_short_or_of_elsewhere_travel_as_they_are():
    here = [Prompt(text="a"), *prompts(10)]
    numbers = PromptNumbers(lambda: here)
    other = replace(here[1], text="of a checkpoint")
    sent = numbers.numbered(Request([here[0], here[2], other]))
    assert sent.prompts == [here[0], 2, other]
    assert numbers.named(sent).prompts == [here[0], here[2], other]


def test_prompts_that_come_next_travel_as_numbers_too():
    here, there = prompts(100_000), prompts(100_000)
    asked, group, sample = numbered([here[1]], 2)
    request = RolloutRequest(
        prompts=asked, group=group, sample=sample, groups=1, update=1, version=0, ahead=[here[4], here[0]]
    )
    sent = PromptNumbers(lambda: here).numbered(request)
    assert len(pickle.dumps(sent)) < 2000
    assert sent.ahead == [4, 0]
    found = PromptNumbers(lambda: there).named(pickle.loads(pickle.dumps(sent)))
    assert [one is other for one, other in zip(found.ahead, [there[4], there[0]], strict=True)] == [True, True]
    text = Prompt(text="a")
    unread = PromptNumbers(lambda: pytest.fail("the data are not read where every prompt is short"))
    assert unread.numbered(Request([text])).prompts == [text]
