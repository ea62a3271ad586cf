"""How pipelines that nobody has seen may step and what they may return, and what is refused."""

from __future__ import annotations

import itertools

import pytest
import torch

from burnish.models.flow.base import Drawing
from burnish.models.flow.loading import load_model
from burnish.models.flow.runs import Witness
from burnish.options.flow import ModelOptions, RolloutOptions
from burnish.types.prompt import Prompt
from burnish.utils import random
from burnish.utils.errors import UserError
from tests.support.unseen import (
    CombinedPipeline,
    EndsPipeline,
    KeepingPipeline,
    LayersPipeline,
    MomentumPipeline,
    NamingPipeline,
    NestingPainter,
    NestingPipeline,
    NumbersPipeline,
    OwnSchedulerPipeline,
    PriorPipeline,
    RowsPipeline,
    SignedPipeline,
    TwicePipeline,
    TwoStatesPipeline,
    UnseenPainter,
    UnseenPipeline,
    add_to_diffusers,
    write_unseen,
)

REFUSED = {
    TwicePipeline: "noise levels .* don't decrease",
    TwoStatesPipeline: "steps several schedulers in an iteration",
    OwnSchedulerPipeline: "takes no step of its own scheduler",
    LayersPipeline: "it draws 2 pictures for one prompt, and a reward scores one",
    PriorPipeline: "it returns image_embeddings, from which another pipeline draws",
    RowsPipeline: "its scheduler steps 2 rows for one sample",
    MomentumPipeline: "steps depend on more than the state, the time and the prompt",
}


def begin(model, asked):
    """What a run does first, validation's sizes and schedules before the checks on load."""
    model.start(asked, Drawing(steps=4), [("seed", 0)])
    model.schedule(asked, Drawing(steps=4))
    model.verify(asked, guidance=2.0)


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_pipelines_that_step_otherwise_are_refused(kind, tmp_path, monkeypatch):
    add_to_diffusers(monkeypatch)
    model = load_model(
        ModelOptions(path=str(write_unseen(tmp_path, kind))), RolloutOptions(batch_size=96, num_inference_steps=4)
    )
    asked = model.condition([Prompt(text="a cat")], Drawing(steps=4))
    with pytest.raises(UserError, match=f"a {kind.__name__} can't be trained: .*{REFUSED[kind]}"):
        begin(model, asked)


def test_a_pipeline_that_runs_others_is_refused_with_their_names(tmp_path, monkeypatch):
    add_to_diffusers(monkeypatch)
    with pytest.raises(UserError, match=r"runs other pipelines .*\(UnseenPipeline\)"):
        load_model(ModelOptions(path=str(write_unseen(tmp_path, CombinedPipeline))), RolloutOptions(batch_size=96))


def test_a_scheduler_may_be_called_by_names(tmp_path, monkeypatch):
    add_to_diffusers(monkeypatch)
    velocities = []
    for kind in (UnseenPipeline, NamingPipeline):
        model = load_model(
            ModelOptions(path=str(write_unseen(tmp_path / kind.__name__, kind))),
            RolloutOptions(batch_size=96, num_inference_steps=4),
        )
        asked = model.condition([Prompt(text="a cat")], Drawing(steps=4))
        begin(model, asked)
        x, rows = model.start(asked, Drawing(steps=4), [("seed", 0)]), asked.rows()
        velocities.append(model.predict(model.network, x, torch.tensor([0.5]), rows, rows, guidance=2.0))
    assert torch.equal(*velocities)


def test_a_step_may_depend_on_where_it_ends(tmp_path, monkeypatch):
    add_to_diffusers(monkeypatch)
    model = load_model(
        ModelOptions(path=str(write_unseen(tmp_path, EndsPipeline))),
        RolloutOptions(batch_size=96, num_inference_steps=6),
    )
    begin(model, model.condition([Prompt(text="a cat")], Drawing(steps=6)))


@pytest.mark.parametrize(
    ("kind", "painter"), [(SignedPipeline, UnseenPainter), (NestingPipeline, NestingPainter)], ids=["signed", "nested"]
)
def test_pictures_may_come_in_another_range_and_rows_as_lists_of_lists(kind, painter, tmp_path, monkeypatch):
    add_to_diffusers(monkeypatch)
    drawn = []
    for own, network in ((UnseenPipeline, UnseenPainter), (kind, painter)):
        model = load_model(
            ModelOptions(path=str(write_unseen(tmp_path / own.__name__, own, network))),
            RolloutOptions(batch_size=96, num_inference_steps=4),
        )
        asked = model.condition([Prompt(text="a cat")], Drawing(steps=4))
        begin(model, asked)
        x, rows = model.start(asked, Drawing(steps=4), [("seed", 0)]), asked.rows()
        velocity = model.predict(model.network, x, torch.tensor([0.5]), rows, rows, guidance=2.0)
        drawn.append(model.decode_tensor(x - velocity, rows))
    torch.testing.assert_close(*drawn)


def test_what_is_kept_of_a_picture_may_be_noise_before_the_first_step(tmp_path, monkeypatch):
    add_to_diffusers(monkeypatch)
    path = write_unseen(tmp_path, KeepingPipeline)
    model = load_model(ModelOptions(path=str(path)), RolloutOptions(batch_size=96, num_inference_steps=4))
    asked = model.condition([Prompt(text="a cat")], Drawing(steps=4))
    model.verify(asked, guidance=2.0)
    mask = model.noised(asked)
    assert mask.view(2, 32, 3).all(-1).all(-1).tolist() == [False, True]


def test_numbers_of_classes_are_prompts_and_a_sample_may_be_held_twice(tmp_path, monkeypatch):
    add_to_diffusers(monkeypatch)
    path = write_unseen(tmp_path, NumbersPipeline)
    model = load_model(
        ModelOptions(path=str(path)), RolloutOptions(batch_size=96, num_inference_steps=4, guidance_scale=3.0)
    )
    with pytest.raises(UserError, match="draws from the number of a class: give numbers as prompts"):
        model.check([Prompt(text="a cat")])
    prompts = [Prompt(text="7"), Prompt(text="12")]
    model.check(prompts)
    drawing = Drawing(steps=4)
    asked = model.condition(prompts, drawing)
    model.verify(asked, guidance=3.0)
    times, rows = model.schedule(asked, drawing), asked.rows()
    x = model.start(asked, drawing, [("row", i) for i in range(2)])
    own = [
        model.visit(one, 3.0, Witness(model.forwards, own=True), seed=random.key("row", i))
        for i, one in enumerate(rows.each())
    ]
    for at, after in itertools.pairwise(times):
        x = x + (after - at) * model.predict(model.network, x, at.expand(2), rows, rows, guidance=3.0)
    drawn = [model.tail(one, x[i : i + 1]) for i, one in enumerate(rows.each())]
    for ours, theirs in zip(drawn, own, strict=True):
        torch.testing.assert_close(ours.images, theirs.images, rtol=0, atol=1e-5)
    assert (own[0].images - own[1].images).abs().max() > 0.01
