"""Ranks that share the experts of a mixture learn what one rank learns, go on bit for bit, and save and send it all."""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from burnish.checkpoint.files import read
from burnish.config import load
from burnish.options.cluster import ShardingOptions
from burnish.runtime.weights import Receiver, Sender
from burnish.tasks import assemble
from burnish.training.experts import split_mesh, stacks_in
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.training.sharding import mesh_of, shard
from burnish.utils.errors import UserError
from tests.support.checkpoints import loaded, make
from tests.support.equality import same
from tests.support.optional import seldom
from tests.support.rank_runs import learn, together
from tests.support.tiny_run import TinyRun

pytestmark = pytest.mark.cluster

NEAR, LIMIT = 1e-6, 60.0
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 16}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "grouped": (Qwen3MoeForCausalLM, Qwen3MoeConfig, {"moe_intermediate_size": 4, "num_experts": 4}),
    "with biases": (GptOssForCausalLM, GptOssConfig, {"intermediate_size": 4, "num_local_experts": 4}),
    "one by one": (
        Qwen3MoeForCausalLM, Qwen3MoeConfig,
        {"moe_intermediate_size": 4, "num_experts": 4, "experts_implementation": "eager"},
    ),
}  # fmt: skip


class Chosen(nn.Module):
    """Layers of experts that a test chooses, all of whose weights differ."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        network, config, sizes = KINDS[kind]
        made = network(config(**SIZES, **sizes))
        self.layers = nn.ModuleList(nn.Sequential(*stacks_in(layer)) for layer in made.model.layers)
        for number, weight in enumerate(self.parameters()):
            weight.data = torch.linspace(-2, 2, weight.numel()).sin().view(weight.shape) / (1 + number)

    def loss(self, rank: int) -> Tensor:
        """Two passes; the first rank chooses experts of both halves, the second in its second pass the first half."""
        total: Any = 0.0
        for number in range(2):
            tokens = 3 + rank
            x = torch.linspace(-1, 1 + rank, 8 * tokens).view(tokens, 8)
            index = torch.arange(2 * tokens).view(tokens, 2) % (2 if rank or number else 4)
            for layer in self.layers:
                (experts,) = layer.children()
                x = x + experts(x, index, torch.linspace(0.1, 1, 2 * tokens).view(tokens, 2))
            total = total + x.square().sum()
        return torch.as_tensor(total)


def choose(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Gradients where experts of the second rank have no rows; before them one rank runs alone, with all experts."""
    found, options = {}, ShardingOptions(expert_parallel=2, shard_size=1, zero_stage=3)
    mesh = split_mesh(ranks, options, "cpu", "experts")
    assert mesh is not None
    for kind in KINDS:
        network = Chosen(kind)
        sharded = shard(
            [network], [*network.layers], mesh_of(ranks, 1, "cpu"), options, compute=torch.float32,
            device=torch.device("cpu"), experts=mesh,
        )  # fmt: skip
        with torch.no_grad(), sharded.gathered():
            for _ in range(1 + ranks.rank):
                alone = network.loss(1)
        loss = sharded(partial(network.loss, ranks.rank))
        loss.backward()
        weights: dict[str, Any] = dict(network.named_parameters())
        held = {len(weight.to_local()) for weight in weights.values()}
        gradients = {name: weight.grad.full_tensor() for name, weight in weights.items()}
        found[kind] = {"alone": alone, "loss": loss.detach(), "held": held, "gradients": gradients}
    with pytest.raises(UserError, match="has no experts"):
        shard([nn.Linear(2, 2)], [], mesh, options, compute=torch.float32, device=torch.device("cpu"), experts=mesh)
    return found


def test_tokens_travel_to_their_experts_and_nobody_waits_for_those_without_any(tmp_path: Path) -> None:
    both = together(choose, tmp_path, deadline=300)
    for kind in KINDS:
        whole = Chosen(kind)
        losses = [whole.loss(rank) for rank in (0, 1)]
        torch.stack(losses).sum().backward()
        for rank, found in enumerate(both):
            torch.testing.assert_close(found[kind]["loss"], losses[rank].detach())
            torch.testing.assert_close(found[kind]["alone"], losses[1].detach())
            assert found[kind]["held"] == {2}, "of four experts"
            for name, weight in whole.named_parameters():
                torch.testing.assert_close(found[kind]["gradients"][name], weight.grad)


LEARNS, LAYOUTS = yaml.safe_load(Path(__file__).with_name("experts.yaml").read_text()).values()


def begin(run: TinyRun, options: list[str], ranks: Ranks) -> Any:
    config = load(str(run.recipe), [*run.options, *options])
    assembly = assemble(config, ranks.in_contexts(1, config.sharding.tensor_parallel), trains=True)
    assembly.scorer.start()
    return assembly


