"""What a rank computed stays with it until another one learns from it, and only those rows travel."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from burnish.training.exchange import bring, kept_by_owners, without_others
from burnish.training.ranks import SINGLE_RANK, shares
from burnish.types.batch import Batch
from burnish.types.columns import Column, stand_in

ROWS, WIDTH = 23, 1000


@dataclass(kw_only=True)
class Steps(Batch):
    number: Tensor  # [B]


@dataclass(kw_only=True)
class Means(Batch):
    mean: Tensor  # [B, D]
    number: Tensor  # [B]


class Together:
    """One of several ranks of one process; what they send is kept in a list that all of them see."""

    def __init__(self, rank: int, size: int, sent: list[list[Tensor]]) -> None:
        self.rank, self.size, self.sent = rank, size, sent
        self.received = 0

    def exchange(self, pieces, counts):
        if len(self.sent) < self.size:  # first, all say what they send
            self.sent.append(list(pieces))
            return [torch.zeros(count, WIDTH) for count in counts]
        come = [self.sent[rank][self.rank] for rank in range(self.size)]
        assert [len(piece) for piece in come] == list(counts)
        self.received = sum(piece.nbytes for piece in come)
        return come


def mean(part: Steps) -> Tensor:
    return part.number[:, None].float() + torch.arange(WIDTH) / WIDTH


@pytest.mark.parametrize("size", [2, 4])
def test_rows_come_to_the_rank_that_learns_them_and_to_no_other(size):
    parts = list(Steps(number=torch.arange(ROWS)).split(4))
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))[:19]
    sent: list[list[Tensor]] = []
    ranks = [Together(rank, size, sent) for rank in range(size)]
    batches = [Means(mean=kept_by_owners(rank, mean, parts), number=torch.arange(ROWS)).select(order) for rank in ranks]
    held = [batch.mean.sources[0].own.nbytes for batch in batches]
    assert sum(held) == ROWS * WIDTH * 4, "each row is kept once"
    wanted = shares([1] * len(order), size)
    for rank, batch in zip(ranks, batches, strict=True):
        bring(batch, rank, wanted)
    whole = Means(mean=mean(Steps(number=torch.arange(ROWS))), number=torch.arange(ROWS)).select(order)
    for rank, batch, rows in zip(ranks, batches, wanted, strict=True):
        found, expected = bring(batch, rank, wanted).to("cpu"), whole.select(rows)
        assert torch.equal(found.mean, expected.mean)
        assert torch.equal(found.number, expected.number)
        assert rank.received == expected.mean.nbytes, "a rank gets its own share, whatever the others learn"


def test_alone_all_of_it_is_a_tensor():
    parts = list(Steps(number=torch.arange(ROWS)).split(4))
    assert torch.equal(kept_by_owners(SINGLE_RANK, mean, parts), mean(Steps(number=torch.arange(ROWS))))


def test_what_counts_nothing_needs_no_rows_of_others():
    column = kept_by_owners(Together(0, 2, []), mean, list(Steps(number=torch.arange(ROWS)).split(4)))
    assert isinstance(column, Column)
    batch = Means(mean=stand_in(column), number=torch.arange(ROWS))
    assert without_others(batch).select([1]).to("cpu").mean.abs().sum() == 0
    with pytest.raises(AssertionError, match="before they were brought"):
        batch.to("cpu")
