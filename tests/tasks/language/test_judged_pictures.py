"""Reward models of pictures that were drawn for prompts: they learn pairs of two pictures, and score drawn ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from burnish.config import load
from burnish.rewards.judging import judge
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils.errors import ConfigError, UserError
from tests.support.asked import flow_reward, reward
from tests.support.language_runs import trained as updates
from tests.support.reward_models import assembly_of, exported, recipe_of
from tests.support.tiny_language import tiny_language
from tests.support.tiny_recipes import write_lines, write_recipe

QUESTION = "Is this {prompt}?"
PROMPTS = ("night", "a dark room", "ink")


def grey(value: int, seed: int) -> np.ndarray:
    """A picture of 24 x 16 pixels about as bright as that."""
    noise = np.random.default_rng(seed).integers(-20, 20, (16, 24, 3))
    return np.clip(value + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pairs of a dark picture, which is the better one, and a bright one; and scores of single ones."""
    made = tmp_path_factory.mktemp("judged_pictures")
    tiny_language(made / "seeing", "qwen2_5_vl")
    pairs, scores = [], []
    for number, prompt in enumerate(PROMPTS * 2):
        for name, value in (("dark", 40), ("bright", 210)):
            Image.fromarray(grey(value, number)).save(made / f"{name}{number}.png")
        pairs.append({"prompt": prompt, "chosen": f"dark{number}.png", "rejected": f"bright{number}.png"})
        scores += [
            {"prompt": prompt, "image": f"{name}{number}.png", "score": score}
            for name, score in (("dark", 1.0), ("bright", -1.0))
        ]
    write_lines(made / "pairs.jsonl", pairs)
    write_lines(made / "scores.jsonl", scores)
    return made


def recipe(folder, algorithm="bradley_terry", **data):
    files = {"bradley_terry": "pairs.jsonl", "score_regression": "scores.jsonl"}
    return write_recipe(
        folder / f"{algorithm}.yaml",
        {
            "task": "image-text-to-text",
            "model": {"path": str(folder / "seeing"), "device": "cpu"},
            "data": {"train_files": str(folder / files[algorithm]), "train_batch_size": 6, **data},
            "algorithm": {"name": algorithm, "question": QUESTION},
            "optimizer": {"lr": 5e-3},
            "steps": 12,
            "output_dir": str(folder / f"run-{algorithm}"),
        },
    )


def test_each_picture_is_asked_about_behind_those_that_its_prompt_begins_from(folder):
    record = {"prompt": "it darker", "images": ["bright0.png"], "chosen": "dark0.png", "rejected": "bright1.png"}
    write_lines(folder / "edits.jsonl", [record | {"data_source": "edits"}])
    assembly = assembly_of(recipe(folder), f"data.train_files={folder / 'edits.jsonl'}", "data.max_pixels=128")
    (one,) = assembly.responses
    digests = [Media.file(folder / name).digest for name in ("bright0.png", "dark0.png", "bright1.png")]
    assert [[media.digest for media in prompt.images] for prompt in one.asked] == [
        digests[:2],
        [digests[0], digests[2]],
    ]
    assert {prompt.text for prompt in one.asked} == {"Is this it darker?"}
    assert [media.digest for media in one.prompt.images] == digests
    assert (one.prompt.source, one.responses) == ("edits", ("", ""))
    assert all(media.fit.max_pixels == 128 for prompt in one.asked for media in prompt.images)


@pytest.mark.parametrize("algorithm", ["bradley_terry", "score_regression"])
def test_it_learns_and_scores_what_a_generator_draws_as_in_training(folder, tmp_path, algorithm):
    assembly = assembly_of(recipe(folder, algorithm, max_pixels=256), "data.train_batch_size=6")
    rows = updates(assembly, 1, 12)
    assert rows[-1]["actor/reward_loss"] < rows[0]["actor/reward_loss"] / 2
    evaluation = assembly.evaluation(assembly)
    judged = evaluation.sampled(evaluation.job(1, None)).samples
    target = exported(assembly, tmp_path / "judge")
    about = json.loads((target / "reward_head.json").read_text())
    assert (about["question"], about["max_pixels"]) == (QUESTION, 256)
    one = flow_reward("reward_model", path=str(target), batch_size=4)
    asked = [(prompt.images[-1], record.prompt) for record in assembly.val_records for prompt in record.asked]
    prompts = [Prompt(text=prompt.text) for _, prompt in asked]
    one.check(prompts)
    found = judge(one, [np.asarray(media.image()) for media, _ in asked], prompts)
    expected = torch.cat([one.scores.flatten() for one in judged])
    torch.testing.assert_close(torch.tensor([verdict.value for verdict in found]), expected, atol=1e-5, rtol=1e-4)
    dark, bright = judge(one, [grey(30, 90), grey(220, 91)], [Prompt(text="night")] * 2)
    assert dark.value > bright.value


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ({"prompt": "ink", "chosen": "dark0.png"}, "has no rejected"),
        ({"prompt": "ink", "chosen": "dark0.png", "rejected": "dark0.png"}, "the same picture as chosen"),
        ({"prompt": ["ink"], "chosen": "dark0.png", "rejected": "dark1.png"}, "must be the text drawn for"),
        ({"chosen": "dark0.png", "rejected": "dark1.png"}, "has no prompt"),
        (
            {"prompt": "ink", "chosen": "a.mp4", "rejected": "b.mp4"},
            "'chosen' is 'a.mp4': .* give a frame of each clip",
        ),
        ({"prompt": "ink", "chosen": "dark0.png", "rejected": ["dark1.png"]}, "'rejected' is .* single pictures"),
        ({"prompt": "ink", "chosen": "a b c", "rejected": "dark1.png"}, r"has a picture .* that can't be read"),
    ],
)
def test_what_is_no_pair_of_pictures_is_refused_with_its_place(folder, tmp_path, records, message):
    write_lines(folder / "wrong.jsonl", [records])
    with pytest.raises(UserError, match=message) as error:
        assembly_of(recipe(folder), f"data.train_files={folder / 'wrong.jsonl'}")
    assert "wrong.jsonl:1" in str(error.value)


def test_a_system_prompt_that_scoring_would_not_have_is_refused(folder):
    with pytest.raises(ConfigError, match="is all that is asked about pictures"):
        load(str(recipe(folder)), ["data.system_prompt=Be strict."])


def test_models_of_the_other_kind_are_refused(folder, tmp_path):
    judges_pictures = exported(assembly_of(recipe(folder)), tmp_path / "pictures")
    judges_answers = exported(assembly_of(recipe_of(tmp_path, "qwen2_5_vl", "bradley_terry")), tmp_path / "answers")
    with pytest.raises(UserError, match="judges pictures that were drawn for a prompt"):
        reward("reward_model", path=str(judges_pictures)).check([Prompt(text="?")])
    with pytest.raises(UserError, match="trained to judge responses"):
        flow_reward("reward_model", path=str(judges_answers)).check([Prompt(text="?")])
    with pytest.raises(UserError, match="no heads that Burnish trained"):
        flow_reward("reward_model", path=str(folder / "seeing")).check([Prompt(text="?")])
