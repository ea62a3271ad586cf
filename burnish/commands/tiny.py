"""burnish tiny: a pipeline, a language model or a reward of real classes, random weights, small enough for a CPU."""

from __future__ import annotations

import difflib
import shlex
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from burnish.models.tiny import ALL, describe_any
from burnish.models.tiny.base import Tiny
from burnish.models.tiny.language import LANGUAGE, TinyLanguage
from burnish.registry import lookup
from burnish.rewards.images.geneval_rules import EXAMPLE
from burnish.rewards.tiny import SCORERS, TinyScorer, scorer_named
from burnish.rewards.tiny import write as write_scorer
from burnish.types.clips import Clip
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils import terminal
from burnish.utils.disk import writing
from burnish.utils.errors import UserError
from burnish.utils.paths import MARK, check_output
from burnish.utils.reading import checked_path

if TYPE_CHECKING:
    from rich.console import Console

    from burnish.models.tiny.language.base import Kind

STEPS = 2  # of the call that tries what was written
KINDS = {"image": "a picture", "video": "a video", "audio": "sound"}
UNITS = {"images": "an image", "videos": "a video", "sound": "sound"}


def tiny(
    name: str | None = None,
    directory: str | None = None,
    *,
    seed: Annotated[int, 0, 9223372036854775807] = 0,
    force: bool = False,
    list_all: bool = False,
) -> int:
    """Write a tiny random model to try recipes with.

    Its library then loads it alone, and it draws, answers or scores once.

    Examples:
        burnish tiny --list                   every pipeline and every language model that can be made
        burnish tiny wan2.2 my_tiny_wan       real classes, random weights: to try a recipe on a CPU in seconds
        burnish tiny qwen3_vl my_tiny_qwen    language models by their model_type
        burnish tiny FluxPipeline my_tiny_flux --seed 1

    Args:
        name: a model such as wan2.2 or qwen3_vl, or a class
        directory (DIR): new folder to write
        seed (N): seed of the weights
        force: replace a model that is there
        list_all (--list): list every name
    """
    console = terminal.console(highlight=False, soft_wrap=True)
    if list_all:
        _list(console)
        return 0
    if name is None or directory is None:
        raise UserError(
            "burnish tiny takes a name and a folder, such as 'burnish tiny wan2.2 my_tiny_wan'; --list shows the names"
        )
    scorer, folder = scorer_named(name), checked_path(directory, "DIR")
    near = difflib.get_close_matches(name, [one.name for one in SCORERS], n=1, cutoff=0.8)
    if scorer is None and near:
        raise UserError(f"{name!r} can't be made; did you mean {near[0]}? 'burnish tiny --list' shows all")
    model = scorer or describe_any(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        check_output(folder, "tiny", "DIR")
        if not force:
            raise UserError(f"DIR is {folder}, which holds a model; choose another folder, or replace it with --force")
    with terminal.loading_pytorch():
        from burnish.models.tiny import build
        from burnish.models.tiny.language import build as build_language
    if not isinstance(model, TinyScorer) and (absent := build.missing(model)):
        raise UserError(f"{model.kind} needs {' and '.join(absent)}; run: pip install {' '.join(absent)}")
    with writing(folder), terminal.progress(f"Writing {name}"):
        if folder.is_dir():
            shutil.rmtree(folder)
        if isinstance(model, TinyScorer):
            write_scorer(model, folder, seed)
        elif isinstance(model, TinyLanguage):
            build_language.write(model, folder, seed)
        else:
            build.write(model, folder, seed)
        (folder / MARK).write_text("tiny")
    if isinstance(model, TinyScorer):
        lines = _scored(model, folder)
    elif isinstance(model, TinyLanguage):
        lines = _read(model, folder, seed)
    else:
        lines = _drawn(model, folder, seed)
    for line in lines:
        console.print(line, markup=False)
    return 0


def _list(console: Console) -> None:
    from rich.table import Column, Table

    table = Table(Column("name", no_wrap=True), "class", "makes", "takes", box=None, pad_edge=False)
    for one in ALL:
        table.add_row(one.name, one.pipeline, one.makes, ", ".join([*(["prompt"] if one.prompt else []), *one.inputs]))
    for model in LANGUAGE:
        table.add_row(model.name, model.model, "text", ", ".join(["prompt", *model.places]))
    for scorer in SCORERS:
        table.add_row(scorer.name, "reward", "scores", "picture, prompt")
    console.print(table)


def _drawn(tiny: Tiny, folder: Path, seed: int) -> list[str]:
    """Call a pipeline; what came of it, and how it is used."""
    from burnish.models.tiny.calls import load, trial

    pipeline = load(folder)
    started = time.perf_counter()
    trial(tiny, pipeline, steps=STEPS, seed=seed)
    took = time.perf_counter() - started
    networks = [part for part in pipeline.components.values() if hasattr(part, "parameters")]
    frames = f" of {tiny.num_frames} frames" if tiny.num_frames is not None else ""
    pixels = f" of {tiny.width} x {tiny.height} pixels" if tiny.height is not None else ""
    options = {"height": tiny.height, "width": tiny.width, "num_frames": tiny.num_frames}
    given = [f"rollout.{option}={value}" for option, value in options.items() if value is not None]
    return [
        f"{folder} is a {tiny.pipeline} of {sum(map(_count, networks)):,} random weights. Loaded by diffusers, it made "
        f"{UNITS[tiny.makes]}{frames}{pixels} in {STEPS} steps and {took:.2f} s.",
        f"In a recipe: {' '.join([f'model.path={folder}', *given])}",
        *([f"Its prompts bring {', '.join(tiny.inputs)}."] if tiny.inputs else []),
    ]


def _read(tiny: TinyLanguage, folder: Path, seed: int) -> list[str]:
    """Show a language model a prompt with each thing that it perceives; what came of it, and how it is used."""
    from burnish.models.tiny.language.calls import example_prompt, load, trial

    network, reader = load(folder)
    started = time.perf_counter()
    alone: list[tuple[Kind, ...]] = [(kind,) for kind in tiny.places]
    for kinds in alone or [()]:  # not every class takes pictures beside a video
        trial(network, example_prompt(folder, reader, kinds, seed))
    took = time.perf_counter() - started
    media = [KINDS[kind] for kind in tiny.places]
    prompts = f"prompts with {', '.join(media)}" if len(media) > 1 else " with ".join(["a prompt", *media])
    return [
        f"{folder} is a {tiny.model} of {_count(network):,} random weights. Loaded by transformers, it read {prompts} "
        f"in {took:.2f} s.",
        f"In a recipe: model.path={folder}",
    ]


def _scored(tiny: TinyScorer, folder: Path) -> list[str]:
    """Score a picture; what came of it, and how the reward is used."""
    import numpy as np

    given = tiny.given(folder)
    reward = lookup("flow reward", tiny.name)(**given)
    picture = np.arange(48 * 48 * 3, dtype=np.uint8).reshape(48, 48, 3)
    prompt = Prompt(text="a red fox", images=(Media.array(picture),), extra=EXAMPLE)
    reward.check([prompt])
    still = "image" in reward.reads
    started = time.perf_counter()
    value = reward.score([picture if still else Clip(frames=np.stack([picture] * 4), fps=4.0)], [prompt])[0].value
    took = time.perf_counter() - started
    written = {name: f"[{','.join(one)}]" if isinstance(one, list) else one or "null" for name, one in given.items()}
    options = [shlex.quote(f"rewards.{tiny.name}.{name}={one}") for name, one in written.items()]
    return [
        f"{folder} is a checkpoint of reward {tiny.name} with random weights. It scored "
        f"{'a picture' if still else 'a clip'} {value:.3f} in {took:.2f} s.",
        f"In a recipe: {' '.join([*options, f'rewards.{tiny.name}.weight=1'])}",
    ]


def _count(network: Any) -> int:
    return sum(parameter.numel() for parameter in network.parameters())
