"""The grid game as an agent with a loop of its own: it knows nothing of Burnish, and asks for each move over HTTP.

It needs ``pip install openai pillow``. ``grid_agent.yaml`` trains the policy that answers.
"""

import base64
import io
import json
import random
import re
import sys
from typing import Any

from openai import OpenAI
from PIL import Image

SIZE, CELL = 3, 14  # cells to a side, pixels to a cell
MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}

Place = tuple[int, int]  # row and column


def view(agent: Place, goal: Place) -> dict[str, Any]:
    """A part of a message: the grid as a PNG."""
    grid = Image.new("RGB", (SIZE, SIZE), (230, 230, 230))
    for (row, column), colour in ((goal, (40, 180, 60)), (agent, (40, 60, 200))):
        grid.putpixel((column, row), colour)
    file = io.BytesIO()
    grid.resize((SIZE * CELL, SIZE * CELL), Image.Resampling.NEAREST).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def play(seed: int, question: str, turns: int = 4) -> float:
    """Ask for moves until the goal is reached; what is no move at all costs something."""
    client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    agent, goal = (divmod(cell, SIZE) for cell in random.Random(seed).sample(range(SIZE * SIZE), 2))
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": question}, view(agent, goal)]}]
    reward = 0.0
    for _ in range(turns):
        reply = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content or ""
        move = re.fullmatch(r"<answer>(\w+)</answer>", reply.strip())
        if move is None or move[1] not in MOVES:
            reward -= 0.1
        else:
            row, column = (min(max(now + by, 0), SIZE - 1) for now, by in zip(agent, MOVES[move[1]], strict=True))
            agent = row, column
        if agent == goal:
            return reward + 1
        messages += [
            {"role": "assistant", "content": reply},
            {"role": "user", "content": [view(agent, goal)]},
        ]
    return reward


if __name__ == "__main__":
    record = json.load(sys.stdin)  # what Burnish gives: messages, seed, answer and further keys of the record
    (text,) = [part["text"] for part in record["messages"][0]["content"]]
    print(play(record["seed"], text))
