"""Short trainings that one process does alone, or two together, each on both sides of the comparison alike."""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

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
from burnish.options import OptimizerOptions
from burnish.options.cluster import ShardingOptions
from burnish.options.flow import PipelineQuantizationOptions
from burnish.options.language import CriticOptions, LanguageLoraOptions
from burnish.training.auxiliary import AuxiliaryLoss
from burnish.training.ranks import SINGLE_RANK, Ranks, join_ranks
from burnish.training.sharding import local_shard
from burnish.types.completion import ResponseRows
from burnish.types.rollout import OfflineResponses
from tests.support.checkpoints import IDENTITY, make
from tests.support.flow_bench import WINDOW, Red
from tests.support.flow_bench import Bench as FlowBench
from tests.support.language_samples import responses
from tests.support.sharded import full_weight
from tests.support.token_batches import PROMPTS, asked
from tests.support.token_batches import Bench as TokenBench
from tests.support.universal import universal_folder

UPDATES, SAVED = 2, 1  # of three or more optimizer steps each
# a bound that every gradient exceeds, and an epsilon that keeps Adam from making rounding errors of nothing to steps
CLIPPED = OptimizerOptions(lr=3e-3, eps=1e-3, max_grad_norm=1e-2, weight_decay=0.1)
# 12 rows in mini-batches of 5: the last one has 2, so each rank has a row and a micro-batch of its own size
UNEVEN: dict[str, Any] = {"mini": 5, "micro": 3, "optimizer": CLIPPED}
CRITIC = CriticOptions(optimizer=replace(CLIPPED, lr=1e-3))
MUON = replace(CLIPPED, name="muon", lr=3e-4)
TOKENS: dict[str, Any] = {"mini": 5, "budget": 60, "optimizer": CLIPPED}

# a pipeline that no family is written for, with two networks, of which a step takes one
EXPERTS, CLIP = "wan2.2", {"height": 32, "width": 32, "num_frames": 5, "length": None}

Make = Callable[[Path, Ranks], Any]


def imitating(ranks: Ranks) -> TokenBench:
    """Responses of the user are learned beside; one of them is empty, so a rank has a pass without a token."""
    bench = TokenBench(GRPO(), lora=True, ranks=ranks, **TOKENS)
    trace = responses(bench.roles.model, bench.engine.encode(PROMPTS).table, [0, 1, 2], [4, 2, 0])
    given = OfflineResponses(
        answers=ResponseRows(trace=trace, members=1), good=torch.ones(3, dtype=torch.bool), update=1, version=0, seed=0
    )
    bench.workers.auxiliary = AuxiliaryLoss(SFT(), lambda step: given, 0.3, metric="actor/ptx_loss")
    return bench


def few_steps() -> TDMR1:
    """Three networks learn, and one follows."""
    return TDMR1(fake_optimizer=CLIPPED, surrogate_optimizer=CLIPPED)


