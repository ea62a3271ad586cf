"""Generative reward models: a model is asked about a picture or a response, and what it says is the reward.

It runs in Burnish's own decoder, or behind an address, and sees the pictures of the prompt. Its score is the
probability of its answers, without a word written (VQAScore, Lin et al. 2024, arXiv:2404.01291), or what it writes,
read by a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from burnish.options import BelowOne, Count, Finite
from burnish.registry import ReadIf, options, register
from burnish.rewards.base import NOTHING, Compared, Reward, RewardInputs, Score
from burnish.rewards.judges import forms
from burnish.rewards.judges.backends import DecoderOptions, EndpointOptions
from burnish.rewards.judges.forms import Subject
from burnish.rewards.text.base import LanguageReward, Response
from burnish.types.media import Media, evenly_spaced
from burnish.types.prompt import Prompt
from burnish.types.samples import Clip, Kind
from burnish.utils.errors import UserError
from burnish.utils.paths import resolve

YES_NO = {"Yes": 1.0, "No": 0.0}
SHOWN_FRAMES = 8  # of a clip, shown together
OF_ANSWERS = ReadIf("form", "answers")

ResponseForm = Annotated[
    Literal["answers", "yes", "yes_no", "scores", "pair"],
    Field(
        description="What is asked, and how the reply is read: answers (yours, by probability or by a pattern), yes: "
        "P(yes), yes_no: P(yes) / (P(yes) + P(no)), scores: the expected digit of 1 to 5, pair: the share of "
        "comparisons with the other responses of its group that it wins."
    ),
]


@options
class FormOptions:
    """What a judge is asked, and how its reply is read."""

    subject: ClassVar[Literal["picture", "response"]]
    name: ClassVar[str]
    form: str  # the classes that are registered list what they know

    question_file: str | None = None
    """Text file with the question, whose places {prompt}, {answer}, {response} and others of the form are replaced;
    null takes the question that comes with the form."""
    answers: Annotated[dict[Annotated[str, Field(pattern=r"\S")], Finite], OF_ANSWERS] = Field(
        default_factory=lambda: dict(YES_NO), min_length=1
    )
    """Form answers: what the judge may answer, and what each is worth. Without a pattern nothing is written: the reward
    is the mean of the worths by the probabilities of the answers."""
    normalise: Annotated[bool, OF_ANSWERS] = True
    """Form answers: divide by the sum of these probabilities, P(Yes) / (P(Yes) + P(No)); false takes P(Yes) as is."""
    least: Annotated[BelowOne, OF_ANSWERS] = forms.LEAST
    """Form answers: missing where the answers together are less likely than this: the judge says something else."""
    pattern: Annotated[str | None, OF_ANSWERS] = None
    """Form answers: regular expression of the score. The judge writes, greedily, and the first group of the last
    match is a number, or one of the answers; where nothing matches, the reward is missing. null reads probabilities."""
    max_new_tokens: Count | None = None
    """Most tokens that the judge writes, for forms that write; null takes 256 with a pattern, and 2048 otherwise."""

    @model_validator(mode="after")
    def _form_reads(self) -> Self:
        if self.pattern is not None:
            _check_pattern(self.pattern)
            if not self.normalise or self.least != forms.LEAST:
                raise ValueError("normalise and least are never read with a pattern; leave them out")
        if self.max_new_tokens is not None and self._form.parse is None:
            without = "without a pattern" if self.form == "answers" else f"when form is {self.form}"
            raise ValueError(f"max_new_tokens is never read {without}, as nothing is written; leave it out")
        return self

    @property
    def _form(self) -> forms.Form:
        if self.form == "answers":
            return forms.own(
                self.subject, self.answers, normalise=self.normalise, least=self.least, pattern=self.pattern
            )
        return forms.named(self.form, self.subject)

    def _question(self) -> str:
        try:
            return self._form.question(None if self.question_file is None else Path(resolve(self.question_file)))
        except UserError as error:
            raise UserError(f"question_file of reward {self.name} is {self.question_file}: {error}") from None

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that lack what the question asks about."""
        super().check(prompts)  # type: ignore[misc]
        needs_answer = "{answer}" in self._question()
        for prompt in filter(self.applies_to, prompts):  # type: ignore[attr-defined]
            if needs_answer and prompt.answer is None:
                raise UserError(f"{prompt.name} has no answer, which the question of reward {self.name} names; add it")
            try:
                self._form.questions(prompt)
            except ValueError as error:
                raise UserError(f"reward {self.name} with form {self.form}: {error}") from None

    def compares(self) -> Compared:
        """What it judges."""
        return "groups" if self._form.pairs else "samples"

    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt], inputs: RewardInputs = NOTHING) -> list[Score]:
        """One score per sample, of each by itself or against the others of its group."""
        subjects = [self._subject(sample, prompt) for sample, prompt in zip(samples, prompts, strict=True)]
        form, question = self._form, self._question()
        ask = partial(self.replies, max_new_tokens=self.max_new_tokens or form.max_new_tokens)
        if form.pairs:
            return forms.compared(ask, form, question, subjects, prompts, inputs.groups(prompts))
        return forms.scored(ask, form, question, subjects, prompts)

    def replies(
        self, shown: Sequence[Prompt], questions: Sequence[forms.Question], max_new_tokens: int
    ) -> list[forms.Reply]:
        """Whoever answers, see ``forms.Ask``."""
        raise NotImplementedError

    def _subject(self, sample: Any, prompt: Prompt) -> forms.Subject:
        """A sample as the judge meets it."""
        raise NotImplementedError


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"pattern is {pattern!r}, which is no regular expression: {error}") from None
    if not groups:
        raise ValueError(f"pattern is {pattern!r}; it must have a group around the score, as in (\\d+)")


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

    @model_validator(mode="after")
    def _frames_are_not_compared(self) -> Self:
        if self.frames is not None and self._form.pairs:
            raise ValueError(f"form {self.form} compares samples, and frames judges each frame by itself; leave it out")
        return self

    def _subject(self, sample: Any, prompt: Prompt) -> Subject:
        drawn = [sample]
        if isinstance(sample, Clip):
            drawn = [sample.frames[i] for i in evenly_spaced(len(sample.frames), SHOWN_FRAMES)]
        words = {"prompt": prompt.text, "negative": prompt.negative, "answer": prompt.answer or ""}
        return Subject(words, (*prompt.images, *map(Media.array, drawn)), given=len(prompt.images))


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
    """Prompts with images or videos where the judge can't see them: refuse them, or leave_out the media."""

    def unfit(self, prompt: Prompt) -> str:
        unseen = self.media == "refuse" and (prompt.images or prompt.videos) and not self._sees
        ways = "give a model that sees, or set media=leave_out to judge the text alone"
        return f"the judge can't see the images; {ways}" if unseen else ""


@register("language reward", "judge_endpoint")
class LanguageJudgeEndpoint(EndpointOptions, ResponseJudge):
    """What a language model behind an OpenAI-compatible address answers when it is asked about the response."""

    form: ResponseForm = "yes_no"
    media: Literal["show", "leave_out"] = "show"
    """show sends the images of prompts, and refuses prompts with videos or sounds; leave_out judges the text."""

    def unfit(self, prompt: Prompt) -> str:
        unsent = self.media == "show" and (prompt.videos or prompt.audios)
        return "its videos and sounds can't be sent; set media=leave_out to judge the text" if unsent else ""
