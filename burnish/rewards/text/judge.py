"""Generative reward models: a language model is asked about a response, and what it says is the reward.

It runs in Burnish's own decoder, or behind an address, and sees the pictures of the prompt. Its verdict is the
probability of its answers, without a word written (VQAScore, Lin et al. 2024, arXiv:2404.01291), or what it writes,
read by a pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from burnish.registry import register
from burnish.rewards.judges.endpoint_options import EndpointOptions
from burnish.rewards.judges.options import DecoderOptions, FormOptions, ResponseForm
from burnish.rewards.judges.questions import Subject, response_subject
from burnish.rewards.text.base import LanguageReward
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.rewards.judges.replies import Oracle
    from burnish.types.prompt import Prompt


@register("language reward", "judge")
class Judge(FormOptions, DecoderOptions, LanguageReward):
    """What a language model answers when it is asked about the response."""

    subject: ClassVar[Literal["picture", "response"]] = "response"
    has_weights: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True

    form: ResponseForm = "answers"
    media: Literal["refuse", "leave_out"] = "refuse"
    """Prompts with pictures or videos where the judge can't see them: refuse them, or leave_out the media."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        self._check_model()
        mine = [prompt for prompt in prompts if self.judges(prompt)]
        for prompt in mine if self.media == "refuse" and not self._sees else ():
            if prompt.images or prompt.videos:
                raise UserError(
                    f"reward judge can't see the pictures of prompt {prompt.text[:60]!r}; give a model that sees, or "
                    "set media=leave_out to judge the text alone"
                )
        self._check_question(mine)

    def prepare(self) -> None:
        self._reader()

    def _oracle(self) -> Oracle:
        return self._decoder(max_new_tokens=self._new_tokens, media=self.media != "leave_out")

    def _subject(self, sample: Any, prompt: Prompt) -> Subject:
        return response_subject(sample, prompt)


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