SLOWER: dict[str, Any] = {"lagged": {"slower": Lag(decay="ema", ema=0.8)}, "sample_with": "slower"}
FEWER_BITS: dict[str, Any] = {"quantization": PipelineQuantizationOptions(weights="fp8_cast")}
RUNS: dict[str, Make] = {
    "flow full": lambda pipeline, ranks: FlowBench(
        pipeline, FlowGRPO(window=WINDOW, kl_coef=0.1), lora=False, guidance=2.0, ranks=ranks, **UNEVEN
    ),
    "flow lora": lambda pipeline, ranks: FlowBench(
        pipeline, FlowGRPO(window=WINDOW, kl_coef=0.1, old_logprob="recompute"), ranks=ranks, **UNEVEN
    ),
    "nft full": lambda pipeline, ranks: FlowBench(
        pipeline, DiffusionNFT(old_decay="ema", old_ema=0.5, train_timesteps=2), lora=False, ranks=ranks, **UNEVEN
    ),
    "nft lora": lambda pipeline, ranks: FlowBench(
        pipeline, DiffusionNFT(old_decay="ema", old_ema=0.5, train_timesteps=2, **SLOWER), ranks=ranks, **UNEVEN
    ),
    "experts full": lambda pipeline, ranks: FlowBench(
        pipeline / EXPERTS,
        FlowGRPO(window=WINDOW, kl_coef=0.1),
        lora=False,
        guidance=2.0,
        ranks=ranks,
        **CLIP,
        **UNEVEN,
    ),
    "experts lora": lambda pipeline, ranks: FlowBench(
        pipeline / EXPERTS, DiffusionNFT(old_decay="ema", old_ema=0.5, train_timesteps=2), ranks=ranks, **CLIP, **UNEVEN
    ),
    "tdm full": lambda pipeline, ranks: FlowBench(
        pipeline, few_steps(), lora=False, ranks=ranks, micro=4, mini=2, optimizer=CLIPPED
    ),
    "tdm lora": lambda pipeline, ranks: FlowBench(
        pipeline, few_steps(), ranks=ranks, micro=4, mini=2, optimizer=CLIPPED
    ),
    "dpo pairs": lambda pipeline, ranks: FlowBench(
        pipeline, DiffusionDPO(beta=20.0), ranks=ranks, micro=2, mini=1, optimizer=CLIPPED
    ),
    "uphill": lambda pipeline, ranks: FlowBench(
        pipeline, Draft(last_steps=2, recompute=True, kl_coef=0.1), rewards={"red": Red()}, ranks=ranks, **UNEVEN
    ),
    "ppo full": lambda pipeline, ranks: TokenBench(
        PPO(kl=TokenKl(coef=0.1, route="reward")), critic=CRITIC, ranks=ranks, **TOKENS
    ),
    "ppo lora": lambda pipeline, ranks: TokenBench(
        PPO(kl=TokenKl(coef=0.1, route="reward")), lora=True, critic=CRITIC, ranks=ranks, **TOKENS
    ),
    "dora": lambda pipeline, ranks: TokenBench(
        GRPO(), lora=LanguageLoraOptions(rank=4, dora=True, modules_to_save=["lm_head"]), ranks=ranks, **TOKENS
    ),
    "muon": lambda pipeline, ranks: TokenBench(GRPO(), ranks=ranks, **TOKENS | {"optimizer": MUON}),
    "ppo shared": lambda pipeline, ranks: TokenBench(
        PPO(), critic=replace(CRITIC, trunk="shared", warmup_updates=1), ranks=ranks, **TOKENS
    ),
    "token pairs": lambda pipeline, ranks: TokenBench(DPO(), ranks=ranks, mini=1, optimizer=CLIPPED),
    "imitation": lambda pipeline, ranks: imitating(ranks),
    "mixture": lambda pipeline, ranks: TokenBench(
        GRPO(),
        family="qwen3_moe",
        router_aux_loss_coef=0.3,
        prompts=[asked("Hello?"), asked("And?"), asked("So?")],
        ranks=ranks,
        **TOKENS,
    ),
    "recomputed": lambda pipeline, ranks: TokenBench(GRPO(), checkpointing=True, ranks=ranks, **TOKENS),
    # classes that no family is written for: padded batches by their own forward, and captured decoder inputs
    "own forward": lambda pipeline, ranks: TokenBench(
        GRPO(), folder=universal_folder("gemma3"), lora=True, ranks=ranks, **TOKENS
    ),
    "captured": lambda pipeline, ranks: TokenBench(GRPO(), folder=universal_folder("internvl"), ranks=ranks, **TOKENS),
    # a base that can't be sharded: every rank has all of it
    "flow quantised": lambda pipeline, ranks: FlowBench(
        pipeline,
        DiffusionNFT(old_decay="ema", old_ema=0.5, train_timesteps=2, **SLOWER),
        ranks=ranks,
        options_of_model=FEWER_BITS,
        **UNEVEN,
    ),
    "tokens quantised": lambda pipeline, ranks: TokenBench(
        PPO(kl=TokenKl(coef=0.1, route="reward")), lora=True, critic=CRITIC, ranks=ranks, **FEWER_BITS, **TOKENS
    ),
    "judged": lambda pipeline, ranks: TokenBench(KTO(), ranks=ranks, mini=3, budget=60, optimizer=CLIPPED),
}
# a copy of the weights on each two ranks of four, which share the two rows of the last mini-batch
ON_FOUR: dict[str, Make] = {
    "copies": lambda pipeline, ranks: FlowBench(
        pipeline, FlowGRPO(window=WINDOW, kl_coef=0.1), lora=False, ranks=ranks,
        sharding=ShardingOptions(shard_size=2), **UNEVEN,
    ),
}  # fmt: skip
# ranks of a context group have a part of every sequence: 16 tokens of a picture and 8 of a text, 8 of a clip
PICTURE: dict[str, Any] = {"height": 8, "width": 8, "length": 8}
SPLIT: dict[str, Make] = {
    "flux split": lambda pipeline, ranks: FlowBench(
        pipeline / "flux", FlowGRPO(window=WINDOW, kl_coef=0.1), lora=False, guidance=2.0, ranks=ranks, **PICTURE,
        **UNEVEN,
    ),
    "flux split, recomputed": lambda pipeline, ranks: FlowBench(
        pipeline / "flux", DiffusionNFT(old_decay="ema", old_ema=0.5, train_timesteps=2), ranks=ranks,
        options_of_model={"gradient_checkpointing": True}, **PICTURE, **UNEVEN,
    ),
    "experts split": lambda pipeline, ranks: FlowBench(
        pipeline / EXPERTS, FlowGRPO(window=WINDOW, kl_coef=0.1), lora=False, guidance=2.0, ranks=ranks, **CLIP,
        **UNEVEN,
    ),
    "experts split, adapters": lambda pipeline, ranks: FlowBench(
        pipeline / EXPERTS, DiffusionNFT(old_decay="ema", old_ema=0.5, train_timesteps=2), ranks=ranks, **CLIP, **UNEVEN
    ),
}  # fmt: skip
# what the others of their kind show too
SELDOM = () if os.environ.get("BURNISH_THOROUGH") else (
    "flow lora", "nft full", "experts lora", "tdm full", "recomputed", "tokens quantised",
    "judged", "captured", "uphill", "token pairs", "dpo pairs", "flow quantised", "ppo lora",
)  # fmt: skip
NAMES = tuple(name for name in RUNS if name not in SELDOM)
# all kinds of what a checkpoint has of a rank
RESUMED = tuple(
    name for name in ("flow full", "nft lora", "tdm lora", "ppo full", "ppo lora", "flow quantised") if name in NAMES
)

