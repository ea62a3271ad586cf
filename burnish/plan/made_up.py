"""What a forecast needs of a run besides its networks: prompts of the longest length, images and scores."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from burnish.rewards.base import NOTHING, RewardInputs, Score
from burnish.rewards.mixing import mix
from burnish.rewards.scoring import Scorer
from burnish.types.media import Fit, Media
from burnish.types.prompt import Message, Part, Prompt, Prompts
from burnish.types.rollout import Scores

if TYPE_CHECKING:
    from burnish.options.language import LanguageDataOptions

WORDS = "a red cube on a blue table beside a window, number "
VALUES = 7  # different rewards, so that groups have something to compare


class FixedScores(Scorer):
    """A scorer that looks at nothing: the networks of rewards are not part of a forecast."""

    overlaps = True

    def __init__(self, config: Any) -> None:
        """With the rewards of a run."""
        super().__init__(config.rewards, config.scoring, config.mixing)

    def start(self) -> None:
        """Nothing to start."""

    def submit(
        self, samples: Sequence[Any], prompts: Sequence[Prompt], inputs: RewardInputs = NOTHING
    ) -> Future[Scores]:
        scores = {
            label: [Score(i % VALUES / VALUES, numbers=dict.fromkeys(reward.numbers, 0.0)) for i in range(len(prompts))]
            for label, reward in self.rewards.items()
        }
        found: Future[Scores] = Future()
        found.set_result(mix(self.rewards, scores, prompts, self.mixing, inputs.update))
        return found


def made_up_prompts(count: int, image: tuple[int, int] | None = None) -> Prompts:
    """Different prompts, where the data of a run is not at hand.

    Args:
        count: of them.
        image: height and width of one that each has; None is none.
    """
    images = () if image is None else (grey(*image),)
    return Prompts.of(Prompt(text=f"{WORDS}{i}", answer="1", images=images) for i in range(count))


def grey(height: int, width: int) -> Media:
    """A grey image."""
    return Media.array(np.full((height, width, 3), 128, np.uint8))


TEXT = 128  # tokens of text beside what a prompt shows, where no limit on its length leaves more
UNLIMITED = 1280  # vision tokens of an image where no option limits it: about a million pixels
SIDE = 28  # pixels by which the side of an image is changed to find the largest that fits
LARGEST = 2048  # pixels of a side
FRAMES, FPS = 32, 2.0  # of a video, where no option chooses fewer
RATE, SECONDS = 16000, 30  # of a sound: what Whisper's encoder takes at once
FILLER = "and "


@dataclass(frozen=True)
class Shape:
    """What a prompt of this size brings."""

    side: int = 0  # of a square image or frame in pixels; 0 brings none
    frames: int = 0  # of a video; 0 brings an image
    seconds: int = 0  # of a sound; 0 brings none
    words: int = 1  # of text


def longest_prompt(model: Any, data: LanguageDataOptions) -> Prompt:
    """The longest prompt that the options let through, most of it image where the model sees.

    Vision tokens cost the vision tower beside the decoder, so that no other prompt of this length costs more.

    Args:
        model: loaded, with what makes tokens of prompts.
        data: options of the run's data.
    """
    limit = data.max_prompt_length
    shape = _media(model, data)
    if shape.side:
        room = UNLIMITED if limit is None else max(limit - TEXT, 1)
        shape = _fitted(model, data, shape, room)
    target = limit if limit is not None else _length(model, _prompt(data, shape)) + TEXT
    return _lengthened(model, data, shape, target)


def _media(model: Any, data: LanguageDataOptions) -> Shape:
    """Which media a prompt brings: by keys and limits that the data section names, else what the model reads."""
    if data.audios_key is not None and model.audio_rate is not None:
        return Shape(seconds=SECONDS)
    limits = (data.videos_key, data.video_max_frames, data.video_max_pixels, data.video_fps)
    if any(one is not None for one in limits):
        return Shape(side=SIDE, frames=data.video_max_frames or FRAMES)
    return Shape(side=SIDE if len(model.placeholders) else 0)


def _fitted(model: Any, data: LanguageDataOptions, shape: Shape, room: int) -> Shape:
    """The same with the largest image or frames that are at most so many tokens."""
    pixels = data.video_max_pixels if shape.frames else data.max_pixels
    most = min(LARGEST, LARGEST if pixels is None else int(pixels**0.5)) // SIDE
    room += _length(model, _prompt(data, Shape()))

    def tokens(side: int) -> int:
        return _length(model, _prompt(data, replace(shape, side=side * SIDE)))

    return replace(shape, side=max(bisect_right(range(1, most + 1), room, key=tokens), 1) * SIDE)


def _lengthened(model: Any, data: LanguageDataOptions, shape: Shape, target: int) -> Prompt:
    """A prompt of this shape with as much text as makes it ``target`` tokens long, or a few less."""
    one, more = (_length(model, _prompt(data, replace(shape, words=words))) for words in (1, 65))
    words = 1 + max(int((target - one) / max((more - one) / 64, 1e-2)), 0)
    while words > 1 and _length(model, _prompt(data, replace(shape, words=words))) > target:
        words -= 1
    return _prompt(data, replace(shape, words=words))


def _length(model: Any, prompt: Prompt) -> int:
    from burnish.language.model.base import decoded

    return int(model.encode(prompt.chat(), decoded(prompt, model.audio_rate)).lengths[0])


def _prompt(data: LanguageDataOptions, shape: Shape) -> Prompt:
    images = (grey(shape.side, shape.side),) if shape.side else ()
    videos: tuple[Media, ...] = ()
    sounds: tuple[Media, ...] = ()
    if shape.frames:
        fit = Fit(max_frames=data.video_max_frames, fps=data.video_fps)
        videos, images = (replace(Media.movie(images * shape.frames, FPS), fit=fit),), ()
    if shape.seconds:
        sounds = (Media.sound(np.zeros(shape.seconds * RATE, np.float32), RATE),)
    places = [*(Part("image") for _ in images), *(Part("video") for _ in videos), *(Part("audio") for _ in sounds)]
    text = (FILLER * shape.words).strip()
    asked = Message("user", (*places, Part("text", text)))
    told = (Message("system", (Part("text", data.system_prompt),)),) if data.system_prompt else ()
    return Prompt(text=text, messages=(*told, asked), images=images, videos=videos, audios=sounds)
