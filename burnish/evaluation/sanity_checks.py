"""Sanity checks: questions with a known right answer, which a broken scorer answers wrongly.

Each compares sums of scores: of samples with the prompts that they fit, and of the same samples with the same prompts
exchanged. A scorer that ignores prompts, or samples, or is constant, makes both sums equal; one that exchanges its
scores makes the wrong one larger. All are asked in one batch, so that scores in a wrong order are found, too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from burnish.registry import options
from burnish.rewards.text.base import Response
from burnish.types.prompt import Prompt

if TYPE_CHECKING:
    from burnish.evaluation.suite import Suite

REWARD = "reward"  # the weighted sum of the scorers, as a column
MOST = 4  # pairs of one kind
SIDE = 256  # pixels of a plain image
LETTERS, MARGIN = 40, 12  # pixels
EQUAL = 1e-6  # relative difference below which two sums are
PLAIN = {"red": (200, 30, 30), "green": (30, 150, 50), "blue": (30, 60, 200), "yellow": (235, 205, 30)}
# of GenEval: what an empty image does not show
NOTHING = {"tag": "single_object", "include": [], "exclude": [{"class": "person", "count": 1}]}
SOMEBODY = {"tag": "single_object", "include": [{"class": "person", "count": 1}]}

Row = tuple[Any, Prompt]  # a sample, and the prompt that it is scored by
Pairs = list[tuple[Row, Row]]  # each a right row and a wrong one


@options
class SanityCheck:
    """Questions whose right answer is known."""

    kind: Literal["written", "colours", "clauses", "answers"]
    """How they are made: written draws the prompts' answers; colours paints plain images; clauses asks about an
    empty image in GenEval's words; answers gives answers of the suite to their own and to other prompts."""
    scorers: list[str] = Field(default_factory=list)
    """Labels of the scorers that are asked, or reward for their weighted sum; an empty list asks for what the
    primary metric is made of."""
    form: str = "{}"
    """answers: what a response looks like, with {} in the place of the answer."""

    @model_validator(mode="after")
    def _is_read(self) -> Self:
        if self.form != "{}" and self.kind != "answers":
            raise ValueError(f"form is read for kind answers alone, and kind is {self.kind}; remove it")
        if "{}" not in self.form:
            raise ValueError(f"form is {self.form!r}, which has no {{}} in the place of the answer")
        return self


@dataclass(frozen=True)
class Question:
    """Rows of which the right ones must have a higher sum."""

    about: str
    pairs: Pairs
    scorers: Sequence[str]  # that are asked


def questions(suite: Suite, prompts: Sequence[Prompt]) -> list[Question]:
    """The questions of a suite."""
    made = {"written": _written, "colours": _colours, "clauses": _clauses, "answers": _answers}
    owners = [label for label in suite.scorers if f"{suite.primary_metric}_".startswith(f"{label}_")]
    scored_by = max(owners, key=len) if owners else REWARD  # the scorer that the primary metric is from
    return [
        Question(about, pairs, check.scorers or [scored_by])
        for check in suite.sanity_checks
        for about, pairs in made[check.kind](check, prompts)
    ]


def rows(asked: Sequence[Question]) -> list[Row]:
    """Everything that is scored, in one batch: right and wrong by turns."""
    return [row for question in asked for pair in question.pairs for row in pair]


def wrong_answers(asked: Sequence[Question], values: Sequence[Mapping[str, float | None]]) -> list[str]:
    """Which questions were answered wrongly, in sentences; none of a sound scorer.

    Args:
        asked: the questions.
        values: of every scorer for each of ``rows(asked)``; None where they are missing.
    """
    problems, left = [], iter(values)
    for question in asked:
        own = list(islice(left, 2 * len(question.pairs)))
        for label in question.scorers:
            if problem := _problem([row[label] for row in own]):
                problems.append(f"{label} {problem} ({question.about})")
    return problems


