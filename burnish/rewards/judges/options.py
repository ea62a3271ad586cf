"""Options that judges share: forms, and who answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from burnish.options import BelowOne, Count, Finite
from burnish.registry import options
from burnish.rewards.base import NOTHING, Compared, Given, Verdict
from burnish.rewards.judges import forms
from burnish.rewards.judges.questions import Subject, compared, judged, matched
from burnish.rewards.text.loaded_options import LoadedOptions
from burnish.rewards.text.reading_model import load_reader, sees
from burnish.utils.errors import UserError
from burnish.utils.paths import resolve

if TYPE_CHECKING:
    from burnish.rewards.judges.decoder import DecoderOracle
    from burnish.rewards.judges.replies import Oracle
    from burnish.types.prompt import Prompt

YES_NO = {"Yes": 1.0, "No": 0.0}
# what only form answers reads, with its defaults
OF_ANSWERS: dict[str, Any] = {"answers": YES_NO, "normalise": True, "least": 0.01, "pattern": None}

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
    answers: dict[str, Finite] = Field(default_factory=lambda: dict(YES_NO), min_length=1)
    """Form answers: what the judge may answer, and what each is worth. Without a pattern nothing is written: the reward
    is the mean of the worths by the probabilities of the answers."""
    normalise: bool = True
    """Form answers: divide by the sum of these probabilities, P(Yes) / (P(Yes) + P(No)); false takes P(Yes) as is."""
    least: BelowOne = 0.01
    """Form answers: missing where the answers together are less likely than this: the judge says something else."""
    pattern: str | None = None
    """Form answers: regular expression of the verdict. The judge writes, greedily, and the first group of the last
    match is a number, or one of the answers; where nothing matches, the reward is missing. null reads probabilities."""
    max_new_tokens: Count | None = None
    """Most tokens that the judge writes, for forms that write; null takes 256 with a pattern, and 2048 otherwise."""
    opponents: Count | None = None
    """Forms that compare two samples: how many others of its prompt each is compared with at least, both ways around;
    null compares all with all."""

    @model_validator(mode="after")
    def _form_reads(self) -> Self:
        for option, default in OF_ANSWERS.items():
            if self.form != "answers" and getattr(self, option) != default:
                raise ValueError(f"{option} is read by form answers alone, and form is {self.form}; leave it out")
        if any(not text.strip() for text in self.answers):
            raise ValueError("answers has an empty one, which nobody can give; leave it out")
        if self.pattern is not None:
            _check_pattern(self.pattern)
            if not self.normalise or self.least != 0.01:
                raise ValueError("normalise and least are never read with a pattern; leave them out")
        form = self._form
        if self.max_new_tokens is not None and not form.writes:
            without = "without a pattern" if self.form == "answers" else f"when form is {self.form}"
            raise ValueError(f"max_new_tokens is never read {without}, as nothing is written; leave it out")
        if self.opponents is not None and not form.pairs:
            raise ValueError(f"opponents is never read when form is {self.form}, which compares nothing; leave it out")
        return self

    @property
    def _form(self) -> forms.Form:
        if self.form == "answers":
            return forms.own(
                self.subject, self.answers, normalise=self.normalise, least=self.least, pattern=self.pattern
            )
        return forms.named(self.form, self.subject)

    @property
    def _new_tokens(self) -> int:
        return self.max_new_tokens or self._form.max_new_tokens

    def _question(self) -> str:
        try:
            return self._form.question(None if self.question_file is None else Path(resolve(self.question_file)))
        except UserError as error:
            raise UserError(f"question_file of reward {self.name} is {self.question_file}: {error}") from None

    def _check_question(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that lack what the question asks about."""
        needs_answer = "{answer}" in self._question()
        for prompt in prompts:
            if needs_answer and prompt.answer is None:
                raise UserError(f"{prompt.name} has no answer, which the question of reward {self.name} names; add it")
            try:
                self._form.questions(prompt)
            except ValueError as error:
                raise UserError(f"reward {self.name} with form {self.form}: {error}") from None

    def compares(self) -> Compared:
        return "groups" if self._form.pairs else "samples"

    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt]) -> list[Verdict]:
        return self.score_given(samples, prompts, NOTHING)

    def score_given(self, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given) -> list[Verdict]:
        subjects = [self._subject(sample, prompt) for sample, prompt in zip(samples, prompts, strict=True)]
        oracle, form, question = self._oracle(), self._form, self._question()
        if form.pairs:
            groups = given.groups(prompts)
            pairs = matched(groups, self.opponents)
            return compared(oracle, form, question, subjects, prompts, pairs, tolerance=self._tolerance)
        return judged(oracle, form, question, subjects, prompts, tolerance=self._tolerance)

    def _oracle(self) -> Oracle:
        """Whoever answers."""
        raise NotImplementedError

    def _subject(self, sample: Any, prompt: Prompt) -> Subject:
        """A sample as the judge meets it."""
        raise NotImplementedError

    @property
    def _tolerance(self) -> float:
        """Share of a value's range within which it must be known; the decoder knows it exactly."""
        return 0.0


@options
class DecoderOptions(LoadedOptions):
    """A judge that Burnish loads; one that sees is shown the pictures."""

    def _check_model(self) -> Path:
        return self._checked("a language model")

    @property
    def _sees(self) -> bool:
        return sees(self._folder())

    def _reader(self) -> Any:
        return load_reader(self._folder(), self.dtype, self.device, self.put_away, headed=False)

    def _decoder(self, *, max_new_tokens: int, media: bool = True) -> DecoderOracle:
        from burnish.rewards.judges.decoder import DecoderOracle

        return DecoderOracle(self._reader(), self.batch_size, self.max_length, max_new_tokens, media)


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"pattern is {pattern!r}, which is no regular expression: {error}") from None
    if not groups:
        raise ValueError(f"pattern is {pattern!r}; it must have a group around the verdict, as in (\\d+)")
