"""Two ranks are one: the same losses, the same weights, and checkpoints that either can go on from.

What they compute differs in the order of sums alone. A gradient is a sum over rows, of which each rank has some, so it
differs by a few units in the last place of its largest terms (6e-8 each); six clipped steps of Adam, whose epsilon is
above the noise, carry that into weights of size 1 as about 1e-6. A row that is counted twice or left out, a gradient
that is divided by the number of ranks, or a bound on the gradient of a single rank, would show as 1e-3.
"""

from __future__ import annotations

import errno
import ipaddress
import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from burnish.checkpoint import tensor_file
from burnish.checkpoint.files import MANIFEST
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.options.cluster import ShardingOptions
from burnish.training.batching import rank_micro_batches
from burnish.training.ranks import SINGLE_RANK, RanksLost, distribute, group_of_one, join_ranks, own_rows, shares
from burnish.training.sharding import mesh_of, shard
from burnish.types.batch import Batch
from burnish.utils.errors import UserError
from tests.support import rank_runs
from tests.support.checkpoints import IDENTITY, loaded, make
from tests.support.factory import tiny_pipeline
from tests.support.same_runs import WEIGHTS, compare
from tests.support.sockets import listening

ROUNDED = {"rtol": 1e-5, "atol": 3e-4}  # Muon computes in bfloat16; a matrix that is taken for its shard shows as 1e-3


class Fake:
    """One of several ranks that knows what the others have."""

    def __init__(self, rank: int, size: int, others: dict[int, list[Any]] | None = None) -> None:
        self.rank, self.size, self.timeout, self.others = rank, size, 1.0, others or {}

    def gather(self, value: Any) -> list[Any]:
        return [self.others.get(rank, value) for rank in range(self.size)]


@pytest.mark.parametrize(("count", "size"), [(12, 2), (5, 2), (1, 4), (0, 2), (7, 3)])
def test_every_row_has_one_rank_and_none_has_two_more_than_another(count, size):
    rows = [list(range(count))[own_rows(Fake(rank, size), count)] for rank in range(size)]
    assert [row for some in rows for row in some] == list(range(count))
    assert max(map(len, rows)) - min(map(len, rows)) <= 1


@dataclass(kw_only=True)
class Rows(Batch):
    number: torch.Tensor  # [B]


