"""The driver of a run on Ray."""

from types import SimpleNamespace

import pytest

from burnish.checkpoint.store import CheckpointStore
from burnish.config import load
from burnish.rollout.sources import OnlineSource

pytest.importorskip("ray")

from burnish.runtime.controller import RayController
from burnish.runtime.faults import RestartLimit, WorkerDied, WorkerTimeout


class Trainers:
    """Ranks that answer which prompts are short enough."""

    def call_one(self, rank, method):
        assert (rank, method) == (0, "learnable")
        return [1, 2]


@pytest.mark.parametrize(
    ("recipe", "loader", "more"),
    [
        ("quickstart", "burnish.tasks.flow.assembly.load_model", []),
        ("vlm_quickstart", "burnish.tasks.language.assembly.load_language_model", []),
        ("vlm_quickstart", "burnish.tasks.language.assembly.load_language_model", ["data.max_prompt_length=64"]),
    ],
    ids=["flow", "language", "lengths"],
)
def test_the_driver_knows_its_prompts_and_loads_no_network(recipe, loader, more, tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("the driver asked for a network")

    monkeypatch.setattr(loader, refuse)
    config = load(recipe, ["runtime=ray", f"output_dir={tmp_path}", *more])
    controller = RayController(config, CheckpointStore(tmp_path / "checkpoints", config.checkpoint))
    controller.check_data()
    controller.trainers = Trainers()
    source = controller._make_source()
    assert isinstance(source, OnlineSource)
    assert len(source.stream.next_batch()) == config.data.train_batch_size
    assert len(source.stream.items) == (2 if more else len(controller.assembly.train_prompts))
    with pytest.raises(AssertionError, match="asked for a network"):
        _ = controller.assembly.roles


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (WorkerDied("train", 0, "its device failed: CUDA error"), True),
        (WorkerTimeout("timed out (ray.call_timeout)", pool="train"), True),
        (WorkerTimeout("timed out (ray.call_timeout)", pool="rollout"), False),
        (WorkerTimeout("timed out (ray.start_timeout)"), False),
        (RestartLimit("too often"), False),
        (ValueError("of a reward"), False),
    ],
    ids=str,
)
def test_ranks_that_died_or_hang_are_started_again(error, lost, tmp_path):
    config = load("quickstart", ["runtime=ray", f"output_dir={tmp_path}"])
    controller = RayController(config, CheckpointStore(tmp_path / "checkpoints", config.checkpoint))

    class Group(Trainers):
        name, ended, rebuilt = "train", None, 0

        def end(self, why):
            self.ended = why

        def rebuild(self):
            self.ended, self.rebuilt = None, self.rebuilt + 1

        def submit(self, *_, **__):
            return self

        def results(self):
            return [7]

    controller.trainers = Group()
    controller.workers = SimpleNamespace(version=0)
    if lost:
        controller.recover(error)
        assert (controller.trainers.rebuilt, controller.items) == (1, 7)
    else:
        with pytest.raises(type(error)):
            controller.recover(error)
        assert not controller.trainers.rebuilt
