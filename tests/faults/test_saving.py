"""Ranks that save together, one of which has no room or is gone."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor

from burnish.checkpoint import state_files
from burnish.checkpoint.files import read
from burnish.training.sharding import mesh_of
from tests.support.checkpoints import IDENTITY, loaded, make
from tests.support.rank_runs import together

pytestmark = pytest.mark.cluster


def disk_full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def saving_together(ranks: Any, folder: Path) -> list[dict[str, Any]]:
    """A checkpoint of weights that change meanwhile; then one for which one rank has no room."""
    weight = distribute_tensor(torch.arange(5.0), mesh_of(ranks, None, "cpu"), [Shard(0)])
    state, write, found = {"roles": {"policy": {"weight": weight}}, "trainer": {"version": 1}}, state_files.write, []
    for asynchronous in (False, True):
        place = folder / f"{asynchronous}"
        store = make(place, ranks=ranks, asynchronous=asynchronous, keep_last=3)
        store.save(1, state, identity=IDENTITY, score=None)
        weight.add_(10.0)
        sums = {ranks.sum({"a": 1.0})["a"] for _ in range(50)}
        store.wait()
        state_files.write = disk_full if ranks.rank == 1 else write
        with pytest.raises(ValueError, match=r"no space is left.*00000001 is intact"):  # noqa: PT012
            store.save(2, state, identity=IDENTITY, score=None)
            store.wait()
        state_files.write = write
        ranks.max(0)  # both have failed
        weights = loaded(read(place / "00000001"))["roles"]["policy"]["weight"].tolist()
        found.append({"sums": sums, "left": [path.name for path in place.iterdir()], "weights": weights})
    return found


def test_ranks_save_together_and_a_disk_that_is_full_for_one_fails_the_save_of_all(tmp_path):
    for found in together(saving_together, tmp_path, deadline=120):
        for first, there in zip((0.0, 10.0), found, strict=True):
            assert there == {"sums": {2.0}, "left": ["00000001"], "weights": [first + n for n in range(5)]}


def lose(ranks: Any, folder: Path) -> str | bytes:
    ranks.max(0)  # the start
    if ranks.rank:
        return "left"
    with pytest.raises(RuntimeError) as lost:
        ranks.max(0)  # the update
    return str(lost.value).encode()


def test_a_rank_that_is_gone_is_not_waited_for_without_end(tmp_path):
    with pytest.raises(AssertionError, match="left"):  # what the second one returned
        together(lose, tmp_path, deadline=200)
    assert "rank 0 of 2" in torch.load(tmp_path / "rank-0.pt", weights_only=False).decode()
