"""A vision-language model judges what a generator draws: in Burnish's own decoder, or behind an address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from burnish.options import Count
from burnish.registry import options, register
from burnish.rewards.base import Reward
from burnish.rewards.judges.endpoint_options import EndpointOptions
from burnish.rewards.judges.options import DecoderOptions, FormOptions
from burnish.rewards.judges.questions import Subject, picture_subject
from burnish.types.clips import Kind
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.rewards.judges.replies import Oracle
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
        return picture_subject(sample, prompt, given=self.conditions, frames=self.shown_frames)


@register("flow reward", "judge")
class Judge(PictureJudge, DecoderOptions):
    """What a vision-language model answers when it is asked about the picture."""

    has_weights: ClassVar[bool] = True

    def check(self, prompts: Sequence[Prompt]) -> None:
        self._check_model()
        if not self._sees:
            raise UserError(
                f"path of reward judge is {self.path!r}, which has no processor, so that it can't see what it judges; "
                "give a vision-language model"
            )
        self._check_question(prompts)

    def prepare(self) -> None:
        self._reader()

    def _oracle(self) -> Oracle:
        return self._decoder(max_new_tokens=self._new_tokens)


@register("flow reward", "judge_endpoint")
class JudgeEndpoint(EndpointOptions, PictureJudge):
    """What a vision-language model behind an OpenAI-compatible address answers when it is asked about the picture."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        self._check_endpoint()
        self._check_question(prompts)

    def _oracle(self) -> Oracle:
        return self._endpoint(max_new_tokens=self._new_tokens)