SPLIT_RESUMED = ("flux split",)
SAVING = {*RESUMED, *ON_FOUR, *SPLIT_RESUMED}


def bench_of(name: str, pipeline: Path, ranks: Ranks) -> Any:
    """What a run trains, as it is at the start."""
    return (RUNS | ON_FOUR | SPLIT)[name](pipeline, ranks)


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


def train(name: str, pipeline: Path, ranks: Ranks, folder: Path) -> dict[str, Any]:
    """All updates of a run, which leaves a checkpoint behind on its way."""
    bench, metrics = bench_of(name, pipeline, ranks), []
    start = {name: local_shard(weight.detach()).clone() for name, weight in bench.roles.parameters().items()}
    for number in range(1, UPDATES + 1):
        metrics.append(update(bench, number))
        if number == SAVED and name in SAVING:
            make(folder / name / str(ranks.size), ranks=ranks).save(
                number, bench.workers.state_dict(), identity=IDENTITY, score=None
            )
    moved = [
        (local_shard(weight.detach()) - start[name]).flatten() for name, weight in bench.roles.parameters().items()
    ]
    return outcome(bench, metrics) | {"moved": float(torch.cat(moved).abs().max())}


def resume(name: str, pipeline: Path, ranks: Ranks, folder: Path, size: int) -> dict[str, Any]:
    """The rest of a run that another number of ranks has begun."""
    bench = bench_of(name, pipeline, ranks)
    checkpoint = make(folder / name / str(size), ranks=ranks).latest()
    assert checkpoint is not None
    bench.workers.load_state_dict(checkpoint.load(IDENTITY))
    return outcome(bench, [update(bench, number) for number in range(SAVED + 1, UPDATES + 1)])


def together(work: Callable[[Ranks, Path], Any], folder: Path, *, size: int = 2, deadline: float = 900) -> list[Any]:
    """What a function returns on each of several ranks, in processes of their own that end in time."""
    port = free_port()
    context = multiprocessing.get_context("fork")  # what this process has imported, they have, too
    processes = [context.Process(target=_rank, args=(work, rank, size, port, folder)) for rank in range(size)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(deadline)
            assert process.exitcode is not None, f"a rank has not ended within {deadline:g} s"
    finally:
        for process in processes:
            process.kill()
    results = [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(size)]
    for result in results:
        assert not isinstance(result, str), result
    return results


def free_port() -> int:
    """A port that nobody listens on, and that no connection of a test beside this one is given by chance."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):  # below what Linux gives to connections
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def _rank(work: Callable[[Ranks, Path], Any], rank: int, size: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    try:
        ranks = join_ranks(rank, size, "127.0.0.1", port, "cpu", timeout=120)
        result = work(ranks, folder)
    except BaseException:
        result = traceback.format_exc()
    torch.save(result, folder / f"rank-{rank}.pt")


def all_runs(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """What becomes of every run, and of every run that a process alone has begun."""
    results: dict[str, Any] = {}
    for name in NAMES:
        results[name] = train(name, folder / "pipeline", ranks, folder)
    for name in RESUMED:
        results[f"{name}, resumed"] = resume(name, folder / "pipeline", ranks, folder, size=1)
    return results


def runs_on_four(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """What becomes of every run that is for four."""
    return {name: train(name, folder / "pipeline", ranks, folder) for name in ON_FOUR}


def alone(name: str, folder: Path) -> dict[str, Any]:
    """A run in this process."""
    return train(name, folder / "pipeline", SINGLE_RANK, folder)
