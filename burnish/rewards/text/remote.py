"""Rewards on responses from HTTP servers: Burnish's own, LightRFT's and OpenRLHF's protocol."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from burnish.registry import register
from burnish.rewards.base import Verdict
from burnish.rewards.remote import RemoteOptions, by_burnish, numbers_of
from burnish.rewards.text.base import LanguageReward, Response
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
    score_key: str = "rewards"
    """lightrft, openrlhf: key of the list of numbers in the reply."""

    @model_validator(mode="after")
    def _options_are_read(self) -> Self:
        if self.protocol == "burnish" and self.score_key != "rewards":
            raise ValueError("score_key is never read when protocol is burnish; leave it out")
        if self.protocol == "openrlhf" and not self.images:
            raise ValueError("images is never read when protocol is openrlhf, which sends none; leave it out")
        return self

    def check(self, prompts: Sequence[Prompt]) -> None:
        self.check_servers()
        for prompt in kinds_of(prompts) if self.protocol == "burnish" else ():
            if self.judges(prompt) and (prompt.videos or prompt.audios):
                raise UserError(f"reward remote can't send the videos and sounds of {prompt.name}; leave them out")

    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Verdict]:
        shown = ", ".join(self.urls)
        if self.protocol == "burnish":
            ask, read = by_burnish(shown, media=self.images)
            return self.ask_servers(responses, prompts, ask, read, "/score", "/health")
        asks = {"lightrft": self._lightrft, "openrlhf": _openrlhf}

        def numbers(reply: Any, count: int) -> list[Verdict]:
            return numbers_of(reply, self.score_key, count, shown)

        return self.ask_servers(responses, prompts, asks[self.protocol], numbers, "", None)

    def _lightrft(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> dict[str, Any]:
        """``queries`` are prompt and response in one text.

        ``references`` and ``images`` are sent if any prompt has some, with null for the others; pictures as files.
        """
        content: dict[str, Any] = {
            "queries": [prompt.text + response.text for response, prompt in zip(responses, prompts, strict=True)],
            "prompts": [prompt.text for prompt in prompts],
            "responses": [response.text for response in responses],
        }
        if any(prompt.answer is not None for prompt in prompts):
            content["references"] = [prompt.answer for prompt in prompts]
        if self.images and any(prompt.images for prompt in prompts):
            content["images"] = [
                [base64.b64encode(image.read()).decode() for image in prompt.images] or None for prompt in prompts
            ]
        return content


def _openrlhf(responses: Sequence[Response], prompts: Sequence[Prompt]) -> dict[str, Any]:
    return {
        "query": [prompt.text + response.text for response, prompt in zip(responses, prompts, strict=True)],
        "prompts": [prompt.text for prompt in prompts],
        "labels": [prompt.answer for prompt in prompts],
    }
