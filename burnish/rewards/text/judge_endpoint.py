"""A language model behind an address judges responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from burnish.registry import register
from burnish.rewards.judges.endpoint_options import EndpointOptions
from burnish.rewards.judges.options import FormOptions, ResponseForm
from burnish.rewards.judges.questions import Subject, response_subject
from burnish.rewards.text.base import LanguageReward
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.rewards.judges.replies import Oracle
    from burnish.types.prompt import Prompt


@register("language reward", "judge_endpoint")
class JudgeEndpoint(EndpointOptions, FormOptions, LanguageReward):
    """What a language model behind an OpenAI-compatible address answers when it is asked about the response."""

    subject: ClassVar[Literal["picture", "response"]] = "response"

    form: ResponseForm = "yes_no"
    media: Literal["show", "leave_out"] = "show"
    """show sends the pictures of prompts, and refuses prompts with videos or sounds; leave_out judges the text."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        self._check_endpoint()
        mine = [prompt for prompt in prompts if self.judges(prompt)]
        for prompt in mine if self.media == "show" else ():
            if prompt.videos or prompt.audios:
                raise UserError(
                    f"reward judge_endpoint sends pictures alone, and {prompt.name} has a video or a sound; set "
                    "media=leave_out to judge the text"
                )
        self._check_question(mine)

    def _oracle(self) -> Oracle:
        return self._endpoint(max_new_tokens=self._new_tokens)

    def _subject(self, sample: Any, prompt: Prompt) -> Subject:
        return response_subject(sample, prompt, media=self.media == "show")
