"""A small visual game of several turns: from the blue cell to the green one, a look and a move at a time.

It shows what an environment is. ``python examples/grid_game.py runs/grid_game`` writes questions to play from, and
demonstrations of hesitant moves to warm a model up with; ``grid_game.yaml`` says how to go on.
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from burnish.environments.base import Observation
from burnish.types.prompt import Prompt

SIZE, CELL = 3, 14  # cells to a side, pixels to a cell
MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
QUESTION = "Which way?"
ANSWER = re.compile(r"<answer>(\w+)</answer>")
Place = tuple[int, int]  # row and column


class GridGame:
    """One game. A move against the wall is a move lost; what is no move at all costs something."""

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self.agent, self.goal = start(random.Random(seed))
        return Observation([rendered(self.agent, self.goal)])

    def step(self, response: str) -> Observation:
        found = ANSWER.fullmatch(response.strip())
        if found is None or found[1] not in MOVES:
            return Observation([rendered(self.agent, self.goal)], reward=-0.1)
        self.agent = moved(self.agent, found[1])
        arrived = self.agent == self.goal
        return Observation([rendered(self.agent, self.goal)], reward=float(arrived), done=arrived)


def start(draw: random.Random) -> tuple[Place, Place]:
    """Two different cells."""
    agent, goal = draw.sample(range(SIZE * SIZE), 2)
    return divmod(agent, SIZE), divmod(goal, SIZE)


def moved(agent: Place, move: str) -> Place:
    """The cell beside, or the same one at the wall."""
    row, column = (min(max(now + by, 0), SIZE - 1) for now, by in zip(agent, MOVES[move], strict=True))
    return row, column


def rendered(agent: Place, goal: Place) -> np.ndarray:
    """What there is to see, uint8 [42, 42, 3]."""
    cells = np.full((SIZE, SIZE, 3), 230, np.uint8)
    cells[goal], cells[agent] = (40, 180, 60), (40, 60, 200)
    return cells.repeat(CELL, 0).repeat(CELL, 1)


def hesitant(agent: Place, goal: Place, draw: random.Random) -> str:
    """Half of the time a move towards the goal, else any."""
    good = [move for move in MOVES if distance(moved(agent, move), goal) < distance(agent, goal)]
    return draw.choice(good if draw.random() < 0.5 else list(MOVES))


def distance(agent: Place, goal: Place) -> int:
    """Moves from one to the other."""
    return abs(agent[0] - goal[0]) + abs(agent[1] - goal[1])


def main(folder: Path, count: int = 4000) -> None:
    """Write the files that the recipe reads."""
    images = folder / "pictures"
    images.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    lines = []
    for _ in range(count):
        agent, goal = start(draw)
        file = images / f"{agent[0]}{agent[1]}-{goal[0]}{goal[1]}.png"
        if not file.exists():
            Image.fromarray(rendered(agent, goal)).save(file)
        said = f"<answer>{hesitant(agent, goal, draw)}</answer>"
        record = {"prompt": f"{QUESTION}<image>", "images": [f"pictures/{file.name}"], "response": said}
        lines.append(json.dumps(record))
    (folder / "demonstrations.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "questions.jsonl").write_text((json.dumps({"prompt": QUESTION}) + "\n") * 64)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
