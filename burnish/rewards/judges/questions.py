"""Questions of a form about samples: a template with its places filled, and the pictures that the judge is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.rewards.base import Verdict
from burnish.rewards.judges.forms import Form
from burnish.rewards.judges.replies import Oracle, Question, Reply
from burnish.types.clips import Clip
from burnish.types.media import Media, evenly_spaced
from burnish.types.prompt import Prompt, about_media

if TYPE_CHECKING:
    import numpy as np

    from burnish.rewards.text.base import Response

PLACES = re.compile(r"\{(prompt|negative|response|other|answer|question)\}")


@dataclass(frozen=True)
class Subject:
    """A sample as a judge meets it: words for the places of a template, and what is shown of it."""

    words: Mapping[str, str]
    images: tuple[Media, ...] = ()
    videos: tuple[Media, ...] = ()
    given: int = 0  # of the images, how many come first and are the prompt's own: a pair shows them once


def picture_subject(sample: np.ndarray | Clip, prompt: Prompt, *, given: bool, frames: int) -> Subject:
    """A drawn picture, or frames of a clip.

    Args:
        sample: uint8 [H, W, 3], or a clip.
        prompt: that it was drawn for.
        given: show the pictures that the prompt begins from, before it.
        frames: of a clip that are shown.
    """
    drawn = (
        [sample.frames[i] for i in evenly_spaced(len(sample.frames), frames)] if isinstance(sample, Clip) else [sample]
    )
    first = prompt.images if given else ()
    words = {"prompt": prompt.text, "negative": prompt.negative, "answer": prompt.answer or ""}
    return Subject(words, (*first, *map(Media.array, drawn)), given=len(first))


def response_subject(response: Response, prompt: Prompt, *, media: bool = True) -> Subject:
    """A response, with the pictures and videos of its prompt, unless they are left out."""
    if len(prompt.turns) == 1:
        text = prompt.turns[0].text
    else:
        text = "\n".join(f"{message.role}: {message.said}" for message in prompt.turns)
    words = {"prompt": text, "response": response.text, "answer": prompt.answer or ""}
    return Subject(words, prompt.images, prompt.videos, given=len(prompt.images)) if media else Subject(words)


def filled(template: str, words: Mapping[str, str]) -> str:
    """A template with its places filled; what looks like a place in what fills them stays as it is."""
    return PLACES.sub(lambda found: words.get(found[1], found[0]), template)


def asked(template: str, subject: Subject, further: Mapping[str, str], other: Subject | None = None) -> Prompt:
    """What a judge is shown and asked, about one sample or about two."""
    words: dict[str, str] = {**subject.words, **further}
    images, videos = subject.images, subject.videos
    if other is not None:
        words["other"] = other.words.get("response", "")
        images = (*images, *other.images[other.given :])
    return about_media(filled(template, words), images, videos)


def judged(
    oracle: Oracle, form: Form, template: str, subjects: Sequence[Subject], prompts: Sequence[Prompt],
    *, tolerance: float,
) -> list[Verdict]:  # fmt: skip
    """Verdicts on samples, each by itself: all of their questions are asked at once."""
    questions: list[Question] = []
    spans: list[range | str] = []
    for subject, prompt in zip(subjects, prompts, strict=True):
        try:
            some = form.questions(prompt)
        except ValueError as error:
            spans.append(str(error))
            continue
        spans.append(range(len(questions), len(questions) + len(some)))
        questions += [Question(asked(template, subject, one.words), one.answers, one.first) for one in some]
    replies = oracle.replies(questions)
    return [
        Verdict(None, (), span)
        if isinstance(span, str)
        else _verdict(form, [replies[i] for i in span], prompt, tolerance)
        for span, prompt in zip(spans, prompts, strict=True)
    ]


def compared(
    oracle: Oracle,
    form: Form,
    template: str,
    subjects: Sequence[Subject],
    prompts: Sequence[Prompt],
    pairs: Sequence[tuple[int, int]],
    *,
    tolerance: float,
) -> list[Verdict]:
    """Verdicts on samples against others: the share of comparisons that each wins.

    Every pair is shown in both orders, which cancels what a judge gives to the first or the second place.

    Args:
        oracle, form, template, subjects, prompts, tolerance: as ``judged``.
        pairs: rows that are compared.
    """
    asks = [(i, j) for pair in pairs for i, j in (pair, pair[::-1])]
    questions = []
    for i, j in asks:
        (one,) = form.questions(prompts[i])
        questions.append(Question(asked(template, subjects[i], one.words, subjects[j]), one.answers))
    found = [
        _verdict(form, [reply], prompts[i], tolerance)
        for reply, (i, _) in zip(oracle.replies(questions), asks, strict=True)
    ]
    shares: list[list[float]] = [[] for _ in subjects]
    firsts: list[list[float]] = [[] for _ in subjects]
    problems: list[Verdict | None] = [None for _ in subjects]
    for (i, j), there, back in zip(asks[::2], found[::2], found[1::2], strict=True):
        lacking = next((one for one in (there, back) if one.value is None), None)
        if lacking is not None:
            problems[i] = problems[i] or lacking
            problems[j] = problems[j] or lacking
            continue
        assert there.value is not None
        assert back.value is not None
        share = (there.value + 1 - back.value) / 2
        for k, won in ((i, share), (j, 1 - share)):
            shares[k].append(won)
            firsts[k].append((there.value + back.value) / 2)
    return [_share(*row) for row in zip(shares, firsts, problems, strict=True)]


def _share(won: Sequence[float], first: Sequence[float], problem: Verdict | None) -> Verdict:
    """Missing where nothing was compared, or a comparison has no verdict: others had all of theirs."""
    if problem is not None:
        return problem
    if not won:
        return Verdict(None, (), "there is no other sample of its prompt in the batch to compare it with")
    value, place = sum(won) / len(won), sum(first) / len(first)
    note = f"{len(won)} comparisons; what stood first got {place:.2f}"
    return Verdict(value, (), note, named={"first": place})


def matched(groups: Sequence[Sequence[int]], opponents: int | None) -> list[tuple[int, int]]:
    """Pairs of rows of one group, each once: all, or every row with the next ones of its group, in a circle.

    Args:
        groups: rows of each.
        opponents: how many others each is compared with at least; None for all of them.
    """
    found: dict[tuple[int, int], None] = {}
    for rows in groups:
        steps = len(rows) - 1 if opponents is None else min(-(-opponents // 2), len(rows) - 1)
        for step in range(1, steps + 1):
            for place, row in enumerate(rows):
                other = rows[(place + step) % len(rows)]
                found[min(row, other), max(row, other)] = None
    return list(found)


def _verdict(form: Form, replies: Sequence[Reply], prompt: Prompt, tolerance: float) -> Verdict:
    lacking = next((reply for reply in replies if reply.problem), None)
    if lacking is not None:
        return Verdict(None, (), lacking.problem, fault=lacking.fault)
    return form.read(replies, prompt, tolerance)
