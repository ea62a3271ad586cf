"""What a forecast needs of a run besides its networks: prompts, pictures and scores."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from burnish.data.pictures import PictureRecord, ScoredGroup
from burnish.diffusion.offline import EncodedImages, OfflineImages, ScoredImages
from burnish.rewards.base import NOTHING, AnyReward, RewardInputs, Score
from burnish.rewards.mixing import MixingOptions, mix
from burnish.types.media import Media
from burnish.types.prompt import Prompt, Prompts
from burnish.types.rollout import Scores
from burnish.utils.errors import UserError

WORDS = "a red cube on a blue table beside a window, number "
VALUES = 7  # different rewards, so that groups have something to compare


class Unwritten:
    """A reward of the user's whose function is not on this machine: it asks for nothing."""

    def __init__(self, reward: AnyReward) -> None:
        self._reward = reward

    def required_fields(self) -> tuple[str, ...]:
        return ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reward, name)


def _at_hand(reward: AnyReward) -> Any:
    """A reward, or what stands in for it."""
    try:
        reward.required_fields()
    except UserError:
        return Unwritten(reward)
    return reward


@dataclass(frozen=True)
class MadeUpPictures:
    """Pictures of a data set to learn from, where it is not at hand."""

    records: Sequence[Any]
    n: int = 0  # pictures with rewards of each prompt

    @classmethod
    def of(cls, prompts: Sequence[Prompt], members: int, pixels: np.ndarray, n: int = 0) -> MadeUpPictures:
        """Args: ``members`` pictures like ``pixels`` to a record; ``n`` records with rewards to each prompt."""
        picture = Media.encoded(_grey(*pixels.shape[:2]))
        each = [PictureRecord(prompt, (picture,) * members, "made up") for prompt in prompts]
        if not n:
            return cls(each)
        return cls([ScoredGroup(tuple(replace(one, reward=float(i)) for i in range(n))) for one in each], n)

    @property
    def prompts(self) -> list[Prompt]:
        return [record.prompt for record in self.records]

    def learned_by(self, engine: Any, *, shared: bool) -> OfflineImages:
        encoded = EncodedImages(self.records, engine, crop=None, shared=shared)
        return ScoredImages(self.records, encoded, self.n) if self.n else encoded


@dataclass
class FixedScores:
    """A scorer that looks at nothing: the networks of rewards are not part of a forecast."""

    rewards: Mapping[str, AnyReward]
    mixing: MixingOptions
    overlaps: bool = True

    @classmethod
    def of(cls, config: Any) -> FixedScores:
        """With the rewards of a run."""
        return cls({label: _at_hand(reward) for label, reward in config.rewards.items()}, config.mixing)

    def start(self) -> None:
        """Nothing to start."""

    def close(self) -> None:
        """Nothing to end."""

    def submit(
        self, samples: Sequence[Any], prompts: Sequence[Prompt], inputs: RewardInputs = NOTHING
    ) -> Future[Scores]:
        found: Future[Scores] = Future()
        found.set_result(self.score(samples, prompts, inputs))
        return found

    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt], inputs: RewardInputs = NOTHING) -> Scores:
        scores = {
            label: [Score(i % VALUES / VALUES, numbers=dict.fromkeys(reward.numbers, 0.0)) for i in range(len(prompts))]
            for label, reward in self.rewards.items()
        }
        return mix(self.rewards, scores, prompts, self.mixing, inputs.update)


def made_up_prompts(count: int, picture: tuple[int, int] | None = None) -> Prompts:
    """Different prompts, where the data of a run is not at hand.

    Args:
        count: of them.
        picture: height and width of one that each has; None is none.
    """
    images = () if picture is None else (Media.encoded(_grey(*picture)),)
    return Prompts.of(Prompt(text=f"{WORDS}{i}", answer="1", images=images) for i in range(count))


def _grey(height: int, width: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, height), "grey").save(file, "PNG")
    return file.getvalue()
