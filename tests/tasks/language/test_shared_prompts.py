"""Counted bytes: of data that ranks share, each processes what it learns, and pixels never travel."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from burnish.tasks.language.shared_prompts import SharedPrompts
from burnish.training.ranks import SINGLE_RANK, own_rows
from burnish.types.batch import Gathered
from burnish.types.completion import Encoded, Features
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError

PATCHES, WIDTH, PROMPTS = 50, 100, 12


class Together:
    """One of several ranks, each a thread; what is gathered is counted in tensors' bytes."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, table: list) -> None:
        self.rank, self.size, self.barrier, self.table = rank, size, barrier, table
        self.gathered = 0

    def gather(self, value):
        self.gathered += 1
        self.table[self.rank] = value
        self.barrier.wait()
        found = list(self.table)
        self.barrier.wait()
        return found


def prompt(number: int) -> Prompt:
    shown = () if number % 4 == 3 else (Media.encoded(bytes([number])),)
    return Prompt(text=f"question {number}", images=shown)


class Processor:
    """Encodes prompts, keeps what it made, and counts."""

    def __init__(self) -> None:
        self.made: dict[str, Encoded] = {}

    def __call__(self, prompts):
        for one in prompts:
            if one.uid not in self.made:
                number = int(one.text.split()[1])
                pixels = torch.full((PATCHES + number, WIDTH), float(number))
                features = Features({"images": pixels}) if one.images else Features.none()
                ids = torch.arange(3 + number)
                self.made[one.uid] = Encoded(ids=[ids], positions=[ids[None]], features=[features])
        table = Encoded.cat([self.made[one.uid] for one in prompts])
        return Gathered(table=table, index=torch.arange(len(prompts)))

    @property
    def pixels(self) -> int:
        return sum(one.features[0].size for one in self.made.values())


def on_ranks(size, act):
    barrier, table = threading.Barrier(size, timeout=20), [None] * size
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: act(Together(rank, size, barrier, table)), range(size)))


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_processes_its_share_and_all_know_the_lengths(size):
    prompts = [prompt(i) for i in range(PROMPTS)]
    whole = Processor()
    expected = whole([*prompts, prompts[1]])

    def act(ranks):
        processor = Processor()
        shared = SharedPrompts(processor, ranks, cached=1 << 20)
        found = shared([*prompts, prompts[1]])
        outlined = processor.pixels
        own = own_rows(ranks, PROMPTS)
        for row in range(PROMPTS)[own]:
            assert torch.equal(found.rows().features[row].get("images"), expected.rows().features[row].get("images"))
        assert ranks.gathered == 1
        again = shared(prompts)
        assert ranks.gathered == 1, "outlines are kept"
        assert [one.tolist() for one in again.table.ids] == [one.tolist() for one in expected.table.ids[:PROMPTS]]
        assert found.index.tolist() == [*range(PROMPTS), 1]
        assert [one.size for one in found.table.features] == [one.size for one in expected.table.features[:PROMPTS]]
        return outlined, processor.pixels

    for outlined, held in on_ranks(size, act):
        share, row = whole.pixels / size, (PATCHES + PROMPTS) * WIDTH
        assert outlined <= share + row
        assert held <= share + 2 * row, "what a rank learns is about what it looked at for the lengths"


def test_what_one_rank_can_not_read_ends_all():
    def act(ranks):
        processor = Processor()

        def encode(prompts):
            if any(one.text == "question 9" for one in prompts):
                raise UserError("question 9 shows what can't be read; put it right or take it out")
            return processor(prompts)

        with pytest.raises(UserError, match="question 9 shows"):
            SharedPrompts(encode, ranks, cached=1 << 20)([prompt(i) for i in range(PROMPTS)])
        return True

    assert on_ranks(2, act) == [True, True]


def test_text_alone_needs_no_other_rank():
    prompts = [prompt(3), prompt(7)]
    found = SharedPrompts(Processor(), SINGLE_RANK, cached=1 << 20)(prompts)
    assert found.table.lengths == [6, 10]
