"""The same run gives the same numbers whoever does its work, in step or ahead of it, and whoever dies meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from burnish.cli import main
from burnish.hooks.stop import EXIT_STOPPED
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.runtime.faults import RestartLimit
from burnish.runtime.weight_stream import Fingerprint, Mismatch
from burnish.runtime.weight_sync import WeightSync
from tests.support import deadly
from tests.support.ray_runs import (
    DRAWING,
    ROUNDING,
    SEEING,
    STEPS,
    assert_close,
    assert_same,
    run,
    saved_updates,
    terminate,
)
from tests.support.runs import metrics_of

pytestmark = pytest.mark.cluster

FORWARD = [
    "algorithm=flow_grpo", "algorithm.window={kind: random, size: 2}", "pools.rollout.processes=1", "pipeline.depth=3"
]  # fmt: skip
DATA = [
    "algorithm=sft", "algorithm.online=false", "data.train_files=burnish:vlm_quickstart/supervised.jsonl"
]  # fmt: skip


@pytest.mark.parametrize(("many", "one"), [("pooled", "seeing"), ("colocated", "adapter")])
def test_several_workers_and_a_single_process_learn_the_same(many, one, reference):
    assert_close(reference(many), reference(one), ROUNDING)


def test_ranks_and_a_worker_that_draws(options, reference, machines, tmp_path):
    apart = ["pools.train.processes=2", "pools.rollout.processes=1"]
    assert run(tmp_path / "run", *options("drawing"), *machines.options(), *apart) == 0
    # pixels are rounded to 8 bits: one that is judged otherwise is seen where rewards are compared with each other
    assert_close(tmp_path / "run", reference("drawing"), 10 * ROUNDING)


@pytest.mark.thorough
def test_a_worker_that_draws_by_a_pipelines_own_code(machines, tmp_path):
    write(describe("wan2.2"), tmp_path / "model", 0)
    clips = [
        "quickstart", *DRAWING, f"model.path={tmp_path / 'model'}", "model.lora.rank=2",
        "rewards.bright.frames.every=2", "rollout.height=32", "rollout.width=32", "rollout.num_frames=5",
        "rollout.max_sequence_length=null", "algorithm=flow_grpo", "algorithm.window={kind: random, size: 2}",
    ]  # fmt: skip
    assert run(tmp_path / "local", *clips) == 0
    assert run(tmp_path / "apart", *clips, *machines.options(), "pools.rollout.processes=1") == 0
    assert_close(tmp_path / "apart", tmp_path / "local", ROUNDING)


@pytest.mark.parametrize("model", ["flux", pytest.param("wan2.2", marks=pytest.mark.thorough)])
def test_ranks_that_split_every_sequence(model, machines, tmp_path):
    write(describe(model), tmp_path / "model", 0)
    size = ["rollout.height=32", "rollout.width=32", "rollout.max_sequence_length=64"]
    if model == "wan2.2":
        size += ["rollout.num_frames=5", "rewards.bright.frames.every=2", "rollout.save=null"]
    drawn = [
        "quickstart", *DRAWING, f"model.path={tmp_path / 'model'}", "model.lora.rank=2",
        "algorithm=flow_grpo", "algorithm.window={kind: random, size: 2}", "rewards.file_size=null",
        "rollout.save={}", *size,
    ]  # fmt: skip
    split = [*machines.options(), "pools.train.processes=2", "sharding.context_parallel=2"]
    assert run(tmp_path / "local", *drawn) == 0
    assert run(tmp_path / "run", *drawn, *split) == 0
    assert_close(tmp_path / "run", tmp_path / "local", 10 * ROUNDING)
    pictures = {path.relative_to(tmp_path / "local") for path in (tmp_path / "local").rglob("samples/**/*.png")}
    assert pictures or model == "wan2.2"
    for name in pictures:
        one, other = (np.asarray(Image.open(tmp_path / who / name), int) for who in ("run", "local"))
        assert abs(one - other).max() <= 1, name


def test_ranks_that_learn_from_data(machines, tmp_path):
    written = [
        "vlm_quickstart",
        *(one for one in SEEING if not one.startswith(("trainer.", "rollout.", "mixing."))),
        *DATA,
    ]
    assert run(tmp_path / "local", *written) == 0
    assert run(tmp_path / "run", *written, *machines.options(), "pools.train.processes=2") == 0
    assert_close(tmp_path / "run", tmp_path / "local", ROUNDING)


def test_a_run_goes_on_with_more_ranks_and_with_fewer(options, reference, machines, fate, tmp_path):
    given = [*options("adapter"), *machines.options()]
    for ranks, first in ((1, 0), (2, 2)):
        fate.plan("train", "update", 2, blow=terminate)
        assert run(tmp_path / "run", *given, f"pools.train.processes={ranks}") == EXIT_STOPPED
        assert fate.met()
        assert saved_updates(tmp_path / "run")[-1] == first + 2
    assert run(tmp_path / "run", *given) == 0
    assert_close(tmp_path / "run", reference("adapter"), ROUNDING)


def ages(folder):
    return [line.get("pipeline/staleness/max") for line in metrics_of(folder)]


def test_samples_are_as_old_as_they_may_be_and_no_older(reference):
    for name in ("ahead", "adapter ahead"):
        assert ages(reference(name)) == [None, 0, 1, 1, 1, 1]
        for line in metrics_of(reference(name))[1:]:
            assert line["pipeline/dropped_batches"] == 0
            assert line["rollout_corr/kl"] is not None
    assert ages(reference("pooled")) == [None] * (STEPS + 1)


@pytest.mark.thorough
def test_a_generator_learns_from_samples_of_three_updates_ago(machines, tmp_path):
    ahead = ["quickstart", *DRAWING, *FORWARD, "steps=5", "model.lora=null"]
    assert run(tmp_path / "run", *[o for o in ahead if o != "steps=3"], *machines.options()) == 0
    assert ages(tmp_path / "run") == [None, 0, 1, 2, 3, 3]
    assert all("rollout_corr/kl" in line for line in metrics_of(tmp_path / "run")[1:])


def bounded(options, depth):
    """Options of a run that samples ahead, with the same bound and another depth: the same samples."""
    given = [option for option in options if not option.startswith("pipeline.")]
    return [*given, f"pipeline.depth={depth}", "pipeline.max_staleness=1"]


def test_the_bound_decides_and_every_publication_is_compared(options, reference, monkeypatch, tmp_path):
    undisturbed = reference("adapter ahead")
    compared = []
    arrived, used = Fingerprint.check, WeightSync._compare

    def check(self, *rest):
        compared.append(self.version)
        arrived(self, *rest)

    def compare(self, switch, version, *rest):
        compared.append(version)
        used(self, switch, version, *rest)

    monkeypatch.setattr(Fingerprint, "check", check)
    monkeypatch.setattr(WeightSync, "_compare", compare)
    assert run(tmp_path / "run", *bounded(options("adapter ahead"), depth=3)) == 0
    assert_same(tmp_path / "run", undisturbed)
    # each of the versions that sample: when it has come, and when it is used
    assert sorted(set(compared)) == [0, 1, 2, 3]
    assert all(compared.count(version) >= 2 for version in range(4))


def test_a_run_ahead_that_is_stopped_goes_on_bit_by_bit(options, reference, fate, tmp_path):
    undisturbed = reference("adapter ahead")
    given = bounded(options("adapter ahead"), depth=2)
    fate.plan("train", "update", 3, blow=terminate)
    assert run(tmp_path / "run", *given) == EXIT_STOPPED
    assert saved_updates(tmp_path / "run")[-1] == 3
    assert run(tmp_path / "run", *given) == 0
    assert fate.met()
    assert_same(tmp_path / "run", undisturbed)


def test_weights_that_change_on_the_way_stop_the_run_and_what_was_learned_stays(
    options, reference, machines, notes, tmp_path
):
    given = [*options("adapter"), *machines.options(), "pools.rollout.processes=1"]
    undisturbed = reference("adapter")
    deadly.spoil_at(notes, deadly.calls(notes) + 5)  # after a trial and validation, while the third batch is judged
    with pytest.raises(Mismatch, match=r"weight sync v3: .* differs between the trainer and worker"):
        run(tmp_path / "run", *given)
    assert saved_updates(tmp_path / "run") == [2, 3]
    assert run(tmp_path / "run", *given) == 0
    assert_same(tmp_path / "run", undisturbed)


def test_an_error_that_only_workers_can_find_is_told_as_in_one_process(machines, tmp_path, capsys):
    wrong = ["vlm_quickstart", *SEEING, "model.lora.rank=2", "model.lora.targets=[nowhere]"]
    said = []
    for place, more in (("local", []), ("ray", [*machines.options(), "pools.train.processes=2"])):
        assert main(["train", *wrong, *more, f"output_dir={tmp_path / place}"]) == 2
        assert not (tmp_path / place).exists()
        said.append(capsys.readouterr().err.partition("burnish: error: ")[2])
    assert said[0].startswith("model.lora.targets has 'nowhere'")
    assert said[1] == said[0]


def test_workers_that_sample_and_judge_are_replaced_and_nothing_changes(options, reference, notes, fate, tmp_path):
    undisturbed = reference("pooled")
    last = deadly.calls(notes) + 7
    deadly.die_at(notes, last)
    fate.plan("rollout", "generate", 2, rank=1)
    fate.plan("rollout", "generate", 4, rank=0)
    assert run(tmp_path / "run", *options("pooled")) == 0
    assert fate.met()
    assert (notes / f"died-{last}").exists()
    assert_same(tmp_path / "run", undisturbed)


@pytest.mark.thorough
def test_ranks_that_sample_give_up_and_make_the_same_samples_again(options, reference, notes, fate, tmp_path):
    undisturbed, given = reference("colocated"), options("colocated")
    fate.plan("train", "generate", 4, rank=1, blow=terminate)
    assert run(tmp_path / "run", *given) == EXIT_STOPPED
    assert fate.met()
    assert saved_updates(tmp_path / "run")[-1] == 3
    # and in the last validation: before it, two ranks have been asked for updates 4 and 5, and on a trial
    for call in (5, 6, 7, 8):
        deadly.slow_at(notes, deadly.calls(notes) + call)
    fate.plan("train", "evaluate", 1, rank=1, blow=terminate)
    assert run(tmp_path / "run", *given) == EXIT_STOPPED
    assert fate.met()
    assert saved_updates(tmp_path / "run")[-1] == 5
    assert not any(name.startswith("val-core/") for name in metrics_of(tmp_path / "run")[-1])
    assert run(tmp_path / "run", *given) == 0
    assert_same(tmp_path / "run", undisturbed)


@pytest.mark.parametrize("name", ["ahead", pytest.param("adapter ahead", marks=pytest.mark.thorough)])
def test_a_worker_that_samples_ahead_gets_the_older_weights_again(name, options, reference, fate, tmp_path):
    """The trainer has gone on when the worker dies, at work or while it receives weights."""
    undisturbed = reference(name)
    fate.plan("rollout", "generate", 3)
    fate.plan("rollout", "receiver.from_broadcast" if name == "ahead" else "receiver.from_store", 5)
    assert run(tmp_path / "run", *options(name)) == 0
    assert fate.met()
    assert_same(tmp_path / "run", undisturbed)


def test_a_trainer_that_loses_a_rank_goes_on_from_its_checkpoint(options, reference, fate, tmp_path):
    undisturbed = reference("colocated")
    # while it loads; in update 1, before there is a checkpoint; and in update 4, asked for the fifth time: back to 2
    fate.plan("train", "check", 1, rank=1)
    fate.plan("train", "update", 1, rank=1)
    fate.plan("train", "update", 5, rank=0)
    assert run(tmp_path / "run", *options("colocated")) == 0
    assert fate.met()
    assert_same(tmp_path / "run", undisturbed)


@pytest.mark.thorough
def test_a_trainer_that_dies_too_often_leaves_its_checkpoint(options, reference, machines, fate, tmp_path):
    fate.plan("train", "update", 3, 4)
    again = [*options("adapter"), *machines.options(max_restarts=1)]
    with pytest.raises(RestartLimit, match=r"pool train had to be replaced 2 times \(ray\.max_restarts=1\)"):
        run(tmp_path / "run", *again)
    assert fate.met()
    assert saved_updates(tmp_path / "run") == [2]
    assert run(tmp_path / "run", *again) == 0
    assert_same(tmp_path / "run", reference("adapter"))
