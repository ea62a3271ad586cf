"""What each rank has: rows, parts and weights, all of them once, and no more than its share of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.checkpoints import measure
from benchmarks.loading import MIB, loaded
from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.algorithms.kl import TokenKl
from burnish.algorithms.language.policy_gradient import GRPO
from burnish.algorithms.language.ppo import PPO
from burnish.options import OptimizerOptions
from burnish.options.flow import LoraOptions
from burnish.options.language import CriticOptions
from burnish.training.batching import rank_micro_batches
from burnish.training.exchange import bring, kept_by_owners, without_others
from burnish.training.ranks import SINGLE_RANK, Ranks, distribute, join_ranks, own_rows, shares
from burnish.training.sharding import mesh_of
from burnish.types.batch import Batch, is_sharded
from burnish.types.columns import stand_in
from burnish.utils.errors import UserError
from tests.support.factory import tiny_flux, tiny_pipeline
from tests.support.flow_bench import PROMPTS, WINDOW
from tests.support.flow_bench import Bench as FlowBench
from tests.support.rank_runs import together
from tests.support.sharded import full_weight
from tests.support.tiny_language import tiny_language
from tests.support.token_batches import Bench as TokenBench
from tests.support.token_batches import asked
from tests.support.universal import universal_folder

ROWS, WIDTH = 23, 1000


@dataclass(kw_only=True)
class Rows(Batch):
    number: Tensor  # [B]


@dataclass(kw_only=True)
class Means(Rows):
    mean: Tensor  # [B, D]


class Fake:
    """One of several ranks that knows what the others have; what they send is kept in a list that all of them see."""

    timeout = 1.0

    def __init__(self, rank: int, size: int, others: dict[int, list[Any]] | None = None, sent: Any = None) -> None:
        self.rank, self.size, self.others, self.sent, self.received = rank, size, others or {}, sent, 0

    def gather(self, value: Any) -> list[Any]:
        return [self.others.get(rank, value) for rank in range(self.size)]

    def exchange(self, pieces, counts):
        if len(self.sent) < self.size:  # first, all say what they send
            self.sent.append(list(pieces))
            return [torch.zeros(count, WIDTH) for count in counts]
        come = [self.sent[rank][self.rank] for rank in range(self.size)]
        assert [len(piece) for piece in come] == list(counts)
        self.received = sum(piece.nbytes for piece in come)
        return come


@pytest.mark.parametrize(("count", "size", "micro"), [(12, 2, 3), (5, 2, 2), (1, 2, 3), (0, 2, 2), (2, 4, 1)])
def test_every_row_counts_once_and_every_rank_runs_equally_many_pieces(count, size, micro):
    every = [list(range(count))[own_rows(Fake(rank, size), count)] for rank in range(size)]
    assert [row for some in every for row in some] == list(range(count))
    assert max(map(len, every)) - min(map(len, every)) <= 1
    if not count:
        return
    cuts = SimpleNamespace(micro_batches=lambda batch, size: batch.split(size))
    counted, runs, most = [], set(), -(-max(map(len, every)) // micro)
    for rank in range(size):
        ranks = Fake(rank, size)
        ranks.max = lambda own, rank=rank: most if own == -(-len(every[rank]) // micro) else None
        found = list(rank_micro_batches(cuts, Rows(number=torch.arange(count)), micro, ranks))
        counted += [row for part, weight in found if weight == 1.0 for row in part.number.tolist()]
        assert {weight for _, weight in found} <= {0.0, 1.0}
        runs.add(len(found))
    assert counted == list(range(count))
    assert runs == {most}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_rows_are_shared_out_by_what_they_cost(size):
    costs = [900, 10, 10, 10, 500, 30, 30, 300, 20, 20, 400, 7]
    found = shares(costs, size)
    assert [row for own in found for row in range(len(costs))[own]] == list(range(len(costs)))
    assert max(sum(costs[own]) for own in found) <= sum(costs) / size + max(costs)
    even = shares([5] * 11, size)
    assert [own.stop for own in even] == [11 * (rank + 1) // size for rank in range(size)]


@pytest.mark.parametrize("count", [0, 1, 4, 5])
def test_parts_are_shared_out_and_every_rank_runs_equally_often(count):
    parts, runs = list("abcde"[:count]), {}
    own = {rank: [part.upper() for part in parts[rank::2]] for rank in (0, 1)}
    for rank in (0, 1):
        heard: list[str] = []

        def upper(part: str, heard: list[str] = heard) -> str:
            heard.append(part)
            return part.upper()

        assert distribute(Fake(rank, 2, {1 - rank: own[1 - rank]}), upper, iter(parts)) == [p.upper() for p in parts]
        runs[rank] = len(heard)
    assert runs[0] == runs[1] == -(-count // 2)


def test_alone_nothing_is_asked_and_copies_of_unequal_size_are_refused():
    assert join_ranks(0, 1, "nowhere", 0, "cpu", 1.0) is SINGLE_RANK
    assert SINGLE_RANK.sum({"a": 0.1}) == {"a": 0.1}
    assert SINGLE_RANK.gather("x") == ["x"]
    assert SINGLE_RANK.first(lambda: 3) == SINGLE_RANK.max(3) == 3
    with pytest.raises(UserError, match=r"sharding\.shard_size is 3"):
        mesh_of(Fake(0, 4), 3, "cpu")


def mean(part: Rows) -> Tensor:
    return part.number[:, None].float() + torch.arange(WIDTH) / WIDTH


@pytest.mark.parametrize("size", [2, 4])
def test_rows_come_to_the_rank_that_learns_them_and_to_no_other(size):
    parts = list(Rows(number=torch.arange(ROWS)).split(4))
    assert torch.equal(kept_by_owners(SINGLE_RANK, mean, parts), mean(Rows(number=torch.arange(ROWS))))
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))[:19]
    sent: list[list[Tensor]] = []
    ranks = [Fake(rank, size, sent=sent) for rank in range(size)]
    batches = [Means(mean=kept_by_owners(rank, mean, parts), number=torch.arange(ROWS)).select(order) for rank in ranks]
    assert sum(batch.mean.sources[0].own.nbytes for batch in batches) == ROWS * WIDTH * 4, "each row is kept once"
    wanted = shares([1] * len(order), size)
    for rank, batch in zip(ranks, batches, strict=True):
        bring(batch, rank, wanted)
    whole = Means(mean=mean(Rows(number=torch.arange(ROWS))), number=torch.arange(ROWS)).select(order)
    for rank, batch, rows in zip(ranks, batches, wanted, strict=True):
        found, expected = bring(batch, rank, wanted).to("cpu"), whole.select(rows)
        assert torch.equal(found.mean, expected.mean)
        assert torch.equal(found.number, expected.number)
        assert rank.received == expected.mean.nbytes, "a rank gets its own share, whatever the others learn"
    batch = Means(mean=stand_in(batches[0].mean), number=torch.arange(19))  # it counts nothing, and needs no others
    assert without_others(batch).select([1]).to("cpu").mean.abs().sum() == 0
    with pytest.raises(AssertionError, match="before they were brought"):
        batch.to("cpu")


KL = {"window": WINDOW, "kl_coef": 0.1}
CRITIC = CriticOptions(optimizer=OptimizerOptions(lr=1e-3))
ONCE_MORE: dict[str, Callable[[Path, Ranks], Any]] = {
    "flow, old policy": lambda at, ranks: FlowBench(
        at / "half", DiffusionNFT(old_decay="ema", old_ema=0.5), lora=False, ranks=ranks
    ),
    "flow, precise adapters": lambda at, ranks: FlowBench(at / "half", FlowGRPO(**KL), ranks=ranks),
    "flow, adapters": lambda at, ranks: FlowBench(at / "full", FlowGRPO(**KL), dtype="bfloat16", ranks=ranks),
    "tokens, any class": lambda at, ranks: TokenBench(
        GRPO(), folder=universal_folder("gemma3"), lora=True, ranks=ranks
    ),
}
HELD: dict[str, Callable[[Path, Ranks], Any]] = {
    # as most models come: halved on disk, float32 masters in training
    "flow": lambda at, ranks: FlowBench(at / "half", FlowGRPO(**KL), lora=False, dtype="bfloat16", ranks=ranks),
    "flow, DoRA": lambda at, ranks: FlowBench(
        at / "full", FlowGRPO(**KL), lora=LoraOptions(rank=2, dora=True), dtype="bfloat16", ranks=ranks
    ),
    "tokens": lambda at, ranks: TokenBench(
        PPO(kl=TokenKl(coef=0.1, route="reward")), folder=at / "seeing", critic=CRITIC, dtype="bfloat16", ranks=ranks
    ),
    "tokens, tied, files": lambda at, ranks: TokenBench(
        PPO(), folder=at / "tied", family="llama", critic=CRITIC, dtype="bfloat16", prompts=[], ranks=ranks
    ),
}


def halve(folder: Path) -> Path:
    for file in sorted(folder.glob("**/*.safetensors")):
        held = {key: value.bfloat16() if value.is_floating_point() else value for key, value in load_file(file).items()}
        file.unlink()
        save_file(held, file, {"format": "pt"})
    return folder


def spoil(folder: Path) -> None:
    """A value of the last rank's share is no number."""
    file = next((folder / "transformer").glob("*.safetensors"))
    weights = load_file(file)
    name = max(weights, key=lambda one: weights[one].numel())
    weights[name] = weights[name].clone()
    weights[name][-1] = torch.nan
    file.unlink()
    save_file(weights, file, {"format": "pt"})


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("shared")
    for name in ("full", "half", "nan"):
        tiny_pipeline(folder, vae=False).rename(folder / name)
    halve(folder / "half")
    spoil(folder / "nan")
    halve(tiny_language(folder / "seeing", "qwen2_5_vl"))
    tied = tiny_language(folder / "tied", "llama")
    config = AutoConfig.from_pretrained(tied, tie_word_embeddings=True)
    network = AutoModelForCausalLM.from_pretrained(tied, config=config).bfloat16()
    (tied / "model.safetensors").unlink()
    network.save_pretrained(tied, max_shard_size="20KB")
    assert len(list(tied.glob("model-*.safetensors"))) > 1
    return folder


