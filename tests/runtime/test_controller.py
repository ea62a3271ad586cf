"""The driver of a run on Ray."""

import pytest

from burnish.checkpoint.store import CheckpointStore
from burnish.config import load
from burnish.rollout.online import OnlineSource

pytest.importorskip("ray")

from burnish.runtime.controller import RayController


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
