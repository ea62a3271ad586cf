"""burnish sample, for models that see: responses to given questions, from a run or a recipe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from burnish.disk import writing
from burnish.engines.language import AnswerJob
from burnish.errors import UserError
from burnish.media import Media
from burnish.prompt import Message, Part, Prompt
from burnish.session import LanguageSession


def answer(
    session: LanguageSession, questions: Sequence[str], images: Sequence[str], *, output: str, n: int, seed: int
) -> int:
    """Write and print ``n`` responses to each question; every question is about all of the pictures, in order."""
    system = session.config.data.system_prompt
    asked = [_prompt(question, [_picture(path) for path in images], system) for question in questions]
    target = Path(output)
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    session.engine.seed = seed
    with closing(session), session.trained_weights():
        # the session's sampling is that of training; people want what validation shows
        job = AnswerJob.groups(asked, n, purpose="sample", update=0, sampling=session.judged_sampling)
        _, responses = session.engine.sample(job)
    console = Console(soft_wrap=True)
    records = []
    for i, (prompt, response) in enumerate(zip(job.prompts, responses, strict=True)):
        if i % n == 0:
            console.print(f"[bold]{escape(prompt.text)}[/bold]")
        cut = "" if response.finished else " [dim](cut at rollout.max_new_tokens)[/dim]"
        console.print(f"  {escape(response.whole)}{cut}", highlight=False)
        record = {"prompt": prompt.text, "images": list(images), "response": response.whole}
        records.append(json.dumps(record | {"finished": response.finished, "seed": seed}) + "\n")
    with writing(target):
        (target / "samples.jsonl").write_text("".join(records))
    console.print(f"{len(responses)} responses in [bold]{target / 'samples.jsonl'}[/bold]")
    return 0


def _picture(path: str) -> Media:
    try:
        media = Media.file(path)
        media.check()
    except OSError as error:
        raise UserError(f"--image {path} is no picture that can be read: {error}") from None
    return media


def _prompt(question: str, images: Sequence[Media], system: str | None) -> Prompt:
    said = [Message("system", (Part("text", system),))] if system else []
    parts = (*(Part("image") for _ in images), Part("text", question))
    return Prompt(text=question, messages=(*said, Message("user", parts)), images=tuple(images))