def held(bench: Any) -> dict[str, Any]:
    """Everything that the networks of a run hold."""
    found = {}
    for role, network in bench.roles._networks.items():
        weights = dict(network.named_parameters(remove_duplicate=False)) | dict(network.named_buffers())
        found |= {f"{role} {name}": full_weight(value.detach()).clone() for name, value in weights.items()}
        found |= {f"{role} {name} learns": value.requires_grad for name, value in network.named_parameters()}
    return found


@pytest.mark.cluster
@pytest.mark.parametrize("runs", [HELD, pytest.param(ONCE_MORE, marks=pytest.mark.thorough)], ids=["often", "seldom"])
def test_two_ranks_hold_what_one_does_and_refuse_together(models, runs):
    expected = {name: held(make(models, SINGLE_RANK)) for name, make in runs.items()}

    def work(ranks: Ranks, folder: Path) -> tuple[dict[str, Any], str]:
        found = {}
        for name, make in runs.items():
            bench = make(folder, ranks)
            assert any(is_sharded(weight) for weight in bench.roles._networks["policy"].parameters())
            found[name] = held(bench)
        with pytest.raises(UserError) as refused:
            FlowBench(folder / "nan", FlowGRPO(**KL), lora=False, ranks=ranks)
        return found, str(refused.value)

    both = together(work, models)
    assert both[0][1] == both[1][1]
    assert "non-finite" in both[0][1]
    for own, _ in both:
        for name, wanted in expected.items():
            assert own[name].keys() == wanted.keys()
            for key, value in wanted.items():
                other = own[name][key]
                assert torch.equal(other, value) if torch.is_tensor(value) else other == value, key
                assert getattr(other, "dtype", None) == getattr(value, "dtype", None), key


