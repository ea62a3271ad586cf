"""Several ranks are one: the same losses, the same weights, and checkpoints that either can go on from.

What they compute differs in the order of sums alone. A gradient is a sum over rows, of which each rank has some, so it
differs by a few units in the last place of its largest terms (6e-8 each); six clipped steps of Adam, whose epsilon is
above the noise, carry that into weights of size 1 as about 1e-6. A row that is counted twice or left out, a gradient
that is divided by the number of ranks, or a bound on the gradient of a single rank, would show as 1e-3.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from burnish.algorithms.flow.diffusion_dpo import DiffusionDPO
from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.draft import Draft
from burnish.algorithms.flow.lagged import Lag
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.algorithms.flow.tdm_r1 import TDMR1
from burnish.algorithms.kl import TokenKl
from burnish.algorithms.language.dpo import DPO
from burnish.algorithms.language.kto import KTO
from burnish.algorithms.language.policy_gradient import GRPO
from burnish.algorithms.language.ppo import PPO
from burnish.algorithms.language.sft import SFT
from burnish.checkpoint.files import MANIFEST
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.options import OptimizerOptions
from burnish.options.cluster import ShardingOptions
from burnish.options.flow import PipelineQuantizationOptions
from burnish.options.language import CriticOptions, LanguageLoraOptions
from burnish.training.auxiliary import AuxiliaryLoss
from burnish.training.lockstep import Lockstep
from burnish.training.ranks import SINGLE_RANK, Ranks, by_first, group_of_one
from burnish.training.sharding import local_shard, mesh_of, shard
from burnish.types.completion import ResponseRows
from burnish.types.rollout import OfflineResponses
from burnish.utils.errors import Cancelled, UserError
from tests.support.checkpoints import IDENTITY, make
from tests.support.factory import tiny_flux, tiny_pipeline
from tests.support.flow_bench import WINDOW, Red
from tests.support.flow_bench import Bench as FlowBench
from tests.support.language_samples import responses
from tests.support.rank_runs import together
from tests.support.sharded import full_weight
from tests.support.sockets import listening
from tests.support.token_batches import PROMPTS, asked
from tests.support.token_batches import Bench as TokenBench
from tests.support.universal import universal_folder

pytestmark = pytest.mark.cluster

UPDATES, SAVED = 2, 1  # of three or more optimizer steps each
# a bound that every gradient exceeds, and an epsilon that keeps Adam from making rounding errors of nothing to steps
CLIPPED = OptimizerOptions(lr=3e-3, eps=1e-3, max_grad_norm=1e-2, weight_decay=0.1)
# 12 rows in mini-batches of 5: the last one has 2, so each rank has a row and a micro-batch of its own size
UNEVEN: dict[str, Any] = {"mini": 5, "micro": 3, "optimizer": CLIPPED}
TOKENS: dict[str, Any] = {"mini": 5, "budget": 60, "optimizer": CLIPPED}
CRITIC = CriticOptions(optimizer=replace(CLIPPED, lr=1e-3))
EXPERTS = "wan2.2"  # a pipeline that no family is written for, with two networks, of which a step takes one
CLIP: dict[str, Any] = {"height": 32, "width": 32, "num_frames": 5, "length": None}
PICTURE: dict[str, Any] = {"height": 8, "width": 8, "length": 8}  # 16 tokens of a picture and 8 of a text


def kl_grpo() -> FlowGRPO:
    return FlowGRPO(window=WINDOW, kl_coef=0.1)


def nft(**more: Any) -> DiffusionNFT:
    return DiffusionNFT(old_decay="ema", old_ema=0.5, train_timesteps=2, **more)


def followed() -> DiffusionNFT:
    """It samples with a policy that follows slower than the old one."""
    return nft(lagged={"slower": Lag(decay="ema", ema=0.8)}, sample_with="slower")


def few_steps() -> TDMR1:
    """Three networks learn, and one follows."""
    return TDMR1(fake_optimizer=CLIPPED, surrogate_optimizer=CLIPPED)


def flow(make_algorithm: Callable[[], Any], *, at: str = "", **given: Any) -> Callable[[Path, Ranks], FlowBench]:
    return lambda place, ranks: FlowBench(place / at, make_algorithm(), ranks=ranks, **UNEVEN | given)


def tokens(make_algorithm: Callable[[], Any], **given: Any) -> Callable[[Path, Ranks], TokenBench]:
    return lambda place, ranks: TokenBench(make_algorithm(), ranks=ranks, **TOKENS | given)


def imitating(place: Path, ranks: Ranks) -> TokenBench:
    """Responses of the user are learned beside; one of them is empty, so a rank has a pass without a token."""
    bench = TokenBench(GRPO(), lora=True, ranks=ranks, **TOKENS)
    trace = responses(bench.roles.model, bench.engine.encode(PROMPTS).table, [0, 1, 2], [4, 2, 0])
    given = OfflineResponses(
        answers=ResponseRows(trace=trace, members=1), good=torch.ones(3, dtype=torch.bool), update=1, version=0, seed=0
    )
    bench.workers.auxiliary = AuxiliaryLoss(SFT(), lambda step: given, 0.3, metric="actor/ptx_loss")
    return bench


def ppo() -> PPO:
    return PPO(kl=TokenKl(coef=0.1, route="reward"))


THREE = [asked("Hello?"), asked("And?"), asked("So?")]
FEWER_BITS: dict[str, Any] = {"quantization": PipelineQuantizationOptions(weights="fp8_cast")}
OFTEN: dict[str, Any] = {
    "flow full": flow(kl_grpo, lora=False, guidance=2.0),
    "ppo full": tokens(ppo, critic=CRITIC),
    "mixture": tokens(GRPO, family="qwen3_moe", router_aux_loss_coef=0.3, prompts=THREE),
}
SELDOM: dict[str, Any] = {
    "nft lora": flow(followed),
    "tdm lora": flow(few_steps, micro=4, mini=2),
    "muon": tokens(GRPO, optimizer=replace(CLIPPED, name="muon", lr=3e-4)),
    "imitation": imitating,
    "flow lora": flow(lambda: FlowGRPO(window=WINDOW, kl_coef=0.1, old_logprob="recompute")),
    "nft full": flow(nft, lora=False),
    "experts full": flow(kl_grpo, at=EXPERTS, lora=False, guidance=2.0, **CLIP),
    "experts lora": flow(nft, at=EXPERTS, **CLIP),
    "tdm full": flow(few_steps, lora=False, micro=4, mini=2),
    "dpo pairs": flow(lambda: DiffusionDPO(beta=20.0), micro=2, mini=1),
    "uphill": flow(lambda: Draft(last_steps=2, recompute=True, kl_coef=0.1), rewards={"red": Red()}),
    "ppo lora": tokens(ppo, lora=True, critic=CRITIC),
    "ppo shared": tokens(PPO, critic=replace(CRITIC, trunk="shared", warmup_updates=1)),
    "dora": tokens(GRPO, lora=LanguageLoraOptions(rank=4, dora=True, modules_to_save=["lm_head"])),
    "token pairs": tokens(DPO, mini=1, budget=10_000),
    "recomputed": tokens(GRPO, checkpointing=True),
    "judged": tokens(KTO, mini=3),
    # classes that no family is written for: padded batches by their own forward, and captured decoder inputs
    "own forward": lambda place, ranks: tokens(GRPO, folder=universal_folder("gemma3"), lora=True)(place, ranks),
    "captured": lambda place, ranks: tokens(GRPO, folder=universal_folder("internvl"))(place, ranks),
    # a base that can't be sharded: every rank has all of it
    "flow quantised": flow(followed, options_of_model=FEWER_BITS),
    "tokens quantised": tokens(ppo, lora=True, critic=CRITIC, **FEWER_BITS),
}
# ranks of a context group have a part of every sequence
SPLIT: dict[str, Any] = {
    "flux split": flow(kl_grpo, at="flux", lora=False, guidance=2.0, **PICTURE),
    "flux split, recomputed": flow(
        nft, at="flux", lora=False, options_of_model={"gradient_checkpointing": True}, **PICTURE
    ),
    "experts split": flow(kl_grpo, at=EXPERTS, lora=False, guidance=2.0, **CLIP),
    "experts split, adapters": flow(nft, at=EXPERTS, **CLIP),
}
# a copy of the weights on each two ranks of four, which share the two rows of the last mini-batch
COPIES = {"copies": flow(kl_grpo, lora=False, sharding=ShardingOptions(shard_size=2))}
RUNS = OFTEN | SELDOM | SPLIT | COPIES
SAVING = ("flow full", "tdm lora", "ppo full", "ppo lora", "flow quantised", "flux split", "copies")


def seldom(names: Any) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.thorough) for name in names]


def update(bench: Any, number: int) -> dict[str, float]:
    """One policy update from a collected batch; what it reports."""
    annotated = bench.workers.annotate(bench.collect(number))
    batch, credited = bench.algorithm.credit(annotated)
    metrics = credited | bench.workers.update(batch, number)
    bench.workers.publish(number)
    return metrics


def outcome(bench: Any, metrics: list[dict[str, float]]) -> dict[str, Any]:
    weights = {f"{role} {k}": v for role in bench.roles.trained for k, v in bench.roles.parameters(role).items()}
    weights |= {f"ema {name}": value for name, value in bench.workers.ema.average.items()}
    return {"metrics": metrics, "weights": {name: full_weight(v.detach()).clone() for name, v in weights.items()}}


def trained(name: str, ranks: Ranks, folder: Path) -> dict[str, Any]:
    """All updates of a run, which leaves a checkpoint behind on its way."""
    bench, metrics = RUNS[name](folder / "pipeline", ranks), []
    start = {name: local_shard(weight.detach()).clone() for name, weight in bench.roles.parameters().items()}
    for number in range(1, UPDATES + 1):
        metrics.append(update(bench, number))
        if number == SAVED and name in SAVING:
            store = make(folder / name / str(ranks.size), ranks=ranks)
            store.save(number, bench.workers.state_dict(), identity=IDENTITY, score=None)
    moved = [(local_shard(w.detach()) - start[name]).flatten() for name, w in bench.roles.parameters().items()]
    return outcome(bench, metrics) | {"moved": float(torch.cat(moved).abs().max())}


def resumed(name: str, ranks: Ranks, folder: Path, size: int) -> dict[str, Any]:
    """The rest of a run that another number of ranks has begun."""
    bench = RUNS[name](folder / "pipeline", ranks)
    checkpoint = make(folder / name / str(size), ranks=ranks).latest()
    assert checkpoint is not None
    bench.workers.load_state_dict(checkpoint.load(IDENTITY))
    return outcome(bench, [update(bench, number) for number in range(SAVED + 1, UPDATES + 1)])


def compare(found: dict[str, Any], expected: dict[str, Any], *, rounded: bool = False, since: int = 0) -> None:
    """The same but for the order of sums; of metrics, those since an update."""
    # Muon computes in bfloat16; a matrix that is taken for its shard shows as 1e-3
    near = {"rtol": 1e-5, "atol": 3e-4 if rounded else 2e-5}
    assert found["weights"].keys() == expected["weights"].keys()
    for name, value in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], value, **near, msg=lambda text, n=name: f"{n}: {text}")
    for one, other in zip(found["metrics"], expected["metrics"][since:], strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            if name.startswith("global_seqlen/"):  # of each rank
                continue
            # a spread is the root of a difference of squares near 1, where rounding is all that there is; and what is
            # counted beyond a bound may lie on it, as values do that have not moved
            off = 3e-3 if "ratio_std" in name else 0.1 if "clipfrac" in name else 1e-4
            assert one[name] == pytest.approx(value, rel=1e-3, abs=off, nan_ok=True), name


class Compared:
    """Runs by one process alone, and by two together, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._alone, self._pair = folder, {}, {}
        tiny_pipeline(folder, vae=False)
        tiny_flux(folder / "aside", vae=False).rename(folder / "pipeline" / "flux")
        write(describe(EXPERTS), folder / "pipeline" / EXPERTS, 0)

    def alone(self, name: str) -> dict[str, Any]:
        if name not in self._alone:
            self._alone[name] = trained(name, SINGLE_RANK, self.folder)
        return self._alone[name]

    def pair(self, names: tuple[str, ...], *, contexts: int = 1) -> list[dict[str, Any]]:
        """Of both ranks; they also go on from the checkpoints of the one."""
        if names not in self._pair:
            for name in names:
                self.alone(name)

            def work(ranks: Ranks, folder: Path) -> dict[str, Any]:
                ranks = ranks.in_contexts(contexts)
                found = {name: trained(name, ranks, folder) for name in names}
                return found | {f"{n}, resumed": resumed(n, ranks, folder, 1) for n in names if n in SAVING}

            self._pair[names] = together(work, self.folder)
        return self._pair[names]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    return Compared(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", [*OFTEN, *seldom([*SELDOM, *SPLIT])])
def test_two_ranks_train_as_one(runs: Compared, name: str) -> None:
    expected = runs.alone(name)
    names = tuple(OFTEN) if name in OFTEN else (name,)
    first, second = runs.pair(names, contexts=2 if name in SPLIT else 1)
    assert expected["moved"] > 3e-4, "nothing was learned, so nothing is compared"
    compare(first[name], expected, rounded=name == "muon")
    for key, value in first[name]["weights"].items():
        assert torch.equal(second[name]["weights"][key], value), key
    if name in SAVING:
        compare(first[f"{name}, resumed"], expected, since=SAVED)
        compare(resumed(name, SINGLE_RANK, runs.folder, size=2), expected, since=SAVED)


@pytest.mark.parametrize("name", ["flux split", *seldom([*COPIES, "experts split, adapters"])])
def test_four_ranks_with_a_copy_on_each_two_or_two_contexts_train_as_one(runs: Compared, name: str) -> None:
    expected, split = runs.alone(name), 2 if name in SPLIT else 1
    for found in together(lambda ranks, at: trained(name, ranks.in_contexts(split), at), runs.folder, size=4):
        compare(found, expected)
    if name in COPIES:
        compare(resumed(name, SINGLE_RANK, runs.folder, size=4), expected, since=SAVED)


def test_a_checkpoint_of_two_ranks_is_whole_or_refused(runs: Compared) -> None:
    runs.pair(tuple(OFTEN))
    store = make(runs.folder / "flow full" / "2")
    found = store.latest()
    assert found is not None
    pieces = [name for name in found.files if name.startswith("tensors/")]
    assert len(pieces) >= 2, "each rank writes its own"
    assert set(found.files) | {MANIFEST} == {
        str(path.relative_to(found.path)) for path in found.path.rglob("*") if path.is_file()
    }
    damaged = found.path / pieces[0]
    raw = bytearray(damaged.read_bytes())
    raw[len(raw) // 2] ^= 1
    damaged.write_bytes(raw)
    with pytest.raises(UserError, match="sha256"):
        store.open(found.path)


def in_step(ranks: Ranks) -> dict[str, Any]:
    """What becomes of work in step where the second of two ranks stops it, or fails in it."""
    found, done = {}, []
    first = ranks.context.rank == 0

    def work(*, stop: int, fail: int, forwards: int = 3) -> str:
        done.clear()

        def check_cancelled() -> None:
            if not first and len(done) == stop:
                raise Cancelled

        try:
            with Lockstep(ranks.context) as step:
                for number in range(forwards):
                    if not first and number == fail:
                        raise ValueError
                    with step.forward(check_cancelled):
                        done.append(ranks.context.max(number))
                if not first and fail == forwards:
                    raise ValueError
        except (Cancelled, ValueError) as error:
            return f"{type(error).__name__} after {len(done)}"
        return f"{len(done)}"

    found = {"all": work(stop=9, fail=9), "stopped": work(stop=1, fail=9)}
    found["failed"] = [work(stop=9, fail=number) for number in (0, 2, 3)]

    def cancelled() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        by_first(ranks.context, cancelled)
    found["score"] = by_first(ranks.context, lambda: ranks.rank)
    return found | {"rows": ranks.rows.size, "barrier": ranks.sum({"ranks": 1.0})["ranks"]}


def agree(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Every collective once, with more on one rank than on the other."""
    sums = [ranks.sum({"both": 1.5, f"only {ranks.rank}": 2.0}), ranks.sum({"both": float(ranks.rank)})]
    sums.append(ranks.sum({} if ranks.rank else {"only 0": float("nan")}))

    def fail() -> None:
        raise UserError("no room")

    with pytest.raises(UserError, match="no room"):
        ranks.first(fail)
    ranks.max(0)  # the end
    return {
        "sums": sums, "max": ranks.max(3 + ranks.rank), "gather": ranks.gather(torch.full((1,), ranks.rank)),
        "first": ranks.first(lambda: ranks.rank), "listening": listening([os.getpid()]),
        "in step": in_step(ranks.in_contexts(2)),
    }  # fmt: skip


def test_ranks_agree_stop_together_and_are_reached_from_this_machine_alone(tmp_path: Path) -> None:
    for rank, found in enumerate(together(agree, tmp_path, deadline=120)):
        first, second, third = found["sums"]
        assert first == {"both": 3.0, "only 0": 2.0, "only 1": 2.0}
        assert second == {"both": 1.0}
        assert third.keys() == {"only 0"}
        assert third["only 0"] != third["only 0"]
        assert (found["max"], found["first"]) == (4, 0)
        assert [int(value) for value in found["gather"]] == [0, 1]
        assert not [one for one in found["listening"] if ipaddress.ip_address(one.rpartition(":")[0]).is_unspecified]
        error = "ValueError" if rank else "Cancelled"
        assert found["in step"] == {
            "all": "3", "stopped": "Cancelled after 1", "failed": [f"{error} after {n}" for n in (0, 2, 3)],
            "score": 0, "rows": 1, "barrier": 2.0,
        }  # fmt: skip
    end = group_of_one()
    try:
        where = [one.rpartition(":")[0] for one in listening([os.getpid()])]
        assert not [one for one in where if not ipaddress.ip_address(one).is_loopback]
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

    def forward(self, x: Tensor, *, picture: bool) -> Tensor:
        x = self.tower(x) if picture else x
        for layer in self.layers:
            x = layer(x).tanh()
        return x

    def loss(self, rank: int) -> Tensor:
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


def learn_without_pictures(ranks: Ranks, folder: Path) -> dict[str, Any]:
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


def test_a_rank_without_pictures_sums_its_gradients_where_the_other_does(tmp_path: Path) -> None:
    both = together(learn_without_pictures, tmp_path, deadline=120)
    for name, options in LAID.items():
        whole, near = Towered(), {"rtol": 0.05, "atol": 0.05} if options.gather == "compute" else {}
        for rank in (0, 1):
            with lower(options):
                loss = 2 * whole.loss(rank)
            loss.backward()
        for found in both:
            for key, weight in whole.named_parameters():
                torch.testing.assert_close(found[name][key], weight.grad, **near)
    options = ShardingOptions(offload=True)
    with pytest.raises(UserError, match=r"sharding\.offload is true"):
        shard([Towered()], [], None, options, compute=torch.float32, device=torch.device("cpu"))