def saved_after(assembly: Any, store: Any, update: int, saved: int) -> list[float]:
    """Loss and gradient norm of an update, after which there is a checkpoint."""
    metrics = learn(assembly, update)
    assembly.workers.sync_weights(update)
    store.save(saved, assembly.state_dict(), identity=assembly.identity, score=None)
    return [metrics["actor/loss"], metrics["actor/grad_norm"]]


def received(roles: Any, ranks: Ranks) -> dict[str, Tensor] | None:
    """What a worker that samples gets from all ranks, verified by checksums."""
    sender = Sender(lambda full: roles.sampler_weights(full=full), rank=ranks.rank)
    entries = sender.entries(True, {})
    if ranks.rank:
        sender.broadcast(1, entries)
        return None
    weights = {entry.name: torch.zeros(entry.shape, dtype=entry.dtype) for entry in entries}
    receiver = Receiver(weights)
    with ThreadPoolExecutor(2) as pool:
        port = sender.rendezvous("127.0.0.1", LIMIT)
        joining = pool.submit(receiver.join, "127.0.0.1", port, 1, 2, "cpu", LIMIT)
        sender.join(2, "cpu", LIMIT)
        joining.result(LIMIT)
        coming = pool.submit(receiver.receive, 1, entries)
        sent = sender.broadcast(1, entries)
        assert sent is not None
        assert coming.result(LIMIT).checksums == sent.checksums
    receiver.switch(1)
    return weights


def share(run: TinyRun, options: list[str], other: Path, ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Two updates; the second once more from a checkpoint; then another layout's checkpoint is loaded and saved."""
    store, assembly = make(folder, ranks=ranks, keep_last=9), begin(run, options, ranks)
    found: dict[str, Any] = {"answers": assembly.evaluate(None, n=1)}
    found["metrics"] = [saved_after(assembly, store, update, update) for update in (1, 2)]
    if ranks.size > 1:
        found["sent"] = received(assembly.roles, ranks)
        again = begin(run, options, ranks)
        again.load_state_dict(read(folder / "00000001").load(again.identity, again.state_dict()))
        saved_after(again, store, 2, 3)
        again.load_state_dict(read(other).load(again.identity, again.state_dict()))
        store.save(4, again.state_dict(), identity=again.identity, score=None)
        again.scorer.close()
    assembly.scorer.close()
    return found


@pytest.mark.parametrize(("model", "layout"), [("qwen3_vl_moe", "2"), *seldom(
    *(("qwen3_vl_moe", layout) for layout in LAYOUTS if layout != "2"),
    *(("qwen3_omni_moe_thinker", layout) for layout in LAYOUTS),
)])  # fmt: skip
def test_ranks_that_share_experts_learn_what_one_learns(model: str, layout: str, files: Path) -> None:
    size, learns, options = LAYOUTS[layout]
    given = [one.replace("{data}", "{data}" if "omni" in model else "{files}/seen") for one in LEARNS[learns]]
    run = TinyRun(
        files, "language", model, *given, "trainer.mini_batch_size=null", "trainer.epochs=1", "optimizer.eps=1e-3",
        name=f"experts/{model}-{layout.replace(' ', '-')}",
    )  # fmt: skip
    folders = {name: run.output / name for name in ("alone", "apart")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    alone = share(run, [], Path(), SINGLE_RANK, folders["alone"])
    place = ["runtime=ray", f"pools.train.processes={size}", *options]
    work = partial(share, run, place, folders["alone"] / "00000001")
    apart, *others = together(work, folders["apart"], size=size)
    for found in (apart, *others):
        assert found["answers"] == alone["answers"], "which are sampled with all experts"
        for mine, whole in zip(found["metrics"], alone["metrics"], strict=True):
            assert all(map(partial(math.isclose, rel_tol=NEAR, abs_tol=NEAR), mine, whole))
    one, two, again, taken = (loaded(read(folders["apart"] / f"{n:08d}")) for n in (1, 2, 3, 4))
    saved = loaded(read(folders["alone"] / "00000001"))
    same(again, two)  # it goes on bit for bit
    same(taken, saved)  # ranks hold what one rank has saved
    states = [state["groups"]["actor"]["optimizer"][0]["state"].values() for state in (one, saved)]
    gradients = [torch.cat([moment["exp_avg"].flatten() for moment in moments]) for moments in states]
    assert float((gradients[0] - gradients[1]).norm()) <= NEAR * float(gradients[1].norm())
    policy = {f"policy {name}": value for name, value in two["roles"]["policy"].items()}
    assert all(torch.equal(apart["sent"][name], value) for name, value in policy.items())
    assert {len(value) for name, value in apart["sent"].items() if ".experts." in name} <= {4}
