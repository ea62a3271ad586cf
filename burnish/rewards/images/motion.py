"""Motion in the direction that a prompt asks for: verifiable, and read from nothing but pixels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from burnish.registry import register
from burnish.rewards.base import Reward, Score
from burnish.types.samples import Clip, Kind

if TYPE_CHECKING:
    import numpy as np

    from burnish.types.prompt import Prompt

DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}  # in x and y of an image


@register("flow reward", "motion")
class Motion(Reward):
    """How far what a clip shows moves the way that its prompt says, from 0 to 1.

    What differs from the background, the median colour of the border, has a centre in every frame. The value is the way
    from the first centre to the last in the asked direction, as a share of all the way that the centre went, and of
    0.15 of the frame's width or height if it went less: 1 for straight on, 0 for across, back or at rest.

    The direction is ``direction`` in the prompt's record, with data.extra_keys=[direction]: left, right, up or down.
    Without one it is the only such word of the prompt; a prompt that has none is not judged.
    """

    higher_is_better: ClassVar[bool] = False

    judged: ClassVar[str] = "clips"
    reads: ClassVar[tuple[Kind, ...]] = ("clip",)
    numbers = ("agrees",)
    reads_prompts: ClassVar[bool] = True

    def score(self, clips: Sequence[Clip], prompts: Sequence[Prompt]) -> list[Score]:
        return [self._score(clip, prompt) for clip, prompt in zip(clips, prompts, strict=True)]

    def applies_to(self, prompt: Prompt) -> bool:
        return direction_of(prompt) is not None

    def unfit(self, prompt: Prompt) -> str:
        asked = direction_of(prompt)
        return "" if asked in DIRECTIONS else f"its direction is {asked!r}; give one of {', '.join(DIRECTIONS)}"

    def _score(self, clip: Clip, prompt: Prompt) -> Score:
        import numpy as np

        asked = direction_of(prompt)
        assert asked is not None, "only prompts with a direction are judged"
        centres = [_centre(frame) for frame in clip.frames]
        if None in centres:
            return Score(0.0, "a frame shows nothing to follow", {"agrees": 0.0})
        track, (x, y) = np.array(centres), DIRECTIONS[asked]
        height, width = clip.frames.shape[1:3]
        gone = track[-1] - track[0]
        ahead = float(gone[0] * x + gone[1] * y)
        way = float(np.linalg.norm(np.diff(track, axis=0), axis=1).sum())
        value = max(ahead, 0.0) / max(way, 0.15 * (width if x else height))
        went = max(DIRECTIONS, key=lambda name: gone[0] * DIRECTIONS[name][0] + gone[1] * DIRECTIONS[name][1])
        agrees = float(went == asked and ahead > 0)
        return Score(value, f"{ahead:+.1f} of {way:.1f} pixels {asked}", {"agrees": agrees})


def direction_of(prompt: Prompt) -> str | None:
    """The direction that a prompt asks for; None if it names none, or several."""
    given = prompt.info.get("direction")
    if given is not None:
        return str(given)
    named = set(re.findall(r"[a-z]+", prompt.text.lower())) & DIRECTIONS.keys()
    return named.pop() if len(named) == 1 else None


def _centre(frame: np.ndarray) -> tuple[float, float] | None:
    """Where the middle of what a frame [H, W, 3] shows lies, x and y in pixels; None if nothing differs from its
    border."""
    import numpy as np

    pixels = frame.astype(np.float32) / 255
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    contrast = np.abs(pixels - np.median(border, axis=0)).mean(-1)
    contrast[contrast < 0.1] = 0  # of white: background
    total = float(contrast.sum())
    if total < 1.0:  # white pixels: nothing to follow
        return None
    height, width = contrast.shape
    return float(contrast.sum(0) @ np.arange(width)) / total, float(contrast.sum(1) @ np.arange(height)) / total
