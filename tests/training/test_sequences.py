"""Ranks that split sequences learn what one rank learns: losses and gradients of all weights."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from burnish.checkpoint.files import read
from burnish.checkpoint.store import CheckpointStore
from burnish.config import load
from burnish.tasks import assemble
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.training.sequences import Split, chunks
from burnish.training.sharding import local_shard
from tests.support.optional import seldom
from tests.support.rank_runs import learn, together
from tests.support.tiny_run import TinyRun

pytestmark = pytest.mark.cluster

HEADS = [(4, 4), (6, 3), (7, 1), (6, 2), (8, 2)]  # of queries, and of keys


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k, v = (one.transpose(1, 2) for one in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)


def attended(ranks: Ranks, folder: Path) -> list[Any]:
    """What a rank has of queries of 7 tokens that attend to 9, and the gradients of all of their sum of squares."""
    found = []
    for heads, groups in HEADS:
        draw = torch.Generator().manual_seed(heads)
        shapes = [(2, 7, heads, 4), (2, 9, groups, 4), (2, 9, groups, 3)]
        given = [torch.randn(shape, generator=draw).requires_grad_() for shape in shapes]
        if ranks.size == 1:
            out = attention(*given)
        else:
            queries, keys = (Split(ranks, chunks(count, ranks.size)) for count in (7, 9))
            own = [one[:, split.own] for one, split in zip(given, (queries, keys, keys), strict=True)]
            out = queries.gathered(queries.attend(attention, *own, keys), 1)
        out.square().sum().backward()
        found.append([out.detach(), *(one.grad for one in given)])
    return found


@pytest.mark.parametrize("size", [3, *seldom(2, 4)])
def test_any_number_of_heads_is_shared_out(size: int, tmp_path: Path) -> None:
    ranks = together(lambda ranks, folder: attended(ranks.in_contexts(size).context, folder), tmp_path, size=size)
    for case, alone in enumerate(attended(SINGLE_RANK, tmp_path)):
        parts = [found[case] for found in ranks]
        for one, *_ in parts:
            torch.testing.assert_close(one, alone[0])
        for number, gradient in enumerate(alone[1:], start=1):  # each rank has those of its own tokens
            torch.testing.assert_close(sum(part[number] for part in parts), gradient)


def begun(recipe: Path, options: list[str], layout: str, ranks: Ranks) -> Any:
    several = ["runtime=ray", f"pools.train.processes={ranks.size}", f"sharding.{layout}"]
    config = load(str(recipe), [*options, *(several if ranks.size > 1 else [])])
    ranks = ranks.in_contexts(config.sharding.context_parallel, config.sharding.tensor_parallel)
    assembly = assemble(config, ranks, trains=True)
    assembly.check_data()
    assembly.check()
    return assembly


def learned(recipe: Path, options: list[str], layout: str, ranks: Ranks, folder: Path) -> tuple[Any, dict[str, Tensor]]:
    assembly = begun(recipe, options, layout, ranks)
    metrics, weights = learn(assembly, 1), assembly.workers.groups[0].parameters
    gradients: dict[str, Any] = {name: one.grad for name, one in weights.items() if one.grad is not None}
    return metrics, {name: one.full_tensor() if hasattr(one, "full_tensor") else one for name, one in gradients.items()}


def resumed(recipe: Path, options: list[str], layout: str, ranks: Ranks, folder: Path) -> list[tuple[Tensor, Tensor]]:
    """This rank's weights after two updates, with and without a checkpoint between them."""
    assembly, again = (begun(recipe, options, layout, ranks) for _ in range(2))
    store = CheckpointStore(folder / "checkpoints", assembly.config.checkpoint, ranks)
    learn(assembly, 1)
    saved = read(store.save(1, assembly.state_dict(), identity=assembly.identity, score=None))
    learn(assembly, 2)
    again.load_state_dict(saved.load(again.identity, again.state_dict()))
    learn(again, 2)
    both = [[local_shard(one) for one in run.workers.groups[0].parameters.values()] for run in (assembly, again)]
    return list(zip(*both, strict=True))


TABLE = yaml.safe_load(Path(__file__).with_name("sequences.yaml").read_text())
NEAR = {("wan2.1", "context_parallel=2"): 1e-5, ("qwen2_5_vl", "tensor_parallel=2"): 4e-6}  # sums that all but cancel
ONCE = ["model.lora=null", "trainer.mini_batch_size=null", "trainer.epochs=1", "optimizer.max_grad_norm=1000"]


def each(kind: str) -> pytest.MarkDecorator:
    names, marks = ("half", "model", "options", "ranks", "layout"), {True: (), False: pytest.mark.thorough}
    rows = [row | {"options": [one for some in row["options"] for one in some]} for row in TABLE[kind]]
    each = [pytest.param(*(row[name] for name in names), marks=marks["often" in row]) for row in rows]
    return pytest.mark.parametrize(names, each)


@pytest.mark.slow
@each("learned")
def test_losses_and_gradients_are_those_of_one_rank(half, model, options, ranks, layout, files, tmp_path):
    run = TinyRun(files, half, model, *ONCE, *options, name=f"sequences/{model}")
    near = NEAR.get((model, layout), 1e-6)
    metrics, gradients = learned(run.recipe, run.options, layout, SINGLE_RANK, tmp_path)
    for found, theirs in together(partial(learned, run.recipe, run.options, layout), tmp_path, size=ranks):
        for name, value in metrics.items():
            if not name.startswith("global_seqlen/"):  # of each rank
                assert found[name] == pytest.approx(value, rel=near, abs=1e-6), name
        assert theirs.keys() == gradients.keys()
        apart = sum(float((theirs[name] - one).square().sum()) for name, one in gradients.items())
        assert apart <= near**2 * sum(float(one.square().sum()) for one in gradients.values())


@pytest.mark.slow
@each("resumed")
def test_a_resumed_run_has_the_same_bits(half, model, options, ranks, layout, files, tmp_path):
    run = TinyRun(files, half, model, *ONCE, *options, name=f"resumed/{model}")
    for found in together(partial(resumed, run.recipe, run.options, layout), tmp_path, size=ranks):
        assert all(torch.equal(one, other) for one, other in found)
