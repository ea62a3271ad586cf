"""Small environments for tests, and an engine that plays them with a tiny model."""

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
    """Shows an image after every response; what it says and when it stops depends on seed and responses."""

    def __init__(self, opening: bool, images: bool, fails: str, turns: int, asks: bool) -> None:
        self.opening, self.images, self.fails, self.turns, self.asks = opening, images, fails, turns, asks
        self.heard: list[str] = []

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self.seed, self.text = seed, prompt.text
        if self.fails == "reset" and prompt.text == "Two?":
            raise RuntimeError("no board")
        if self.fails in ("reward", "length"):
            return Observation(["Begin." * 999]) if self.fails == "length" else Observation(reward=1.0)
        if self.asks:
            return Observation("Be brief.", role="system")
        return Observation([noise_image(seed % 1000), "Begin."]) if self.opening else Observation()

    def step(self, response: str) -> Observation:
        self.heard.append(response)
        if self.fails == "step" and self.text == "Two?" and len(self.heard) == 2:
            raise RuntimeError("no such move")
        if self.fails == "type":
            return "well"  # type: ignore[return-value]
        if self.asks and len(self.heard) == 1:
            return Observation("Two?", prompt=Prompt(text="Two?"))
        seen = [noise_image(self.seed % 1000 + len(self.heard), 16, 24)] if self.images else []
        done = len(self.heard) >= self.turns
        return Observation([*seen, f"Turn {len(self.heard)}."], reward=0.5 * len(self.heard), done=done)


@options
class Shows(Environment):
    opening: bool = True
    images: bool = True
    fails: str = ""
    turns: int = 3
    asks: bool = False  # another question after the first answer

    def episode(self) -> Show:
        return Show(self.opening, self.images, self.fails, self.turns, self.asks)


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


def play(environment: Environment, asked: list[Prompt], *, family: Any = "qwen2_5_vl", n: int = 2, **more: Any) -> Any:
    engine = LanguageEngine(Roles(family), batch_size=more.pop("batch_size", 256), seed=more.pop("seed", 0))
    engine.dialogues = Dialogues(engine, environment)
    update, sampling = more.pop("update", 1), more.pop("sampling", SAMPLING)
    told = more.pop("finished", None)
    job = ResponseJob.groups(asked, n, purpose="rollout", update=update, sampling=sampling, finished=told)
    return engine.sample(job)


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