def unwatched(suite: Suite, asked: Sequence[Question]) -> list[str]:
    """Scorers that no question is asked of."""
    labels = {label for question in asked for label in question.scorers}
    watched = labels | {label for label, scorer in suite.scorers.items() if scorer.weight and REWARD in labels}
    return [label for label in suite.scorers if label not in watched]


def _problem(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "gives no value where it has to"
    right, wrong = sum(known[::2]), sum(known[1::2])
    if abs(right - wrong) <= EQUAL * max(abs(right), abs(wrong), EQUAL):
        return f"gives right and wrong the same, {right:g}"
    return f"gives {right:g} to what is right and {wrong:g} to what is wrong" if right < wrong else ""


def _crossed(one: Row, other: Row) -> Pairs:
    """Two samples with their prompts, and with each other's."""
    return [(one, (one[0], other[1])), (other, (other[0], one[1]))]


def _written(check: SanityCheck, prompts: Sequence[Prompt]) -> Iterator[tuple[str, Pairs]]:
    from burnish.rewards.images.ocr import wanted

    texts: dict[str, Row] = {}
    for prompt in prompts:
        text = (wanted(prompt) or "").strip()
        if text and text.isascii():
            texts.setdefault(text.lower(), (text.lower(), prompt))
    short = sorted(texts.values(), key=lambda row: (len(row[0]), row[0]))[: MOST + 1]
    for one, other in pairwise(short):
        crossed = _crossed((writing(one[0]), one[1]), (writing(other[0]), other[1]))
        yield f"the written {one[0]!r} and {other[0]!r}", crossed


def _colours(check: SanityCheck, prompts: Sequence[Prompt]) -> Iterator[tuple[str, Pairs]]:
    # judges that ask several questions read them from the record
    images = [
        (plain(colour), Prompt(text=f"a plain {name} picture",
                               extra=json.dumps({"vqa_list": [[f"Is this picture {name}?", "Yes"]]})))
        for name, colour in PLAIN.items()
    ]  # fmt: skip
    # all in one question: a sound scorer of what people like may err about one pair of such images
    pairs = [pair for one, other in combinations(images, 2) for pair in _crossed(one, other)]
    yield f"plain {', '.join(PLAIN)}", pairs


def _clauses(check: SanityCheck, prompts: Sequence[Prompt]) -> Iterator[tuple[str, Pairs]]:
    empty = plain((128, 128, 128))
    nothing, somebody = (
        Prompt(text="a photo of a person", extra=json.dumps({"extra_info": one})) for one in (NOTHING, SOMEBODY)
    )
    # one image by two records: whoever doesn't read them can't tell
    yield "an empty image, which shows no person", [((empty, nothing), (empty, somebody))]


def _answers(check: SanityCheck, prompts: Sequence[Prompt]) -> Iterator[tuple[str, Pairs]]:
    by_label: defaultdict[str | None, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        if prompt.answer is not None:
            by_label[prompt.label].append(prompt)
    for one, *alike in by_label.values():
        others = [prompt for prompt in alike if _letters(prompt) != _letters(one)]
        for other in others[:MOST]:
            crossed = [(Response(check.form.replace("{}", str(prompt.answer))), prompt) for prompt in (one, other)]
            yield f"the answers {one.answer!r} and {other.answer!r}", _crossed(*crossed)


def _letters(prompt: Prompt) -> str:
    return "".join(letter for letter in str(prompt.answer).casefold() if letter.isalnum())


def plain(colour: tuple[int, int, int]) -> Any:
    """An image of one colour."""
    import numpy as np

    return np.full((SIDE, SIDE, 3), colour, np.uint8)


def writing(text: str) -> Any:
    """Black letters on white."""
    import matplotlib
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    font = ImageFont.truetype(str(fonts / "DejaVuSans.ttf"), LETTERS)
    left, top, right, bottom = map(int, font.getbbox(text))
    page = Image.new("RGB", (right - left + 2 * MARGIN, LETTERS + 2 * MARGIN), "white")
    ImageDraw.Draw(page).text((MARGIN - left, (page.height - (bottom - top)) // 2 - top), text, "black", font)
    return np.asarray(page)
