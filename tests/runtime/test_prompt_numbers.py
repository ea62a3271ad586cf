"""Prompts with pictures of their own cross processes as numbers, whatever the size of the pictures."""

import pickle
from dataclasses import dataclass, replace

import pytest

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
