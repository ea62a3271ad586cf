"""burnish sample: images, clips or sounds of a generator, responses of a language model, of given prompts."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

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

LIST = "samples.jsonl"
OPTION = re.compile(r"[a-z]\w*(\.\w+)+=\S+")  # as train and eval take them
DRAWN = re.compile(r"\d{3,}-(\d{2,}\.(png|mp4|webp|wav)|input-[\w-]+\.png)")  # files that this command writes


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
        burnish sample runs/quickstart "the number 472" --count 8 --output images
        burnish sample runs/quickstart --prompt-file prompts.txt --guidance 3.0
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
        raise UserError("a prompt is empty; write one, or remove it")
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
    shown = tuple(given_media(path, "image") for path in images)  # before PyTorch is loaded
    changes = {name: value for name, value in wanted.items() if value is not None}
    options = [] if frames is None else [f"rollout.num_frames={frames}"]  # for which the model is loaded
    assembly, _ = open_model(source, overrides=options) or open_run(source, options)
    config, generates = assembly.config, assembly.config.task == DEFAULT
    if generates and (videos or audios):
        raise UserError("--video and --audio are for language models; remove them, or give a --prompt-file with them")
    if not generates and (changes or prompt_file):
        raise UserError(
            "--steps, --guidance, --solver, --height, --width, --frames and --prompt-file are for generators; leave "
            "them out"
        )
    if not config.scored:
        raise UserError(
            f"{source} trains a reward model, which writes no responses; burnish eval judges held-out ones, and after "
            "burnish export a run scores with it by rewards.reward_model.path"
        )
    given: dict[Kind, Sequence[str]] = {"image": images, "video": videos, "audio": audios}
    media: dict[Kind, tuple[Media, ...]] = {
        kind: shown if kind == "image" else tuple(given_media(path, kind) for path in paths)
        for kind, paths in given.items()
    }
    if generates:
        asked = _prompts(config, [Prompt(text=text, images=media["image"]) for text in prompts], prompt_file)
    else:
        asked = [_question(text, media, config.data) for text in prompts]
    target = output_folder(output, "sample")
    with closing(assembly), assembly.trained_weights():
        if generates:
            _draw(assembly, asked, n, seed, changes, target)
        else:
            _answer(assembly, asked, n, seed, given, target)
    return 0


def _draw(assembly: Any, asked: Sequence[Prompt], n: int, seed: int, changes: Mapping[str, Any], target: Path) -> None:
    """Images, clips or sounds."""
    from burnish.diffusion.engine import CHANGED, FlowEngine, FlowJob

    config = assembly.config
    how = {name: changes.get(name, getattr(config.validation, name)) for name in CHANGED}
    job = FlowJob.groups(asked, n, purpose="sample", update=0, changes=how)
    rollout = replace(config.rollout, batch_size=min(config.rollout.batch_size, 16))
    samples: list[Any] = []
    with terminal.progress("Sampling") as tell:
        for _, _, chunk in FlowEngine(assembly.roles, rollout, seed=seed).sample(job):
            samples += chunk
            tell(len(samples), len(asked) * n)
    _write_drawn(job, samples, asked, n, seed, target)


def _write_drawn(job: Any, samples: Sequence[Any], asked: Sequence[Prompt], n: int, seed: int, target: Path) -> None:
    """Write what was drawn, a list and a sheet of it."""
    from burnish.tasks.drawings import contact_sheet, write_inputs, write_sample
    from burnish.tasks.sample_files import write_lines
    from burnish.types.samples import is_finite, kind

    _remove_earlier(target)
    records = []
    with writing(target):
        for i, (prompt, drawn) in enumerate(zip(job.prompts, samples, strict=True)):
            group = f"{int(job.group[i]):03d}"
            if i % n == 0:
                inputs = write_inputs(target, f"{group}-input", prompt)
            name = write_sample(target, f"{group}-{int(job.sample[i]):02d}", drawn)
            records.append(
                {"file": name, "prompt": prompt.text} | ({"images": inputs} if inputs else {}) | {"seed": seed}
            )
        write_lines(target / LIST, records, ascii=True)
        contact_sheet(samples, asked, n).save(target / "grid.png")
    plural = f"{kind(samples[0])}s"
    if non_finite := sum(not is_finite(drawn) for drawn in samples):
        log.warning("%d of %d %s have non-finite values, shown black", non_finite, len(samples), plural)
    count = terminal.counted(len(samples), plural)
    terminal.say(f"{count} in ", (str(target), "bold"), f"; overview in {target}/grid.png")


def _prompts(config: Any, asked: list[Prompt], prompt_file: str | None) -> list[Prompt]:
    """Prompts of a generator, those of a file with them; checked by the model."""
    from burnish.data.prompts import read_prompts
    from burnish.diffusion.pipeline.loading import check_parts, family_of, read_index

    if prompt_file:
        asked = [*asked, *read_prompts(str(checked_path(prompt_file, "--prompt-file")), config.data)]
    _, index = read_index(config.model)
    family_of(config.model, index).check_inputs(index, config.rollout, asked)
    check_parts(config.model, config.rollout, asked)
    return asked


def _answer(
    assembly: Any, asked: Sequence[Prompt], n: int, seed: int, given: Mapping[Kind, Sequence[str]], target: Path
) -> None:
    """Print and save ``n`` responses to each prompt, or save images."""
    from burnish.language.engine import ResponseJob, sampling_of
    from burnish.tasks.sample_files import write_lines

    assembly.engine.seed = seed
    # sampling parameters of validation, not of rollouts
    sampling = sampling_of(assembly.config, assembly.config.validation)
    job = ResponseJob.groups(asked, n, purpose="sample", update=0, sampling=sampling)
    _, responses = assembly.engine.sample(job)
    if responses[0].image is not None:
        _write_drawn(job, [response.image for response in responses], asked, n, seed, target)
        return
    media = {f"{kind}s": list(paths) for kind, paths in given.items() if paths or kind == "image"}
    records = []
    for i, (prompt, response) in enumerate(zip(job.prompts, responses, strict=True)):
        if i % n == 0:
            terminal.say((terminal.cut(prompt.text), "bold"))
        cut = "" if response.finished else " (cut at rollout.max_new_tokens)"
        terminal.say(f"  {response.full_text}", (cut, "dim"))
        record = {"prompt": prompt.text, **media, "response": response.full_text}
        records.append(record | {"finished": response.finished, "seed": seed})
    _remove_earlier(target)
    with writing(target):
        write_lines(target / LIST, records, ascii=True)
    terminal.say(f"{terminal.counted(len(responses), 'responses')} in ", (str(target / LIST), "bold"))


def _question(question: str, media: Mapping[Kind, tuple[Media, ...]], data: Any) -> Prompt:
    """A prompt of a language model, with all media before its text."""
    from burnish.data.questions import fit_of

    fitted = {kind: tuple(replace(one, fit=fit_of(data)) for one in given) for kind, given in media.items()}
    parts = (*(Part(kind) for kind, given in media.items() for _ in given), Part("text", question))
    system = (Message("system", (Part("text", data.system_prompt),)),) if data.system_prompt else ()
    return Prompt(
        text=question, messages=(*system, Message("user", parts)),
        images=fitted["image"], videos=fitted["video"], audios=fitted["audio"],
    )  # fmt: skip


def given_media(path: str, kind: Kind) -> Media:
    """An image, a video or a sound of the command line.

    Raises:
        UserError: it can't be read.
    """
    option = f"--{kind}"
    file = resolve(path) if path.startswith(PREFIX) else checked_path(path, option)
    try:
        media = Media.file(file, kind)
        (media.decode if kind == "image" else media.check)()  # an image's header alone may look right
    except ImportError as error:
        raise UserError(f"{option} is {path}, but {error}") from None
    except (OSError, ValueError, SyntaxError) as error:
        reason = getattr(error, "strerror", None) or "its format is unknown"
        raise UserError(f"{option} is {path}, which can't be read: {reason}; give {NAMES[kind]}") from None
    return media


def _remove_earlier(target: Path) -> None:
    """Remove what an earlier call of burnish sample drew, as far as the list of it there says."""
    listed = target / LIST
    for line in listed.read_bytes().splitlines() if listed.is_file() else ():
        with suppress(ValueError, KeyError, TypeError):
            record = parse_json(line)
            for name in (str(record["file"]), *map(str, record.get("images", ()))):
                if DRAWN.fullmatch(name):
                    (target / name).unlink(missing_ok=True)
                    (target / name).with_suffix(".wav").unlink(missing_ok=True)
                    (target / "grid.png").unlink(missing_ok=True)
