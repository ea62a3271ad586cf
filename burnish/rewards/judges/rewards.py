"""Generative reward models: a model is asked about a picture or a response, and what it says is the reward.

It runs in Burnish's own decoder, or behind an address, and sees the pictures of the prompt. Its score is the
probability of its answers, without a word written (VQAScore, Lin et al. 2024, arXiv:2404.01291), or what it writes,
read by a pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from burnish.options import Count
from burnish.registry import options, register
from burnish.rewards.base import Reward
from burnish.rewards.judges.forms import Subject
from burnish.rewards.judges.options import DecoderOptions, EndpointOptions, FormOptions, ResponseForm
from burnish.rewards.text.base import LanguageReward, Response
from burnish.types.media import Media, evenly_spaced
from burnish.types.samples import Clip, Kind
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt


@options
class PictureJudge(FormOptions, Reward):
    """Shows a picture, or frames of a clip, to a judge."""

    subject: ClassVar[Literal["picture", "response"]] = "picture"
    reads: ClassVar[tuple[Kind, ...]] = ("image", "clip")

    form: Literal[
        "answers", "yes", "yes_no", "scores", "pair", "vqascore", "soft_tifa_gm", "soft_tifa_am", "unified_reward",
        "unified_reward_2", "unified_reward_think", "unified_reward_flex", "unified_reward_edit", "rational_rewards",
        "rational_rewards_edit", "qwen_aesthetic",
    ] = "vqascore"  # fmt: skip
    """What is asked, and how the reply is read: vqascore: P("Yes"); yes, yes_no, scores, pair and answers as for
    responses; soft_tifa_gm and soft_tifa_am: GenEval2's mean over the questions in vqa_list of the record; the others
    read what the judge of that name writes, and need its question_file."""
    conditions: bool = True
    """Show the pictures that the prompt begins from, as those of an edit, before what was drawn."""
    shown_frames: Count = 8
    """Frames of a clip that are shown together, evenly spaced; with frames each of these is judged by itself."""

    @model_validator(mode="after")
    def _frames_are_shown(self) -> Self:
        if self.frames is not None and self.shown_frames != 8:
            raise ValueError("shown_frames is never read with frames, where each frame is judged by itself")
        if self.frames is not None and self._form.pairs:
            raise ValueError(f"form {self.form} compares samples, and frames judges each frame by itself; leave it out")
        return self

    def _subject(self, sample: Any, prompt: Prompt) -> Subject:
        drawn = [sample]
        if isinstance(sample, Clip):
            drawn = [sample.frames[i] for i in evenly_spaced(len(sample.frames), self.shown_frames)]
        first = prompt.images if self.conditions else ()
        words = {"prompt": prompt.text, "negative": prompt.negative, "answer": prompt.answer or ""}
        return Subject(words, (*first, *map(Media.array, drawn)), given=len(first))


@register("flow reward", "judge")
class Judge(DecoderOptions, PictureJudge):
    """What a vision-language model answers when it is asked about the picture."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        if not self._sees:
            raise UserError(
                f"path of reward judge is {self.path!r}, which has no processor, so that it can't see what it judges; "
                "give a vision-language model"
            )


@register("flow reward", "judge_endpoint")
class JudgeEndpoint(EndpointOptions, PictureJudge):
    """What a vision-language model behind an OpenAI-compatible address answers when it is asked about the picture."""


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
class LanguageJudge(DecoderOptions, ResponseJudge):
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
class LanguageJudgeEndpoint(EndpointOptions, ResponseJudge):
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
