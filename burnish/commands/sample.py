"""burnish sample: images, clips or sounds of a generator, responses of a language model, of given prompts."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.markup import escape

from burnish.commands.opening import open_model, open_run, output_folder
from burnish.config.tasks import DEFAULT
from burnish.data.pixels import NAMES
from burnish.types.media import Kind, Media
from burnish.types.prompt import Message, Part, Prompt
from burnish.utils import terminal
from burnish.utils.disk import writing
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json
from burnish.utils.paths import PREFIX, check_output, resolve
from burnish.utils.reading import checked_path

log = logging.getLogger(__name__)

OPTION = re.compile(r"[a-z]\w*(\.\w+)+=\S+")  # as train and eval take them
DRAWN = re.compile(r"\d{3,}-(\d{2,}\.(png|mp4|webp|wav)|input-[\w-]+\.png)")  # files that this command writes


@dataclass(frozen=True)
class SampleRequest:
    """What is asked for."""

    source: str
    prompts: Sequence[str]
    media: dict[Kind, Sequence[str]]  # that the prompts are about
    prompt_file: str | None
    output: str
    n: int
    seed: int
    changes: dict[str, Any]  # of options of rollout


def sample(
    source: str,
    prompts: Sequence[str] = (),
    *,
    images: Sequence[str] = (),
    videos: Sequence[str] = (),
    audios: Sequence[str] = (),
    prompt_file: str | None = None,
    output: str = "samples",
    n: Annotated[int, 1, 10_000] = 4,
    steps: Annotated[int, 1, 1000] | None = None,
    solver: Literal["euler", "heun", "dpm2m"] | None = None,
    guidance: Annotated[float, 1, 1000] | None = None,
    height: Annotated[int, 1, 32768] | None = None,
    width: Annotated[int, 1, 32768] | None = None,
    frames: Annotated[int, 1, 10_000] | None = None,
    seed: Annotated[int, 0, 9223372036854775807] = 0,
) -> int:
    """Sample images or responses from a trained model.

    The same seed gives the same samples for any count.

    Examples:
        burnish sample runs/quickstart "the number 472"
        burnish sample runs/quickstart "the number 472" "the number 815" --count 8 --output pictures
        burnish sample runs/quickstart --prompt-file prompts.txt --steps 20 --guidance 3.0
        burnish sample path/to/model "a lighthouse" --height 512 --width 512 --seed 7

    Args:
        source: folder of a run or of one of its checkpoints, or a recipe for its untrained model; or a
            model's directory, also MODEL+LORA
        prompts (PROMPT): prompts, in quotes
        images (-i, --image FILE): image that the prompts are about, or that samples begin from; burnish:PATH ships with
            Burnish; may be given several times
        videos (--video FILE): video that the prompts of a language model are about; may be given several times
        audios (--audio FILE): sound that the prompts of a language model are about; may be given several times
        prompt_file (-p, --prompt-file FILE): more prompts: .txt, or others of data.train_files
        output (-o, --output DIR): folder for the samples; those of an earlier call are replaced
        n (-n, --count N): samples per prompt
        steps (N): denoising steps (the run's, as it validates)
        solver: solver of the steps (the run's)
        guidance (SCALE): guidance scale, 1 is none (the run's)
        height (PIXELS): image height (the model's default)
        width (PIXELS): image width (the model's default)
        frames (N): frames of a video (the model's default)
        seed (N): seed of the noise
    """
    if not prompts and prompt_file is None:
        raise UserError("no prompt is given; give prompts in quotes, or --prompt-file FILE")
    if not all(text.strip() for text in prompts):
        raise UserError("a prompt is empty; write one, or leave it out")
    if option := next((text for text in prompts if OPTION.fullmatch(text)), None):
        raise UserError(
            f"{option!r:.80} is an option of a recipe, which sample doesn't take; use its own (burnish sample --help), "
            "or give it as a prompt in a --prompt-file"
        )
    wanted = {
        "num_inference_steps": steps, "guidance_scale": guidance, "solver": solver, "height": height, "width": width,
        "num_frames": frames,
    }  # fmt: skip
    check_output(checked_path(output, "--output"), "sample")
    changes = {name: value for name, value in wanted.items() if value is not None}
    media: dict[Kind, Sequence[str]] = {"image": images, "video": videos, "audio": audios}
    request = SampleRequest(source, prompts, media, prompt_file, output, n, seed, changes)
    options = [] if frames is None else [f"rollout.num_frames={frames}"]  # for which the model is loaded
    assembly, _ = open_model(source, overrides=options) or open_run(source, options)
    return draw(assembly, request) if assembly.config.task == DEFAULT else answer(assembly, request)


def draw(assembly: Any, request: SampleRequest) -> int:
    """Images, clips or sounds."""
    from burnish.diffusion.engine import FlowEngine, FlowJob
    from burnish.diffusion.rollouts import contact_sheet, write_inputs, write_sample
    from burnish.types.samples import is_finite, kind

    n, seed, config = request.n, request.seed, assembly.config
    if request.media["video"] or request.media["audio"]:
        raise UserError(
            "--video and --audio are for language models; leave them out, or give a --prompt-file with them"
        )
    prompts = _prompts(config, request)
    target = output_folder(request.output, "sample")
    names = {"num_inference_steps": "steps", "guidance_scale": "guidance"}  # of fields of a job
    how = {
        names.get(name, name): request.changes.get(name, getattr(config.validation, name))
        for name in ("num_inference_steps", "guidance_scale", "solver", "height", "width")
    }
    job = FlowJob.groups(prompts, n, purpose="sample", update=0, **how)
    rollout = replace(config.rollout, batch_size=min(config.rollout.batch_size, 16))
    samples: list[Any] = []
    with assembly.trained_weights(), terminal.progress("Sampling") as tell:
        for _, _, chunk in FlowEngine(assembly.roles, rollout, seed=seed).sample(job):
            samples += chunk
            tell(len(samples), len(prompts) * n)
    remove_earlier(target)
    with writing(target), (target / "samples.jsonl").open("w") as lines:
        for i, (prompt, drawn) in enumerate(zip(job.prompts, samples, strict=True)):
            group = f"{int(job.group[i]):03d}"
            if i % n == 0:
                inputs = write_inputs(target, f"{group}-input", prompt)
            name = write_sample(target, f"{group}-{int(job.sample[i]):02d}", drawn)
            record = {"file": name, "prompt": prompt.text} | ({"images": inputs} if inputs else {})
            lines.write(json.dumps(record | {"seed": seed}) + "\n")
        contact_sheet(samples, prompts, n).save(target / "grid.png")
    plural = f"{kind(samples[0])}s"
    non_finite = sum(not is_finite(drawn) for drawn in samples)
    if non_finite:
        log.warning("%d of %d %s have non-finite values, shown black", non_finite, len(samples), plural)
    where = escape(str(target))
    count = terminal.counted(len(samples), plural)
    terminal.console().print(f"{count} in [bold]{where}[/bold]; overview in {where}/grid.png")
    return 0


def _prompts(config: Any, request: SampleRequest) -> list[Prompt]:
    """The prompts of a request, all of those on the command line with all of its images; checked by the model."""
    from burnish.data.prompts import read_prompts
    from burnish.diffusion.pipeline.loading import check_parts, family_of, read_index

    images = tuple(given_media(path, "image") for path in request.media["image"])
    prompts = [Prompt(text=text, images=images) for text in request.prompts]
    if request.prompt_file:
        prompts += read_prompts(str(checked_path(request.prompt_file, "--prompt-file")), config.data)
    _, index = read_index(config.model)
    family_of(config.model, index).check_inputs(index, config.rollout, prompts)
    check_parts(config.model, config.rollout, prompts)
    return prompts


def answer(assembly: Any, request: SampleRequest) -> int:
    """Print and save ``n`` responses to each prompt, all of which come with all media, in order."""
    from burnish.data.questions import fit_of
    from burnish.language.engine import ResponseJob, validation_sampling

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
    media = {
        kind: tuple(replace(given_media(path, kind), fit=fit_of(data)) for path in given)
        for kind, given in request.media.items()
    }
    asked = [_question(question, media, data.system_prompt) for question in request.prompts]
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
        brought = {f"{kind}s": list(given) for kind, given in request.media.items() if given or kind == "image"}
        record = {"prompt": prompt.text, **brought, "response": response.full_text}
        records.append(json.dumps(record | {"finished": response.finished, "seed": seed}) + "\n")
    remove_earlier(target)
    with writing(target):
        (target / "samples.jsonl").write_text("".join(records))
    console.print(
        f"{terminal.counted(len(responses), 'responses')} in [bold]{escape(str(target / 'samples.jsonl'))}[/bold]"
    )
    return 0


def _question(question: str, media: Mapping[Kind, tuple[Media, ...]], system: str | None) -> Prompt:
    messages = [Message("system", (Part("text", system),))] if system else []
    parts = (*(Part(kind) for kind, given in media.items() for _ in given), Part("text", question))
    return Prompt(
        text=question, messages=(*messages, Message("user", parts)),
        images=media["image"], videos=media["video"], audios=media["audio"],
    )  # fmt: skip


def given_media(path: str, kind: Kind) -> Media:
    """An image, a video or a sound of the command line.

    Raises:
        UserError: it can't be read.
    """
    option, what = f"--{kind}", NAMES[kind].replace("picture", "image")
    file = resolve(path) if path.startswith(PREFIX) else checked_path(path, option)
    try:
        media = Media.file(file, kind)
        (media.decode if kind == "image" else media.check)()  # a picture's header alone may look right
    except ImportError as error:
        raise UserError(f"{option} is {path}, but {error}") from None
    except (OSError, ValueError, SyntaxError) as error:
        reason = getattr(error, "strerror", None) or f"it is no {what} of a known format"
        article = "an" if what == "image" else "a"
        raise UserError(f"{option} is {path}, which can't be read: {reason}; give {article} {what}") from None
    return media


def remove_earlier(target: Path) -> None:
    """Remove what an earlier call of burnish sample drew, as far as the list of it there says."""
    listed = target / "samples.jsonl"
    for line in listed.read_bytes().splitlines() if listed.is_file() else ():
        with suppress(ValueError, KeyError, TypeError):
            record = parse_json(line)
            for name in (str(record["file"]), *map(str, record.get("images", ()))):
                if DRAWN.fullmatch(name):
                    (target / name).unlink(missing_ok=True)
                    (target / name).with_suffix(".wav").unlink(missing_ok=True)
                    (target / "grid.png").unlink(missing_ok=True)
