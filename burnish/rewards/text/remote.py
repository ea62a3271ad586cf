"""Rewards on responses from HTTP servers: Burnish's own, LightRFT's and OpenRLHF's protocol."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import model_validator

from burnish.registry import ReadIf, register
from burnish.rewards.base import Score
from burnish.rewards.remote import RemoteOptions
from burnish.rewards.text.base import LanguageReward
from burnish.types.prompt import kinds_of
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt


@register("language reward", "remote")
class Remote(RemoteOptions, LanguageReward):
    """What a server makes of the responses."""

    protocol: Literal["lightrft", "openrlhf", "burnish"] = "lightrft"
    """lightrft posts {queries, prompts, responses, references, images}, openrlhf {query, prompts, labels}, and both
    read {rewards}: a number per response, or null. burnish is that of burnish serve-reward; give its address only."""
    score_key: Annotated[str, ReadIf("protocol", "lightrft", "openrlhf")] = "rewards"
    """lightrft, openrlhf: key of the list of numbers in the reply."""

    @model_validator(mode="after")
    def _options_are_read(self) -> Self:
        if self.protocol == "openrlhf" and not self.images:
            raise ValueError("images is never read when protocol is openrlhf, which sends none; leave it out")
        return self

    @property
    def path(self) -> str:
        return super().path if self.protocol == "burnish" else ""

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        for prompt in kinds_of(prompts) if self.protocol == "burnish" else ():
            if self.applies_to(prompt) and (prompt.videos or prompt.audios):
                raise UserError(f"reward remote can't send the videos and sounds of {prompt.name}; leave them out")

    def body(self, samples: Sequence[Any], prompts: Sequence[Prompt]) -> dict[str, Any]:
        """LightRFT's ``references`` and ``images`` are sent if any prompt has some, with null for the others."""
        if self.protocol == "burnish":
            return super().body(samples, prompts)
        texts = {"prompts": [prompt.text for prompt in prompts]}
        queries = [prompt.text + response.text for response, prompt in zip(samples, prompts, strict=True)]
        answers = [prompt.answer for prompt in prompts]
        if self.protocol == "openrlhf":
            return texts | {"query": queries, "labels": answers}
        content = texts | {"queries": queries, "responses": [response.text for response in samples]}
        if any(answer is not None for answer in answers):
            content["references"] = answers
        if self.images and any(prompt.images for prompt in prompts):
            content["images"] = [
                [base64.b64encode(image.read()).decode() for image in prompt.images] or None for prompt in prompts
            ]
        return content

    def read(self, reply: Any) -> list[Score]:
        """Of a list of numbers, in which null is missing."""
        if self.protocol == "burnish":
            return super().read(reply)
        values = reply.get(self.score_key) if isinstance(reply, dict) else None
        if not isinstance(values, list):
            raise ValueError(f"its reply has no list {self.score_key!r}")
        where = ", ".join(self.urls)
        return [
            Score(float(value))
            if type(value) in (int, float) and math.isfinite(value)
            else Score(None, f"{where} returned {value!r:.80}, which is not a finite number")
            for value in values
        ]