@pytest.mark.parametrize(("count", "size", "micro"), [(12, 2, 3), (5, 2, 2), (1, 2, 3), (2, 4, 1), (7, 3, 2)])
def test_every_row_counts_once_and_every_rank_runs_equally_many_pieces(count, size, micro):
    cuts = SimpleNamespace(micro_batches=lambda batch, size: batch.split(size))
    every = [len(range(count)[own_rows(Fake(rank, size), count)]) for rank in range(size)]
    counted, runs = [], set()
    for rank in range(size):
        ranks = Fake(rank, size)
        ranks.max = lambda own, rank=rank: -(-max(every) // micro) if own == -(-every[rank] // micro) else None
        found = list(rank_micro_batches(cuts, Rows(number=torch.arange(count)), micro, ranks))
        counted += [row for part, weight in found if weight == 1.0 for row in part.number.tolist()]
        assert {weight for _, weight in found} <= {0.0, 1.0}
        runs.add(len(found))
    assert counted == list(range(count))
    assert len(runs) == 1


@pytest.mark.parametrize("count", [0, 1, 4, 5])
def test_parts_are_shared_out_and_every_rank_runs_equally_often(count):
    parts, runs = list("abcde"[:count]), {}
    own = {rank: [part.upper() for part in parts[rank::2]] for rank in (0, 1)}
    for rank in (0, 1):
        asked: list[str] = []

        def upper(part: str, asked: list[str] = asked) -> str:
            asked.append(part)
            return part.upper()

        assert distribute(Fake(rank, 2, {1 - rank: own[1 - rank]}), upper, iter(parts)) == [p.upper() for p in parts]
        runs[rank] = len(asked)
    assert runs[0] == runs[1] == -(-count // 2)


def test_alone_nothing_is_asked_and_nothing_changes():
    assert join_ranks(0, 1, "nowhere", 0, "cpu", 1.0) is SINGLE_RANK
    assert SINGLE_RANK.sum({"a": 0.1}) == {"a": 0.1}
    assert SINGLE_RANK.gather("x") == ["x"]
    assert SINGLE_RANK.first(lambda: 3) == SINGLE_RANK.max(3) == 3


def test_copies_of_unequal_size_are_refused():
    with pytest.raises(UserError, match=r"sharding\.shard_size is 3, which does not divide the 4 ranks"):
        mesh_of(Fake(0, 4), 3, "cpu")


def agree(ranks, folder):
    """Every collective once, with more on one rank than on the other."""
    sums = [ranks.sum({"both": 1.5, f"only {ranks.rank}": 2.0}), ranks.sum({"both": float(ranks.rank)})]
    sums.append(ranks.sum({} if ranks.rank else {"only 0": float("nan")}))

    def fail():
        raise UserError("no room")

    try:
        ranks.first(fail)
    except UserError as error:
        said = str(error)
    ranks.max(0)  # the end
    return {
        "sums": sums, "max": ranks.max(3 + ranks.rank), "gather": ranks.gather(torch.full((1,), ranks.rank)),
        "first": ranks.first(lambda: ranks.rank), "said": said, "listening": listening([os.getpid()]),
    }  # fmt: skip


def test_a_group_of_one_is_reached_from_this_machine_alone():
    end = group_of_one()
    try:
        where = [one.rpartition(":")[0] for one in listening([os.getpid()])]
        assert not [one for one in where if ipaddress.ip_address(one).is_unspecified]
        assert all(ipaddress.ip_address(one).is_loopback for one in where)
    finally:
        end()


class Towered(torch.nn.Module):
    """Layers behind a tower that some inputs pass and others don't, as pictures and words do."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = torch.nn.Linear(4, 4)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        for number, weight in enumerate(self.parameters()):
            weight.data = torch.linspace(-1, 1, weight.numel()).sin().view(weight.shape) / (1 + number)

    def forward(self, x: torch.Tensor, *, picture: bool) -> torch.Tensor:
        x = self.tower(x) if picture else x
        for layer in self.layers:
            x = layer(x).tanh()
        return x

    def loss(self, rank: int) -> torch.Tensor:
        """The second of two ranks has no pictures; each calls the network twice before its backward pass."""
        x = torch.linspace(0, 1 + rank, 8).view(2, 4)
        return self(x, picture=not rank).sum() + self(x + 1, picture=not rank).square().sum()


LAID = {
    "as it is": ShardingOptions(),
    "kept for the backward pass": ShardingOptions(reshard_after_forward=False),
    "rounded": ShardingOptions(gather="compute"),
}


def lower(options: ShardingOptions) -> torch.autocast:
    """Half precision where weights travel in it."""
    return torch.autocast("cpu", torch.bfloat16, enabled=options.gather == "compute")


def learn_without_pictures(ranks, folder):
    """Gradients of several passes; before them one rank has sampled more than the other."""
    found = {}
    for name, options in LAID.items():
        network, compute = Towered(), torch.bfloat16 if options.gather == "compute" else torch.float32
        sharded = shard(
            [network], network.layers, mesh_of(ranks, None, "cpu"), options, compute=compute,
            device=torch.device("cpu"),
        )  # fmt: skip
        for _ in range(2):
            with lower(options):
                with torch.no_grad(), sharded.gathered():
                    for _ in range(3 * ranks.rank):
                        network.loss(ranks.rank)
                loss = sharded(lambda network=network: network.loss(ranks.rank))
            loss.backward()
        found[name] = {key: value.grad.full_tensor() for key, value in network.named_parameters()}
    return found


@pytest.mark.cluster
def test_a_rank_without_pictures_sums_its_gradients_where_the_other_does(tmp_path):
    both = rank_runs.together(learn_without_pictures, tmp_path, deadline=120)
    for name, options in LAID.items():
        whole, near = Towered(), {"rtol": 0.05, "atol": 0.05} if options.gather == "compute" else {}
        for rank in (0, 1):
            with lower(options):
                loss = 2 * whole.loss(rank)
            loss.backward()
        for found in both:
            for key, weight in whole.named_parameters():
                torch.testing.assert_close(found[name][key], weight.grad, **near)


def test_weights_on_the_cpu_have_nowhere_to_be_kept_besides():
    options = ShardingOptions(offload=True)
    with pytest.raises(UserError, match=r"sharding\.offload is true, but the networks are on the CPU already"):
        shard([Towered()], [], None, options, compute=torch.float32, device=torch.device("cpu"))


def lose(ranks, folder):
    """The second rank ends without a word, once both are there."""
    ranks.max(0)  # the start
    if ranks.rank:
        return "left"
    try:
        ranks.max(0)  # the update
    except RanksLost as error:
        return f"lost: {error}".encode()
    raise AssertionError("nobody was there")


def run_out_of_room(ranks, folder):
    """A second checkpoint, for which one rank finds no room."""
    from torch.distributed.tensor import Shard, distribute_tensor

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    weight = distribute_tensor(torch.arange(5.0), mesh_of(ranks, None, "cpu"), [Shard(0)])
    state = {"roles": {"policy": {"weight": weight}}, "trainer": {"version": 1, "pair": (1, 2.0)}}
    store = make(folder / "store", ranks=ranks)
    store.save(1, state, identity=IDENTITY, score=0.5)
    if ranks.rank == 1:
        tensor_file.write = full
    with pytest.raises(UserError) as refused:
        store.save(2, state, identity=IDENTITY, score=0.5)
    ranks.max(0)  # both have failed
    return {
        "said": str(refused.value), "left": sorted(path.name for path in (folder / "store").iterdir()),
        "loaded": loaded(store.latest()),
    }  # fmt: skip


@pytest.mark.cluster
def test_a_disk_that_is_full_for_one_rank_fails_the_save_of_all(tmp_path):
    for found in rank_runs.together(run_out_of_room, tmp_path, deadline=120):
        assert "no space is left" in found["said"]
        assert "00000001 is intact" in found["said"]
        assert found["left"] == ["00000001"]
        saved = found["loaded"]
        assert saved["roles"]["policy"]["weight"].tolist() == [0, 1, 2, 3, 4]
        assert saved["trainer"] == {"version": 1, "pair": (1, 2.0)}


@pytest.mark.cluster
def test_ranks_agree(tmp_path):
    for found in rank_runs.together(agree, tmp_path, deadline=120):
        first, second, third = found["sums"]
        assert first == {"both": 3.0, "only 0": 2.0, "only 1": 2.0}
        assert second == {"both": 1.0}
        assert third.keys() == {"only 0"}
        assert third["only 0"] != third["only 0"]
        assert (found["max"], found["first"], found["said"]) == (4, 0, "no room")
        assert [int(value) for value in found["gather"]] == [0, 1]
        assert not [one for one in found["listening"] if ipaddress.ip_address(one.rpartition(":")[0]).is_unspecified]


@pytest.mark.cluster
def test_a_rank_that_is_gone_is_not_waited_for_without_end(tmp_path):
    with pytest.raises(AssertionError, match="left"):  # what the second one returned
        rank_runs.together(lose, tmp_path, deadline=200)
    said = torch.load(tmp_path / "rank-0.pt", weights_only=False).decode()
    assert "rank 0 of 2" in said
    assert "a maximum failed or timed out" in said


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Every run by one process alone, and by two together, which also go on from its checkpoints."""
    folder = tmp_path_factory.mktemp("ranks")
    tiny_pipeline(folder, vae=False)
    write(describe(rank_runs.EXPERTS), folder / "pipeline" / rank_runs.EXPERTS, 0)
    alone = {name: rank_runs.alone(name, folder) for name in rank_runs.NAMES}
    return folder, alone, rank_runs.together(rank_runs.all_runs, folder)


@pytest.mark.cluster
@pytest.mark.parametrize("name", rank_runs.NAMES)
def test_two_ranks_train_as_one(both, name):
    _, alone, (first, second) = both
    assert alone[name]["moved"] > 3e-4, "nothing was learned, so nothing is compared"
    compare(first[name], alone[name], ROUNDED if name == "muon" else WEIGHTS)
    for key, value in first[name]["weights"].items():
        assert torch.equal(second[name]["weights"][key], value), key


@pytest.mark.cluster
@pytest.mark.parametrize("name", rank_runs.RESUMED)
def test_two_ranks_go_on_from_the_checkpoint_of_one(both, name):
    _, alone, (first, _) = both
    expected = alone[name] | {"metrics": alone[name]["metrics"][rank_runs.SAVED :]}
    compare(first[f"{name}, resumed"], expected)


@pytest.mark.cluster
@pytest.mark.parametrize("name", rank_runs.RESUMED)
def test_one_goes_on_from_the_checkpoint_of_two_ranks(both, name):
    folder, alone, _ = both
    expected = alone[name] | {"metrics": alone[name]["metrics"][rank_runs.SAVED :]}
    compare(rank_runs.resume(name, folder / "pipeline", SINGLE_RANK, folder, size=2), expected)


@pytest.mark.cluster
def test_four_ranks_with_a_copy_on_each_two_train_as_one(both):
    folder, _, _ = both
    expected = rank_runs.alone("copies", folder)
    for found in rank_runs.together(rank_runs.runs_on_four, folder, size=4):
        compare(found["copies"], expected)
    rest = expected | {"metrics": expected["metrics"][rank_runs.SAVED :]}
    compare(rank_runs.resume("copies", folder / "pipeline", SINGLE_RANK, folder, size=4), rest)


@pytest.mark.cluster
def test_a_checkpoint_of_two_ranks_is_whole_or_refused(both):
    folder, _, _ = both
    store = make(folder / "flow full" / "2")
    found = store.latest()
    assert found is not None
    pieces = [name for name in found.files if name.startswith("tensors/")]
    assert len(pieces) >= 2, "each rank writes its own"
    assert set(found.files) | {MANIFEST} == {
        str(path.relative_to(found.path)) for path in found.path.rglob("*") if path.is_file()
    }
    assert found.load(IDENTITY)["trainer"]["version"] == rank_runs.SAVED
    damaged = found.path / pieces[0]
    raw = bytearray(damaged.read_bytes())
    raw[len(raw) // 2] ^= 1
    damaged.write_bytes(raw)
    with pytest.raises(UserError, match="is damaged: its sha256"):
        store.open(found.path)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_rows_are_shared_out_by_what_they_cost(size):
    costs = [900, 10, 10, 10, 500, 30, 30, 300, 20, 20, 400, 7]
    found = shares(costs, size)
    assert [row for own in found for row in range(len(costs))[own]] == list(range(len(costs)))
    assert max(sum(costs[own]) for own in found) <= sum(costs) / size + max(costs)
    even = shares([5] * 11, size)
    assert [own.stop for own in even] == [11 * (rank + 1) // size for rank in range(size)]
