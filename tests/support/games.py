"""Small environments for tests, and an engine that plays them with a tiny model."""

import asyncio
from contextlib import nullcontext
from typing import Any

import numpy as np

from burnish.environments.base import Environment, Observation
from burnish.language.dialogues import Dialogues
from burnish.language.engine import LanguageEngine, ResponseJob
from burnish.language.sampling import Sampling
from burnish.registry import options
from burnish.types.media import Media
from burnish.types.prompt import Message, Part, Prompt
from tests.support.language_samples import model_of
from tests.support.tiny_language import FAMILIES, noise_image
from tests.support.universal import universal_model

SAMPLING = Sampling(max_new_tokens=5, temperature=0.9)


class Show:
    """Shows something after every response; what it says and when it stops depends on seed and responses."""

    def __init__(self, how: Any) -> None:
        self.how, self.heard = how, list[str]()

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        self.lock, self.seed, self.fails = asyncio.Lock(), seed, self.how.fails if prompt.text == "Two?" else ""
        if self.fails == "reset":
            raise RuntimeError("no board")
        if self.how.fails in ("reward", "length"):
            return Observation(["Begin." * 999]) if self.how.fails == "length" else Observation(reward=1.0)
        if self.how.asks:
            return Observation("Be brief.", role="system")
        return Observation([noise_image(seed % 1000), "Begin."]) if self.how.opening else Observation()

    async def step(self, response: str) -> Observation:
        async with self.lock:
            await asyncio.sleep(0)
        self.heard.append(response)
        turn = len(self.heard)
        if self.fails == "step" and turn == 2:
            raise RuntimeError("no such move")
        if self.how.fails == "type":
            return "well"  # type: ignore[return-value]
        if self.how.asks and turn == 1:
            return Observation("Two?", prompt=Prompt(text="Two?"))
        film, image = np.full((8, 28, 28, 3), 20 * turn, np.uint8), noise_image(self.seed % 1000 + turn, 16, 24)
        shown = noise_image(0, 900, 2) if self.fails == "strip" else film if self.how.films else image
        content = [*[shown] * self.how.images, f"Turn {turn}."]
        return Observation(content, reward=0.5 * turn, done=turn >= self.how.turns)


@options
class Shows(Environment):
    opening: bool = True
    images: bool = True
    films: bool = False  # in place of images
    fails: str = ""  # how; some alone after the second prompt
    turns: int = 3
    asks: bool = False  # another question after the first answer

    def episode(self) -> Show:
        return Show(self)


class Roles:
    """A network that samples."""

    routers = None

    def __init__(self, family: Any) -> None:
        """Args: ``family`` is a name, or a model."""
        if isinstance(family, str):
            family = model_of(family) if family in FAMILIES else universal_model(family)
        self.model = family

    def sampling(self, *, merge: bool | None = None) -> Any:
        return nullcontext(self.model.network)


def prompts(family: str = "qwen2_5_vl") -> list[Prompt]:
    """One with an image, one without."""
    if family in ("llama", "qwen2"):
        return [Prompt(text="One?"), Prompt(text="Two?")]
    parts = (Part("image"), Part("text", "One?"))
    seen = Media.array(np.asarray(noise_image(7)))
    return [Prompt(text="One?", messages=(Message("user", parts),), images=(seen,)), Prompt(text="Two?")]


def play(
    environment: Environment, asked: list[Prompt], *, family: Any = "qwen2_5_vl", n: int = 2, batch_size: int = 256,
    seed: int = 0, update: int = 1, **how: Any,
) -> Any:  # fmt: skip
    engine = LanguageEngine(Roles(family), batch_size=batch_size, seed=seed)
    engine.dialogues = Dialogues(engine, environment)
    given = {"purpose": "rollout", "update": update, "sampling": SAMPLING} | how
    return engine.sample(ResponseJob.groups(asked, n, **given))


def Boxes() -> Any:
    """An environment of Gymnasium with spaces of several parts."""
    from gymnasium import Env, spaces

    class Moves(Env):
        action_space = spaces.Dict({"move": spaces.Box(-1, 1, (2,)), "name": spaces.Text(8)})
        observation_space = spaces.Dict({"image": spaces.Box(0, 255, (4, 4, 3), np.uint8), "step": spaces.Discrete(9)})

        def reset(self, *, seed=None, options=None):
            return {"image": np.full((4, 4, 3), seed, np.uint8), "step": 0}, {}

        def step(self, action):
            return {"image": np.zeros((4, 4, 3), np.uint8), "step": 1}, action["move"].sum(), False, False, {}

    return Moves()
