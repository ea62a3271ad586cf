"""The worked example: its rules, its files, and a run of two updates."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from burnish.config import load
from burnish.tasks import assemble
from burnish.types.prompt import Prompt
from burnish.utils.user_code import load_object
from tests.support.language_runs import trained, weights

EXAMPLE = Path(__file__).parents[2] / "examples" / "grid_game.py"
game = sys.modules[load_object(f"{EXAMPLE}:GridGame", "environment").__module__]


def test_a_game_is_won_by_going_there():
    one, other = game.GridGame(), game.GridGame()
    first, same = one.reset(Prompt(text="?"), 5), other.reset(Prompt(text="?"), 5)
    assert first.pictures[0].tobytes() == same.pictures[0].tobytes()
    assert first.pictures[0].size == (42, 42)
    draw, rewards = random.Random(0), []
    for _ in range(200):
        seen = one.step(f"<answer>{game.hesitant(one.agent, one.goal, draw)}</answer>")
        rewards.append(seen.reward)
        if seen.done:
            break
    assert seen.done
    assert rewards == [0.0] * (len(rewards) - 1) + [1.0]


@pytest.mark.parametrize("said", ["up", "<answer>north</answer>", "<answer>up</answer> I think", ""])
def test_what_is_no_move_costs_something_and_moves_nothing(said):
    one = game.GridGame()
    one.reset(Prompt(text="?"), 1)
    before = one.agent
    seen = one.step(said)
    assert (seen.reward, seen.done, one.agent) == (-0.1, False, before)


def test_walls_hold():
    assert game.moved((0, 0), "up") == game.moved((0, 0), "left") == (0, 0)
    assert game.moved((2, 1), "right") == game.moved((2, 2), "right") == (2, 2)


def assembly_of(*overrides):
    assembly = assemble(load(str(EXAMPLE.with_suffix(".yaml")), list(overrides)))
    assembly.check_data()
    return assembly


def test_the_recipes_run_on_the_files_that_it_writes(tmp_path):
    game.main(tmp_path, 40)
    records = [json.loads(line) for line in (tmp_path / "demonstrations.jsonl").read_text().splitlines()]
    assert len(records) == 40
    assert all(game.ANSWER.fullmatch(record["response"]) for record in records)
    small = [
        "data.train_batch_size=4", "validation.n=1", "scoring.processes=0", "optimizer.warmup_steps=0", "steps=2",
        "output_dir=unused", "model.path=burnish:vlm_quickstart/model",
    ]  # fmt: skip
    warm = assembly_of(*small, "algorithm=sft", f"data.train_files={tmp_path}/demonstrations.jsonl")
    assert trained(warm, 1, 1)[0]["actor/sft_loss"] > 0
    assembly = assembly_of(
        *small, "rollout.n=2", f"data.train_files={tmp_path}/questions.jsonl", f"environment.path={EXAMPLE}:GridGame",
    )  # fmt: skip
    rows = trained(assembly, 1, 2)
    assert weights(assembly).isfinite().all()
    assert [row["train/dialogue/turns/mean"] for row in rows] == [4, 4]
    assert rows[0]["critic/environment/mean"] < 0  # it does not speak of directions yet
