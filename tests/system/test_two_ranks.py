"""What two ranks learn as one does: pairs of pictures, and dialogues that the template writes anew."""

from __future__ import annotations

import pytest

from tests.support.ray_runs import ROUNDING, assert_close, run
from tests.support.tiny_language import picture, tiny_language
from tests.support.tiny_recipes import language_recipe, write_language_models, write_lines, write_recipe

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]


def test_pairs_of_pictures_are_learned_by_two_ranks_as_by_one(machines, tmp_path):
    tiny_language(tmp_path / "seeing", "qwen2_5_vl")
    for number in range(8):  # sizes of their own, and the pictures that an edit begins from
        picture(number, 16 + 4 * number, 24).save(tmp_path / f"{number}.png")
    pairs = [
        {"prompt": "ink", "chosen": "0.png", "rejected": "1.png"},
        {"prompt": "a dark room", "images": ["6.png"], "chosen": "2.png", "rejected": "3.png"},
        {"prompt": "night", "chosen": "4.png", "rejected": "5.png", "tie": True},
        {"prompt": "ink on paper", "chosen": "7.png", "rejected": "1.png"},
        {"prompt": "snow", "images": ["1.png", "2.png"], "chosen": "6.png", "rejected": "4.png"},
    ]
    write_lines(tmp_path / "pairs.jsonl", pairs)
    recipe = write_recipe(
        tmp_path / "recipe.yaml",
        {
            "task": "image-text-to-text",
            "model": {"path": str(tmp_path / "seeing"), "lora": {"rank": 2}},
            "data": {"train_files": str(tmp_path / "pairs.jsonl"), "train_batch_size": 5},
            "algorithm": {"name": "bradley_terry", "question": "Is this {prompt}?", "ties": "davidson"},
            "optimizer": {"lr": 1e-3},
            "trainer": {"mini_batch_size": 3},
            "validation": {"every": 0},
            "steps": 3,
        },
    )
    assert run(tmp_path / "one", str(recipe), "model.device=cpu") == 0
    assert run(tmp_path / "two", str(recipe), *machines.options(), "pools.train.processes=2") == 0
    assert_close(tmp_path / "two", tmp_path / "one", ROUNDING)


def test_turns_after_rewritten_conversations_are_learned_by_two_ranks_as_by_one(machines, tmp_path):
    write_language_models(tmp_path, ["qwen2_5_vl"])
    recipe = str(write_recipe(tmp_path / "recipe.yaml", language_recipe(tmp_path, "qwen2_5_vl")))
    game = [
        "algorithm=ppo", "algorithm.turn_rewards=true", "validation.every=0", "rewards.odd=null",
        "environment={name: function, path: 'tests.support.games:Show', history: template, max_turns: 3}",
        "environment.arguments={opening: true, pictures: true, fails: '', turns: 3}", "rewards.environment.weight=1",
        "optimizer.lr=1e-3", "rollout.max_new_tokens=4",
    ]  # fmt: skip
    assert run(tmp_path / "one", recipe, *game, "model.device=cpu") == 0
    assert run(tmp_path / "two", recipe, *game, *machines.options(), "pools.train.processes=2") == 0
    assert_close(tmp_path / "two", tmp_path / "one", ROUNDING)
