"""Any Python function or class as a reward on pictures, clips or sounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from burnish.registry import register
from burnish.rewards.base import Reward
from burnish.rewards.function import FunctionReward, Half, place
from burnish.types.clips import Kind
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt

DRAWN = {  # what a model has to draw for a function to get what it asks for
    "videos": ("clip",), "video": ("clip",), "audios": ("clip", "sound"), "audio": ("clip", "sound"),
}  # fmt: skip


@register("flow reward", "function")
class Function(FunctionReward, Reward):
    """A function or class of yours, async or not, which gets what its parameters are named after: images, prompts,
    references, latents, condition_images, extra_info, keys of the record (docs/rewards.md).

    It returns a number per sample, None where there is none, or a dict with a score and further values. Of a model
    that draws clips ``images`` are ``burnish.types.clips.Clip``, or the frames that ``frames`` names.
    """

    takes: ClassVar[str] = "images, prompts"
    half: ClassVar[Half] = "drawn"
    reads: ClassVar[tuple[Kind, ...]] = ("image", "clip", "sound")

    def refusal(self, drawn: Kind) -> str:
        wrong = [name for name in self._call.values if drawn not in DRAWN.get(name, (drawn,))]
        return (
            f"{place(self._thing)} asks for {wrong[0]}, but the model draws {drawn}s"
            if wrong
            else super().refusal(drawn)
        )

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        if self.frames is not None and self.compares() != "samples":
            raise UserError(
                f"{place(self._thing)} compares {self.compares()}, and frames is given, whose values are those of "
                "single frames; leave frames out, and choose frames in the function"
            )
