"""burnish sample for language and vision-language models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from rich.markup import escape

from burnish.commands.opening import SampleRequest, given_media, output_folder, remove_earlier
from burnish.data.language.prompts import fit_of
from burnish.language.engine import ResponseJob
from burnish.language.rollouts import validation_sampling
from burnish.types.media import Kind, Media
from burnish.types.prompt import Message, Part, Prompt
from burnish.utils import terminal
from burnish.utils.disk import writing
from burnish.utils.errors import UserError


def answer(assembly: Any, request: SampleRequest) -> int:
    """Print and save ``n`` responses to each prompt, all of which come with all media, in order."""
    if request.changes or request.prompt_file:
        raise UserError(
            "--steps, --guidance, --solver, --height, --width, --frames and --prompt-file are for generators; leave "
            "them out"
        )
    if not assembly.config.scored:
        raise UserError(
            f"{request.source} trains a reward model, which writes no responses; burnish eval judges held-out ones, "
            "and after burnish export a run scores with it by rewards.reward_model.path"
        )
    data, n, seed = assembly.config.data, request.n, request.seed
    paths: dict[Kind, Sequence[str]] = {"image": request.images, "video": request.videos, "audio": request.audios}
    media = {
        kind: tuple(replace(given_media(path, kind), fit=fit_of(data)) for path in given)
        for kind, given in paths.items()
    }
    asked = [_prompt(question, media, data.system_prompt) for question in request.prompts]
    target = output_folder(request.output, "sample")
    assembly.engine.seed = seed
    with closing(assembly), assembly.trained_weights():
        # sampling parameters of validation, not of rollouts
        job = ResponseJob.groups(asked, n, purpose="sample", update=0, sampling=validation_sampling(assembly.config))
        _, responses = assembly.engine.sample(job)
    console = terminal.console(soft_wrap=True)
    records = []
    for i, (prompt, response) in enumerate(zip(job.prompts, responses, strict=True)):
        if i % n == 0:
            console.print(f"[bold]{escape(terminal.cut(prompt.text))}[/bold]")
        cut = "" if response.finished else " [dim](cut at rollout.max_new_tokens)[/dim]"
        console.print(f"  {escape(response.full_text)}{cut}", highlight=False)
        brought = {f"{kind}s": list(given) for kind, given in paths.items() if given or kind == "image"}
        record = {"prompt": prompt.text, **brought, "response": response.full_text}
        records.append(json.dumps(record | {"finished": response.finished, "seed": seed}) + "\n")
    remove_earlier(target)
    with writing(target):
        (target / "samples.jsonl").write_text("".join(records))
    console.print(
        f"{terminal.counted(len(responses), 'responses')} in [bold]{escape(str(target / 'samples.jsonl'))}[/bold]"
    )
    return 0


def _prompt(question: str, media: Mapping[Kind, tuple[Media, ...]], system: str | None) -> Prompt:
    said = [Message("system", (Part("text", system),))] if system else []
    parts = (*(Part(kind) for kind, given in media.items() for _ in given), Part("text", question))
    return Prompt(
        text=question, messages=(*said, Message("user", parts)),
        images=media["image"], videos=media["video"], audios=media["audio"],
    )  # fmt: skip
