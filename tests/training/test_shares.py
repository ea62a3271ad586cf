"""What each rank has: rows, parts and weights, all of them once, and no more than its share of memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

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
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.types.batch import is_sharded
from burnish.utils.errors import UserError
from tests.support.factory import tiny_pipeline
from tests.support.flow_bench import WINDOW
from tests.support.flow_bench import Bench as FlowBench
from tests.support.rank_runs import together
from tests.support.sharded import full_weight
from tests.support.tiny_language import tiny_language
from tests.support.token_batches import Bench as TokenBench
from tests.support.universal import universal_folder

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
