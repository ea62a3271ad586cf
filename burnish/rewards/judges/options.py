"""Options that judges share: what is asked, and who answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from burnish.options import BelowOne, Count, Finite, Seconds, Threads
from burnish.registry import options
from burnish.rewards.base import NOTHING, Compared, RewardInputs, Score
from burnish.rewards.judges import forms
from burnish.rewards.networks.language import LoadedOptions, sees
from burnish.rewards.remote import ServerOptions, Url
from burnish.utils.errors import UserError
from burnish.utils.paths import resolve

if TYPE_CHECKING:
    from burnish.rewards.judges.decoder import DecoderOracle
    from burnish.rewards.judges.endpoint import EndpointOracle
    from burnish.types.prompt import Prompt

YES_NO = {"Yes": 1.0, "No": 0.0}
# what only form answers reads, with its defaults
OF_ANSWERS: dict[str, Any] = {"answers": YES_NO, "normalise": True, "least": forms.LEAST, "pattern": None}

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
    least: BelowOne = forms.LEAST
    """Form answers: missing where the answers together are less likely than this: the judge says something else."""
    pattern: str | None = None
    """Form answers: regular expression of the score. The judge writes, greedily, and the first group of the last
    match is a number, or one of the answers; where nothing matches, the reward is missing. null reads probabilities."""
    max_new_tokens: Count | None = None
    """Most tokens that the judge writes, for forms that write; null takes 256 with a pattern, and 2048 otherwise."""

    @model_validator(mode="after")
    def _form_reads(self) -> Self:
        changed = [option for option, default in OF_ANSWERS.items() if getattr(self, option) != default]
        if changed and self.form != "answers":
            raise ValueError(f"{changed[0]} is read by form answers alone, and form is {self.form}; leave it out")
        if not all(map(str.strip, self.answers)):
            raise ValueError("answers has an empty one, which nobody can give; leave it out")
        if self.pattern is not None:
            _check_pattern(self.pattern)
            if {"normalise", "least"} & {*changed}:
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

    @property
    def _new_tokens(self) -> int:
        return self.max_new_tokens or self._form.max_new_tokens

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
        oracle, form, question = self._oracle(), self._form, self._question()
        if form.pairs:
            return forms.compared(oracle, form, question, subjects, prompts, inputs.groups(prompts))
        return forms.scored(oracle, form, question, subjects, prompts)

    def _oracle(self) -> forms.Oracle:
        """Whoever answers."""
        raise NotImplementedError

    def _subject(self, sample: Any, prompt: Prompt) -> forms.Subject:
        """A sample as the judge meets it."""
        raise NotImplementedError


@options
class DecoderOptions(LoadedOptions):
    """A judge that Burnish loads; one that sees is shown the pictures."""

    @property
    def _sees(self) -> bool:
        return sees(self.folder())

    def _oracle(self) -> DecoderOracle:
        from burnish.rewards.judges.decoder import DecoderOracle

        return DecoderOracle(self, self.load(), self._new_tokens)  # type: ignore[attr-defined]


@options
class EndpointOptions(ServerOptions):
    """A judge behind one or several addresses."""

    url: Url | list[Url]
    """Address of a server with OpenAI's protocol, up to /v1; or several that serve the same model: the one with the
    fewest requests under way is asked, and one that fails rests for a while."""
    model: Annotated[str, Field(min_length=1)]
    """Name of the model, as the server knows it."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further keys of the request, as {chat_template_kwargs: {enable_thinking: false}}; null leaves one of ours out."""
    concurrency: Threads = 16
    """Concurrent requests."""
    patience: Seconds | None = 60.0
    """Seconds for one try; null takes all that is left of the deadline."""
    store: str | None = None
    """File that keeps replies, by model, question and pictures, for all processes of a machine and for later runs; null
    keeps the last 4096 in memory alone."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse addresses, a token and a store that can't be used."""
        super().check(prompts)
        try:
            self._oracle()
        except OSError as error:
            raise UserError(f"store of reward {self.name} is {self.store}: {error}; give another file") from None

    @property
    def urls(self) -> list[str]:
        """Of all servers, up to /v1."""
        return [url.rstrip("/").removesuffix("/chat/completions") for url in super().urls]

    def _oracle(self) -> EndpointOracle:
        from burnish.rewards.judges.endpoint import EndpointOracle, Kept, kept

        store = kept(tuple(self.urls)) if self.store is None else Kept(resolve(self.store))
        return EndpointOracle(self, self._new_tokens, store)  # type: ignore[attr-defined]


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"pattern is {pattern!r}, which is no regular expression: {error}") from None
    if not groups:
        raise ValueError(f"pattern is {pattern!r}; it must have a group around the score, as in (\\d+)")
