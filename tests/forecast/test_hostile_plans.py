"""Models and options that no recipe names: a forecast of them, or one message that says what is wrong."""

import sys
from pathlib import Path

import pytest
import torch

from burnish.config import load
from burnish.forecast.brief import kind_of
from burnish.forecast.fakes import Pretending
from burnish.forecast.forecast import forecast
from burnish.forecast.pretended import made_up_prompts
from burnish.forecast.ranks import PretendRanks
from burnish.forecast.suites import first_batch
from burnish.models.tiny import describe, describe_language
from burnish.models.tiny.build import write
from burnish.models.tiny.language.build import write as write_language
from burnish.tasks.job import Job
from burnish.utils.errors import UserError

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import generator_row

RAY = ["runtime=ray"]
FEW = ["data.train_batch_size=2", "rollout.n=2", "rollout.max_new_tokens=8", "trainer.mini_batch_size=null",
       "data.train_files=nowhere.jsonl", "data.val_files=nowhere.jsonl"]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", ["hidream", "sd1.5-controlnet"])
def test_pipelines_whose_rows_or_blocks_are_odd_are_forecast(name: str, tmp_path: Path):
    """A mixture of experts by values, whose rows do not go together; and a chain of convolutions, all but alike."""
    write(describe(name), tmp_path / "pipeline", 0)
    (pool,) = forecast(load(str(generator_row.write_recipe(describe(name), tmp_path)))).pools
    assert pool.highest[1].total


def test_convolutions_of_other_strides_are_not_alike():
    one, two = (torch.nn.Conv2d(8, 8, 3, stride=stride) for stride in (1, 2))
    assert kind_of(one) != kind_of(two)
    assert kind_of(one) == kind_of(torch.nn.Conv2d(8, 8, 3))


def test_experts_count_their_rows_without_values():
    with Pretending().active():
        rows = torch.zeros(1 << 15).argsort() % 4
        assert rows.bincount().numpy().cumsum(0).tolist() == [1 << 15]


@pytest.mark.slow
def test_a_mixture_of_experts_in_float32_is_forecast(tmp_path: Path):
    write_language(describe_language("qwen3_moe"), tmp_path / "model", seed=0)
    options = [f"model.path={tmp_path / 'model'}", "model.dtype=float32", *FEW]
    (pool,) = forecast(load("qwen25_vl/grpo", options)).pools
    assert pool.highest[1].parts["activations"]


@pytest.mark.parametrize(("ranks", "rows"), [(1, 6), (2, 6), (3, 6), (8, 3)])
def test_the_rank_that_validates_most_is_forecast(ranks: int, rows: int):
    """Four prompts of three samples, six at once; of eight ranks the first may have none."""
    config = load("quickstart", ["validation.n=3", "rollout.batch_size=6"])
    job = Job.groups(made_up_prompts(4), 3, purpose="validation", update=0)
    assert len(first_batch(job, config, PretendRanks(ranks)).prompts) == rows


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([*RAY, "pools.train.processes=2", "sharding.context_parallel=2"], "set sharding.context_parallel=1"),
        (["validation.suites=[vlm_quickstart]"], "give another suite"),
        (["validation.suites=[nowhere]"], "must be one of chartqa"),
    ],
)
def test_what_a_run_would_refuse_is_refused_in_its_words(options: list[str], said: str):
    with pytest.raises(UserError) as refused:
        forecast(load("quickstart", options))
    assert said in str(refused.value)
