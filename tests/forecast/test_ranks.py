"""Ranks that are pretended leave nothing behind for real ones."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from burnish.config import load
from burnish.forecast.counter import LiveBytes
from burnish.forecast.forecast import forecast
from burnish.forecast.ranks import pretend_ranks
from burnish.tasks import assemble
from burnish.training.exchange import bring, kept_by_owners
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.types.batch import Batch
from burnish.utils.errors import UserError
from tests.support.factory import tiny_flux
from tests.support.forecasts import counted_on, differences, foretold, wires
from tests.support.rank_runs import together

OPTIONS = ["algorithm=flow_grpo", "model.lora=null", "data.train_batch_size=2", "rollout.n=2", "scoring.processes=0"]


def total(ranks: Ranks, _: Path | None = None) -> float:
    """Of the policy's weights."""
    roles = assemble(load("quickstart", OPTIONS), ranks).roles
    with torch.no_grad(), roles.gathered():
        return float(sum(weight.detach().double().sum() for weight in roles.model.network.parameters()))


@pytest.mark.cluster
def test_what_is_remembered_of_pretended_ranks_is_not_taken_for_real_ones(tmp_path):
    """Processes that are forked from this one would compute with shards of a group that never was."""
    foretold(2, "quickstart", OPTIONS)
    assert together(total, tmp_path) == [total(SINGLE_RANK)] * 2


def test_one_process_that_keeps_its_weights_in_cpu_memory_is_not_forecast():
    with pytest.raises(UserError, match=r"sharding\.offload is true in a single process, and a forecast can't tell"):
        forecast(load("quickstart", ["sharding.offload=true", "model.device=cuda", "model.lora=null"]))


@pytest.mark.cluster
def test_ranks_that_split_sequences_are_foretold(tmp_path):
    options = [
        *OPTIONS, f"model.path={tiny_flux(tmp_path, vae=False)}", "rollout.height=64", "rollout.width=64",
        "rollout.max_sequence_length=64", "rollout.num_inference_steps=3", "algorithm.window.size=1", "runtime=ray",
        "rollout.batch_size=2", "pools.train.processes=2", "trainer.micro_batch_size=2", "sharding.context_parallel=2",
    ]  # fmt: skip
    real, forecast = counted_on(2, "quickstart", options, tmp_path), foretold(2, "quickstart", options)
    differing = differences(real, forecast)
    assert abs(differing["update, forward"]) < 0.1
    assert abs(differing["update, backward"]) < 0.1
    assert wires(forecast) == pytest.approx(wires(real), rel=1e-3)


def test_the_rank_that_samples_most_is_forecast_and_groups_of_others_are_others():
    """Two prompts are one for each of two ranks, whose steps are one micro-batch; of three one rank has two.

    Steps that samples of a group took as one are learned once for each group, not once for all ranks.
    """
    alone = [option for option in OPTIONS if not option.startswith("data.")]
    options = [*alone, "runtime=ray", "pools.train.processes=2", "trainer.micro_batch_size=8"]
    found = [foretold(2, "quickstart", [*options, f"data.train_batch_size={count}"]) for count in (2, 3)]
    once, twice = (phases["update, backward"].wire for phases in found)
    assert twice == 2 * once > 0


@dataclass(kw_only=True)
class Means(Batch):
    """What ranks have annotated."""

    mean: torch.Tensor  # [B, 3, 5]


def brought(ranks: Ranks, _: Path | None = None) -> int:
    """Bytes that come when rows are learned elsewhere than they were annotated: on the first rank 4 of its 6 rows."""
    counter = LiveBytes()
    parts = [range(start, start + 2) for start in range(0, 12, 2)]
    with counter, counter.phase("bring"):
        batch = Means(mean=kept_by_owners(ranks, lambda part: torch.ones(len(part), 3, 5), parts))
        assert len(bring(batch, ranks, [slice(4, 10), slice(0, 4)])) == 6 - 2 * ranks.rank
    return counter.peaks["bring"].wire


@pytest.mark.cluster
def test_rows_that_another_rank_annotated_are_foretold(tmp_path):
    with pretend_ranks(2) as ranks:
        foretold_bytes = brought(ranks)
    assert foretold_bytes == together(brought, tmp_path)[0] == 4 * 3 * 5 * 4
