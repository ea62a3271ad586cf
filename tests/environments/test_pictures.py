"""Tools that return pictures: what they show, and that the next turn is given it."""

from __future__ import annotations

from copy import copy

import numpy as np
import pytest
from PIL import Image

from burnish.environments import pictures
from burnish.environments.base import Environment, Observation
from burnish.environments.schemas import schema
from burnish.environments.tools import Tools
from burnish.registry import options
from burnish.types.media import Media
from burnish.types.prompt import Message, Part, Prompt
from tests.support.games import play
from tests.support.language_samples import model_of

PAGE = np.full((40, 80, 3), 255, dtype=np.uint8)
PAGE[10:20, 60:70] = (200, 0, 0)
HERE = "burnish.environments.pictures"


def page() -> Image.Image:
    return Image.fromarray(PAGE)


def prompt() -> Prompt:
    parts = (Part("image"), Part("text", "What is red?"))
    return Prompt(text="<image>What is red?", messages=(Message("user", parts),), images=(Media.array(PAGE),))


def test_a_part_is_enlarged_to_the_size_of_the_picture():
    found = pictures.zoom([60, 10, 70, 20], images=[page()])
    assert found.size == (80, 80)
    assert np.asarray(found).reshape(-1, 3).std(0).max() == 0  # nothing but the square
    assert pictures.zoom_relative([750, 250, 875, 500], 1, images=[page()]).tobytes() == found.tobytes()
    assert pictures.zoom([0, 0, 80, 1], images=[page()]).size == (1024, 13)
    assert pictures.crop([-5, 10, 70.4, 900], images=[page()]).size == (70, 30)


def test_a_strip_that_no_processor_takes_is_told_to_the_model():
    wide = Image.new("RGB", (600, 40))
    for tool in (pictures.crop, pictures.zoom):
        with pytest.raises(ValueError, match=r"a strip of 600 x 2 pixels; take one of a wider side"):
            tool([0, 0, 600, 2], images=[wide])
    assert pictures.crop([0, 0, 200, 2], images=[wide]).size == (200, 2)


def test_what_is_drawn_stays_on_a_copy():
    given = page()
    boxed = pictures.draw_box([5, 5, 20, 20], color="blue", images=[given])
    lined = pictures.draw_line([[0, 0], [10, 0]], images=[given])
    assert boxed.getpixel((5, 10)) == (0, 0, 255)
    assert lined.getpixel((4, 0)) == (255, 0, 0)
    assert given.tobytes() == page().tobytes()


@pytest.mark.parametrize(
    ("box", "number", "message"),
    [([70, 10, 60, 20], 1, "holds no pixel"), ([0, 0, 9, 9], 2, "there are pictures 1 to 1"), ([1, 2], 1, "unpack")],
)
def test_what_can_t_be_shown_is_said(box, number, message):
    with pytest.raises(ValueError, match=message):
        pictures.zoom(box, number, images=[page()])


def test_no_model_is_told_of_the_pictures_that_a_tool_gets():
    made = schema("zoom", pictures.zoom)["function"]["parameters"]
    assert list(made["properties"]) == ["bbox_2d", "image"]
    assert made["required"] == ["bbox_2d"]
    assert "in pixels" in made["properties"]["bbox_2d"]["description"]


@pytest.mark.parametrize("role", ["tool", "user"])
def test_a_picture_that_a_tool_returns_is_shown_and_can_be_looked_at_again(role):
    tools = Tools(functions={"zoom": f"{HERE}:zoom", "draw": f"{HERE}:draw_box"}, calls="pythonic", role=role)
    try:
        episode = tools.episode()
        episode.reset(prompt(), 0)
        seen = episode.step("[zoom(bbox_2d=[60, 10, 70, 20]), draw(bbox_2d=[0, 0, 9, 9])]")
        assert [one.size for one in seen.pictures] == [(80, 80), (80, 40)]
        again = episode.step("[zoom(bbox_2d=[0, 0, 80, 80], image=2)]")
        assert again.pictures[0].tobytes() == seen.pictures[0].tobytes()
        wrong = episode.step("[zoom(bbox_2d=[0, 0, 9, 9], image=9)]")
        assert wrong.pictures == []
        assert "error: ValueError: image is 9; there are pictures 1 to 4" in wrong.words
        assert episode.step("It is the square.").done
        if role == "user":
            assert seen.words.startswith("<tool_response>\n[picture]\n</tool_response>\n<tool_response>")
    finally:
        tools.close()


@options
class Answering(Environment):
    """A tool that shows the same after whatever is said first."""

    def episode(self) -> Answering:
        self.__dict__["seen"] = iter([Observation([page(), "a page"], role="tool"), Observation(done=True)])
        return copy(self)

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        return Observation()

    def step(self, response: str) -> Observation:
        return next(self.__dict__["seen"])


def test_the_result_of_a_tool_keeps_its_pictures_where_a_template_has_no_form_for_results():
    completion, responses = play(Answering(), [prompt()])
    assert all(len(one.dialogue.pictures) == 1 for one in responses)
    for ids, mask, length in zip(completion.ids, completion.mask, completion.length.tolist(), strict=True):
        said = model_of("qwen2_5_vl").tokenizer.decode(ids[:length][~mask[:length]])
        assert said.index("<tool_response>") < said.index("<|image_pad|>") < said.index("a page\n</tool_response>")
