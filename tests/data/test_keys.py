"""Keys that options name and no record has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burnish.data.keys import check_keys
from burnish.options.flow import PromptOptions
from burnish.options.language import LanguageDataOptions
from burnish.types.media import Media
from burnish.types.packed import Prompts
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from tests.support.shown import ROOT

PICTURE = Media.file(ROOT / "docs" / "images" / "quickstart.png", "image")
BARE = Prompt(text="a fox")
FULL = replace(BARE, answer="4", label="sums", images=(PICTURE,), inputs=(("depth_image", PICTURE),))
ASKED = {"answer_key": "solution", "label_key": "kind", "images_key": "shots"}


def test_one_record_that_has_it_is_enough():
    options = PromptOptions(**ASKED, input_keys=["depth_image"], extra_keys=["hint"])
    check_keys(Prompts.of([BARE, FULL, BARE]), options)


@pytest.mark.parametrize("option", [*ASKED, "input_keys"])
def test_a_key_that_none_has_is_refused(option):
    named = ASKED.get(option, ["depth_image"])
    with pytest.raises(UserError, match=rf"data\.{option} is .*, which none of the 2 records of data\.train_files has"):
        check_keys(Prompts.of([BARE, BARE]), PromptOptions(**{option: named}))


def test_keys_of_media_that_none_has_are_refused_together():
    options = LanguageDataOptions(train_files="a.jsonl", videos_key="v", audios_key="a", images_key="shots")
    with pytest.raises(UserError, match=r"videos_key is v.*\n.*audios_key is a"):
        check_keys(Prompts.of([FULL]), options)


def test_usual_keys_may_be_absent():
    check_keys(Prompts.of([BARE]), PromptOptions(input_keys=["mask_image"]))
    check_keys(Prompts.of([BARE]), LanguageDataOptions(train_files="a.jsonl"))
