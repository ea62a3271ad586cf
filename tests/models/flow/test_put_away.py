"""Frozen parts that rest in CPU memory: a second expert and the others take turns on the device."""

import pytest
import torch

from burnish.models.flow.base import Drawing
from burnish.models.flow.loading import load_model
from burnish.models.flow.put_away import PutAway
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.options.flow import ModelOptions, RolloutOptions
from burnish.types.prompt import Prompt


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder, tiny = tmp_path_factory.mktemp("experts"), describe("wan2.2")
    write(tiny, folder / "wan2.2", seed=0)
    size = {"height": tiny.height, "width": tiny.width, "num_frames": tiny.num_frames}
    options = ModelOptions(path=str(folder / "wan2.2"), family="pipeline", networks=["transformer"])
    return load_model(options, RolloutOptions(batch_size=96, num_inference_steps=4, call=dict(tiny.call), **size))


def test_a_second_expert_and_other_frozen_parts_take_turns(model):
    pipeline = model.pipeline
    text, vae, expert = away = [
        PutAway(part, torch.device("cpu")) for part in (pipeline.text_encoder, pipeline.vae, pipeline.transformer_2)
    ]
    for part in away:
        part.instead_of = [other for other in away if other.part in model.never_beside(part.part)]

    def here():
        return [not part.is_away for part in away]

    text.bring()
    vae.bring()
    assert here() == [True, True, False]
    expert.bring()
    assert here() == [False, False, True]
    vae.bring()
    assert here() == [False, True, False]


def test_what_reaches_the_network_is_found_without_gradients_of_the_other_expert(model):
    graded, drawing = [], Drawing(height=model.rollout.height, width=model.rollout.width, steps=4)
    hook = model.pipeline.transformer_2.register_forward_pre_hook(lambda *_: graded.append(torch.is_grad_enabled()))
    conditioning = model.condition([Prompt(text="a cube")], drawing)
    with torch.no_grad():
        model.verify(conditioning, guidance=1.0)
        model.noised(conditioning)
    hook.remove()
    assert graded
    assert not any(graded)


def test_text_encoders_leave_when_prompts_are_encoded(tmp_path):
    """Ranks gather the network after that, where both would not fit."""
    write(describe("flux"), tmp_path / "flux", seed=0)
    model = load_model(ModelOptions(path=str(tmp_path / "flux"), device="cpu"), RolloutOptions(batch_size=96))
    parts = model.pipeline.components
    model.away = encoders = [PutAway(parts[name], torch.device("cpu")) for name in ("text_encoder", "text_encoder_2")]
    came = []
    for part in encoders:
        part.part.register_forward_hook(lambda *_, part=part: came.append(not part.is_away))
    model.condition([Prompt(text="a cube")], Drawing(height=64, width=64, steps=4))
    assert came == [True, True]
    assert all(part.is_away for part in encoders)
