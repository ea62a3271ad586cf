"""Columns stand in for tensors: what is made of them is what would be made of the tensor, and no more is read."""

import torch

from burnish.types.columns import Column, Here, LazyTensors, at, read, states_once


class Counted(Here):
    """Rows that remember how many of them were read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        object.__setattr__(self, "reads", [])

    def take(self, rows):
        self.reads.append(len(rows))
        return super().take(rows)


def test_a_column_is_selected_joined_and_indexed_as_a_tensor_is():
    tensors = [torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    sources = [Counted(tensor) for tensor in tensors]
    column, tensor = Column.cat([Column.of(source) for source in sources]), torch.cat(tensors)
    members = torch.tensor([[7, 0], [2, 2], [9, 1]])
    assert column.shape == tensor.shape
    assert at(column, members).shape == tensor[members].shape
    assert len(column.select([1, 2]).sources) == 1
    assert not any(source.reads for source in sources), "nothing is read before it is used"
    for index in ([3, 8, 0], [4], [], list(range(10))):
        assert torch.equal(column.select(index).values(), tensor[index])
    assert torch.equal(read(at(column, members)), tensor[members])
    assert torch.equal(read(at(at(column, members), torch.tensor([2, 0]), torch.tensor([1, 0]))), tensor[[1, 7]])
    assert torch.equal(column.to("cpu"), tensor)
    assert torch.equal(Column.cat([column, tensor]).values(), torch.cat([tensor, tensor]))


def test_only_the_rows_that_are_used_are_read():
    source = Counted(torch.randn(100, 8))
    Column.of(source).select([4, 90]).select([1]).to("cpu")
    assert source.reads == [1]


def test_a_state_between_two_recorded_steps_is_kept_once():
    state = torch.arange(24.0).view(2, 3, 4)
    time = torch.tensor([[0.9, 0.7, 0.5], [0.9, 0.5, 0.3]])
    time_next = torch.tensor([[0.7, 0.5, 0.3], [0.7, 0.3, 0.1]])  # the second sample skips a step
    next_state = state + 100
    next_state[0, :2], next_state[1, 1] = state[0, 1:], state[1, 2]
    found = states_once(state, next_state, time, time_next)
    assert torch.equal(read(found[0]), state)
    assert torch.equal(read(found[1]), next_state)
    assert found[0].sources[0] is found[1].sources[0]
    assert len(found[0].sources[0].tensor) == 6 + 3, "three of the states go on"
    none = states_once(state[:, :0], state[:, :0], time[:, :0], time[:, :0])
    assert read(none[1]).shape == (2, 0, 4)


def test_media_are_read_by_name():
    source = Counted(torch.ones(6, 2))
    lazy = LazyTensors({"images": source})
    assert lazy.size == 12
    assert list(lazy) == ["images"]
    assert not source.reads
    assert torch.equal(lazy["images"], torch.ones(6, 2))
