"""A tool that draws: a pipeline draws what the policy asks for, and the policy sees it."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from burnish.environments.drawing import Draw
from burnish.environments.schemas import schema
from burnish.environments.tools import Tools
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError

HERE = "burnish.environments.drawing:Draw"
CALL = '<tool_call>{"name": "draw", "arguments": {"prompt": "PROMPT"}}</tool_call>'
SIZE = {"num_inference_steps": 2, "height": 32, "width": 32}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "sd3"
    write(describe("sd3"), folder, 0)
    return str(folder)


def test_a_picture_depends_on_the_words_the_seed_and_the_number_of_the_call(path):
    tools = Tools(functions={"draw": HERE}, arguments={"draw": {"path": path, **SIZE}}, timeout=60)
    tools.check()

    def drawn(*prompts, seed=3):
        """The pictures of a dialogue that asks for one after the other."""
        episode = tools.episode()
        episode.reset(Prompt(text="Draw."), seed)
        said = [episode.step(CALL.replace("PROMPT", prompt)) for prompt in prompts]
        assert all(isinstance(part, Image.Image) for one in said for part in one.content), said[0].content
        return [np.asarray(one.content[0]) for one in said]

    try:
        first, again = drawn("a red square", "a red square")
        assert first.shape == (32, 32, 3)
        assert not np.array_equal(first, again)
        assert np.array_equal(first, drawn("a red square")[0])
        assert not np.array_equal(first, drawn("a blue circle")[0])
        assert not np.array_equal(first, drawn("a red square", seed=4)[0])
    finally:
        tools.close()


def test_half_precision_draws_nearly_the_same(path):
    exact, rounded = (
        np.asarray(Draw(path, dtype=dtype, **SIZE)("a red square", seed=3)).astype(int)
        for dtype in ("float32", "bfloat16")
    )
    assert 0 < np.abs(exact - rounded).mean() < 8


def test_the_model_is_told_of_the_words_alone():
    found = schema("draw", Draw)["function"]
    assert found["description"] == "Draw a picture."
    assert found["parameters"] == {
        "type": "object",
        "properties": {"prompt": {"type": "string", "description": "what it shows"}},
        "required": ["prompt"],
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"environment\.arguments\.draw does not fit .*missing a required argument: 'path'"),
        ({"path": "nowhere"}, "nowhere"),
    ],
)
def test_what_can_t_draw_is_refused_before_anything_is_loaded(arguments, message):
    with pytest.raises(UserError, match=message):
        Tools(functions={"draw": HERE}, arguments={"draw": arguments}).check()


def test_arguments_are_of_classes_that_are_there(path):
    functions = {"zoom": "burnish.environments.pictures:zoom"}
    with pytest.raises(UserError, match=r"arguments\.zoom is given, but .* is no class"):
        Tools(functions=functions, arguments={"zoom": {"image": 2}}).check()
    with pytest.raises(UserError, match=r"environment\.arguments has draw, but environment\.functions has zoom"):
        Tools(functions=functions, arguments={"draw": {"path": path}}).check()


def test_arguments_that_the_pipeline_does_not_take_are_said_when_it_is_loaded(path):
    with pytest.raises(UserError, match=r"does not draw a picture of a text with .*steps.*unexpected keyword"):
        Draw(path, steps=3)
