"""A vision-language model judges what a generator draws: in Burnish's own decoder, or behind an address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from burnish.options import Count
from burnish.registry import options, register
from burnish.rewards.base import Reward
from burnish.rewards.judges.forms import Subject
from burnish.rewards.judges.options import DecoderOptions, EndpointOptions, FormOptions
from burnish.types.clips import Clip, Kind
from burnish.types.media import Media, evenly_spaced
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