@pytest.mark.parametrize("kind", ["sd3", pytest.param("flux", marks=pytest.mark.thorough)])
def test_a_reference_in_half_precision_is_the_policy_bit_for_bit(kind, tmp_path):
    folder = (tiny_pipeline if kind == "sd3" else tiny_flux)(tmp_path / kind, vae=False)
    bench = FlowBench(folder, FlowGRPO(**KL), lora=False, dtype="bfloat16", length=8)
    kinds = {value.dtype for value in bench.roles._networks["reference"].parameters()}
    assert kinds == {torch.float32, torch.bfloat16}
    assert {value.dtype for value in bench.roles._networks["policy"].parameters()} == {torch.float32}
    engine, prompts = bench.engine, PROMPTS[:2]
    conditioning = engine.condition(prompts)
    unconditional = engine.condition([prompt.unconditional for prompt in prompts])
    state = bench.roles.model.start(conditioning, engine.drawing(), [("a",), ("b",)])
    with torch.no_grad():
        ours, theirs = (
            role(state, torch.tensor([0.9, 0.3]), conditioning, unconditional, guidance=2.0)
            for role in (bench.roles.policy, bench.roles.reference)
        )
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "family",
    ["qwen2_5_vl", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("llama", "gemma3", "qwen3_moe"))],
)
def test_so_is_that_of_a_language_model(family):
    own = {"folder": universal_folder("gemma3")} if family == "gemma3" else {"family": family}
    bench = TokenBench(GRPO(kl=TokenKl(coef=0.1)), dtype="bfloat16", prompts=[asked("Hello?"), asked("And?")], **own)
    assert torch.bfloat16 in {value.dtype for value in bench.roles._networks["reference"].parameters()}
    trace = bench.collect().trace
    with torch.no_grad():
        ours, theirs = (role(trace).logprob for role in (bench.roles.policy, bench.roles.reference))
    assert torch.equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_peak_of_loading_is_share_and_constant(size, tmp_path, new_process):
    layers = 6
    count, (found,) = new_process(loaded, tmp_path, 320, layers, [size], lora=False)
    whole = count * (4 + 2) / MIB  # weights that learn in float32, and a reference in bfloat16
    block = count * 4 / layers / MIB  # whose full parameters are made once, one after the other
    for share, peak in found:
        assert share <= 1.15 * whole / size + 8
        assert peak <= 1.15 * whole / size + 2 * block + 12
    if size == 1:  # with adapters one process maps the weights and reads none
        count, (((share, _),),) = new_process(loaded, tmp_path / "lora", 320, layers, [1], lora=True)
        assert share <= 0.15 * count * 2 / MIB + 8


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("size", "asynchronous"),
    [(2, True), *(pytest.param(size, False, marks=pytest.mark.thorough) for size in (1, 2, 4))],
)
def test_the_peak_of_saving_is_a_share_and_a_constant(tmp_path, new_process, size, asynchronous):
    """And nothing is read again; 16 MiB are pieces that are written and read."""
    total = 96 * 4 // 3  # MiB of weights, moments and average
    found = new_process(measure, size, tmp_path, matrices=8, asynchronous=asynchronous)
    for rank, (save, load) in enumerate(zip(found["save"], found["load"], strict=True)):
        share = save["share"]
        assert share == total / size
        copied = share if asynchronous else 0.0
        assert save["above"] <= copied + 0.15 * share + 16
        assert load["above"] <= 0.15 * share + 16
        assert save["read"] < 1.0, "what was written is not read again"
        verified = total if rank == 0 else 0.0
        assert load["read"] < verified + share + 1.0, "a rank reads its own slices"
