"""Generative reward models: a language model is asked about a response, and what it says is the reward.

It runs in Burnish's own decoder, or behind an address, and sees the pictures of the prompt. Its score is the
probability of its answers, without a word written (VQAScore, Lin et al. 2024, arXiv:2404.01291), or what it writes,
read by a pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from burnish.registry import options, register
from burnish.rewards.judges.forms import Subject
from burnish.rewards.judges.options import DecoderOptions, EndpointOptions, FormOptions, ResponseForm
from burnish.rewards.text.base import LanguageReward, Response
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt


@options
class ResponseJudge(FormOptions, LanguageReward):
    """Shows a response to a judge."""

    subject: ClassVar[Literal["picture", "response"]] = "response"

    def _subject(self, sample: Response, prompt: Prompt) -> Subject:
        text = prompt.turns[0].text
        if len(prompt.turns) > 1:
            text = "\n".join(f"{message.role}: {message.said}" for message in prompt.turns)
        words = {"prompt": text, "response": sample.text, "answer": prompt.answer or ""}
        if vars(self)["media"] == "leave_out":
            return Subject(words)
        return Subject(words, prompt.images, prompt.videos, given=len(prompt.images))


@register("language reward", "judge")
class Judge(DecoderOptions, ResponseJudge):
    """What a language model answers when it is asked about the response."""

    form: ResponseForm = "answers"
    media: Literal["refuse", "leave_out"] = "refuse"
    """Prompts with pictures or videos where the judge can't see them: refuse them, or leave_out the media."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        for prompt in filter(self.applies_to, prompts):
            if self.media == "refuse" and (prompt.images or prompt.videos) and not self._sees:
                raise UserError(
                    f"reward judge can't see the pictures of prompt {prompt.text[:60]!r}; give a model that sees, or "
                    "set media=leave_out to judge the text alone"
                )


@register("language reward", "judge_endpoint")
class JudgeEndpoint(EndpointOptions, ResponseJudge):
    """What a language model behind an OpenAI-compatible address answers when it is asked about the response."""

    form: ResponseForm = "yes_no"
    media: Literal["show", "leave_out"] = "show"
    """show sends the pictures of prompts, and refuses prompts with videos or sounds; leave_out judges the text."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        for prompt in filter(self.applies_to, prompts):
            if self.media == "show" and (prompt.videos or prompt.audios):
                raise UserError(
                    f"reward judge_endpoint sends pictures alone, and {prompt.name} has a video or a sound; set "
                    "media=leave_out to judge the text"
                )
