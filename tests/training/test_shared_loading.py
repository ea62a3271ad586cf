"""Ranks that share networks read them by slices, and hold what one rank would: the same weights, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.algorithms.kl import TokenKl
from burnish.algorithms.language.policy_gradient import GRPO
from burnish.algorithms.language.ppo import PPO
from burnish.options.flow import LoraOptions
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.types.batch import is_sharded
from burnish.utils.errors import UserError
from tests.support.factory import tiny_flux, tiny_pipeline
from tests.support.flow_bench import PROMPTS, WINDOW
from tests.support.flow_bench import Bench as FlowBench
from tests.support.rank_runs import CRITIC, together
from tests.support.sharded import full_weight
from tests.support.tiny_language import tiny_language
from tests.support.token_batches import Bench as TokenBench
from tests.support.token_batches import asked
from tests.support.universal import universal_folder

KL = {"window": WINDOW, "kl_coef": 0.1}
RUNS: dict[str, Any] = {
    # as most models come: halved on disk, float32 masters in training
    "flow": lambda at, ranks: FlowBench(at / "half", FlowGRPO(**KL), lora=False, dtype="bfloat16", ranks=ranks),
    "flow, old policy": lambda at, ranks: FlowBench(
        at / "half", DiffusionNFT(old_decay="ema", old_ema=0.5), lora=False, ranks=ranks
    ),
    "flow, adapters": lambda at, ranks: FlowBench(at / "full", FlowGRPO(**KL), dtype="bfloat16", ranks=ranks),
    "flow, precise adapters": lambda at, ranks: FlowBench(at / "half", FlowGRPO(**KL), ranks=ranks),
    "flow, DoRA": lambda at, ranks: FlowBench(
        at / "full", FlowGRPO(**KL), lora=LoraOptions(rank=2, dora=True), dtype="bfloat16", ranks=ranks
    ),
    "tokens": lambda at, ranks: TokenBench(
        PPO(kl=TokenKl(coef=0.1, route="reward")), folder=at / "seeing", critic=CRITIC, dtype="bfloat16", ranks=ranks
    ),
    "tokens, tied, files": lambda at, ranks: TokenBench(
        PPO(), folder=at / "tied", family="llama", critic=CRITIC, dtype="bfloat16", prompts=[], ranks=ranks
    ),
    "tokens, any class": lambda at, ranks: TokenBench(GRPO(), folder=at / "any", lora=True, ranks=ranks),
}


def halve(folder: Path) -> Path:
    for file in sorted(folder.glob("**/*.safetensors")):
        held = {key: value.bfloat16() if value.is_floating_point() else value for key, value in load_file(file).items()}
        file.unlink()
        save_file(held, file, {"format": "pt"})
    return folder


def make_all(folder: Path) -> None:
    tiny_pipeline(folder, vae=False).rename(folder / "full")
    halve(tiny_pipeline(folder, vae=False)).rename(folder / "half")
    halve(tiny_language(folder / "seeing", "qwen2_5_vl"))
    tied = tiny_language(folder / "tied", "llama")
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(tied, tie_word_embeddings=True)
    network = AutoModelForCausalLM.from_pretrained(tied, config=config).bfloat16()
    (tied / "model.safetensors").unlink()
    network.save_pretrained(tied, max_shard_size="20KB")
    assert len(list(tied.glob("model-*.safetensors"))) > 1
    (folder / "any").symlink_to(universal_folder("gemma3"))


def held(bench: Any) -> dict[str, Any]:
    """Everything that the networks of a run hold."""
    found = {}
    for role, network in bench.roles._networks.items():
        weights = dict(network.named_parameters(remove_duplicate=False)) | dict(network.named_buffers())
        found |= {f"{role} {name}": full_weight(value.detach()).clone() for name, value in weights.items()}
        found |= {f"{role} {name} learns": value.requires_grad for name, value in network.named_parameters()}
    return found


def load_all(ranks: Ranks, folder: Path) -> dict[str, Any]:
    found = {}
    for name, make in RUNS.items():
        bench = make(folder, ranks)
        assert any(is_sharded(weight) for weight in bench.roles._networks["policy"].parameters())
        found[name] = held(bench)
    return found


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> Any:
    folder = tmp_path_factory.mktemp("shared")
    make_all(folder)
    return folder, together(load_all, folder)


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_hold_what_one_does(loaded, name):
    folder, found = loaded
    expected = held(RUNS[name](folder, SINGLE_RANK))
    for own in found:
        assert own[name].keys() == expected.keys()
        for key, value in expected.items():
            other = own[name][key]
            same = torch.equal(other, value) if torch.is_tensor(value) else other == value
            assert same, key
            assert getattr(other, "dtype", None) == getattr(value, "dtype", None), key


def spoil(folder: Path) -> Path:
    tiny_pipeline(folder, vae=False).rename(folder / "nan")
    file = next((folder / "nan" / "transformer").glob("*.safetensors"))
    weights = load_file(file)
    name = max(weights, key=lambda one: weights[one].numel())
    weights[name] = weights[name].clone()
    weights[name][-1] = torch.nan  # in the last rank's share
    file.unlink()
    save_file(weights, file, {"format": "pt"})
    return folder


def refused(ranks: Ranks, folder: Path) -> list[str]:
    try:
        FlowBench(folder / "nan", FlowGRPO(**KL), lora=False, ranks=ranks)
    except UserError as error:
        return [str(error)]
    return []


def test_what_one_rank_finds_wrong_all_refuse(tmp_path):
    said = together(refused, spoil(tmp_path))
    assert said[0] == said[1]
    assert "has non-finite values in" in said[0][0]
    assert "transformer" in said[0][0]


@pytest.mark.parametrize("kind", ["sd3", "flux"])
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
    "family", ["qwen2_5_vl", "llama", "gemma3", pytest.param("qwen3_moe", marks=pytest.mark.thorough)]
)
def test_so_is_that_of_a_language_model(family):
    folder = universal_folder("gemma3") if family == "gemma3" else None
    own = {} if folder else {"family": family}
    bench = TokenBench(
        GRPO(kl=TokenKl(coef=0.1)), folder=folder, dtype="bfloat16", prompts=[asked("Hello?"), asked("And?")], **own
    )
    assert torch.bfloat16 in {value.dtype for value in bench.roles._networks["reference"].parameters()}
    trace = bench.collect().trace
    with torch.no_grad():
        ours, theirs = (role(trace).logprob for role in (bench.roles.policy, bench.roles.reference))
    assert torch.equal(ours, theirs)
