"""Sampling ahead: what is refused, and what it switches on."""

import pytest

from burnish.config import load
from burnish.config.derived import with_derived
from burnish.config.tasks import TASKS
from burnish.config.text import fields
from burnish.options.cluster import PipelineOptions
from burnish.registry import lookup, names
from burnish.utils.errors import ConfigError

ALGORITHMS = [(task.config, name) for task in TASKS.values() for name in names(task.config.algorithm_kind)]


@pytest.mark.parametrize(("depth", "bound", "lag"), [(0, None, 0), (1, None, 1), (3, 1, 1), (1, 3, 1), (2, 0, 0)])
def test_the_lag_is_the_smaller_of_depth_and_bound(depth, bound, lag):
    assert PipelineOptions(depth=depth, max_staleness=bound).lag == lag


def test_one_process_samples_and_learns_in_turn(recipe):
    assert load(recipe).pipeline == PipelineOptions(depth=0)
    with pytest.raises(ConfigError, match=r"pipeline\.depth is 1, but runtime is local.*runtime=ray"):
        load(recipe, ["pipeline.depth=1"])


@pytest.mark.parametrize("option", ["max_staleness=1", "drop=true", "timeout=9"])
def test_options_of_sampling_ahead_are_refused_where_nothing_is(recipe, option):
    with pytest.raises(ConfigError, match=rf"pipeline\.{option.split('=')[0]} is given, but pipeline\.depth is 0"):
        load(recipe, [f"pipeline.{option}"])


def test_where_nothing_is_sampled_nothing_is_sampled_ahead(recipe):
    with pytest.raises(ConfigError, match="trains offline here and samples nothing"):
        load(recipe, ["algorithm=sft", "pipeline.depth=2"])


def corrected(task, algorithm, depth=1):
    tree = with_derived({"algorithm": algorithm, "pipeline": {"depth": depth}}, task)
    return tree["algorithm"].get("rollout_correction", "not said")


@pytest.mark.parametrize(("task", "name"), ALGORITHMS, ids=[name for _, name in ALGORITHMS])
def test_samples_of_older_weights_are_corrected_unless_the_user_says_otherwise(task, name):
    kind = lookup(task.algorithm_kind, name)
    having = "rollout_correction" in fields(kind)
    assert corrected(task, {"name": name}) == ({} if having else "not said")
    assert corrected(task, {"name": name}, depth=0) == "not said"
    if having:
        assert corrected(task, {"name": name, "rollout_correction": None}) is None
        assert corrected(task, {"name": name, "rollout_correction": {"upper": 3.0}}) == {"upper": 3.0}
        assert kind(rollout_correction={}).rollout_correction.weights == "step"


def test_who_trusts_the_samplers_log_probs_gets_the_form_that_does():
    task = TASKS["image-text-to-text"].config
    assert corrected(task, {"name": "grpo", "old_logprob": "sampler"}) == {"mode": "bypass"}
    assert lookup(task.algorithm_kind, "grpo")(old_logprob="sampler", rollout_correction={"mode": "bypass"})


@pytest.mark.parametrize("tree", [{}, {"algorithm": "grpo"}, {"algorithm": {"name": "no_such"}}, {"pipeline": 3}])
def test_a_tree_that_will_be_refused_is_left_as_it_is(tree):
    assert (
        with_derived({"pipeline": {"depth": 1}} | tree, TASKS["text-to-image"].config)
        == {"pipeline": {"depth": 1}} | tree
    )
