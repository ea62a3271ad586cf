"""burnish tiny: a pipeline, a language model or a reward of real classes, random weights, small enough for a CPU."""

from __future__ import annotations

import difflib
import shlex
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.models.tiny import ALL, describe_any
from burnish.models.tiny.base import Tiny
from burnish.models.tiny.language import LANGUAGE, TinyLanguage
from burnish.registry import lookup
from burnish.rewards.images.geneval import EXAMPLE
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

KINDS = {"image": "a picture", "video": "a video", "audio": "sound"}
STEPS = 2  # of the call that tries what was written
UNITS = {"images": "an image", "videos": "a video", "sound": "sound"}


def tiny(name: str | None, directory: str | None, *, seed: int, force: bool, list_all: bool) -> int:
    """Write a tiny pipeline or language model, load it with its library alone, and let it draw or answer once.

    Of a learned reward it writes a checkpoint in the layout of the real one, and scores a picture with it.

    Args:
        name: of a model, of its class or of a reward; None with ``list_all``.
        directory: folder to write; None with ``list_all``.
        seed: of the weights.
        force: replace what it wrote there before.
        list_all: print every name instead.
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
    if scorer is not None:
        _check(folder, force)
        with writing(folder), terminal.progress(f"Writing {name}"):
            if folder.is_dir():
                shutil.rmtree(folder)
            write_scorer(scorer, folder, seed)
            (folder / MARK).write_text("tiny")
        _tell_of_scores(scorer, folder, console)
        return 0
    if near := difflib.get_close_matches(name, [one.name for one in SCORERS], n=1, cutoff=0.8):
        raise UserError(
            f"{name!r} is nothing that can be made; did you mean {near[0]}? 'burnish tiny --list' shows all"
        )
    found = describe_any(name)
    _check(folder, force)
    with terminal.loading_pytorch():
        from burnish.models.tiny import build
        from burnish.models.tiny.language import build as build_language
    if absent := build.missing(found):
        raise UserError(f"{found.kind} needs {' and '.join(absent)}; run: pip install {' '.join(absent)}")
    with writing(folder), terminal.progress(f"Writing {name}"):
        if folder.is_dir():
            shutil.rmtree(folder)
        if isinstance(found, TinyLanguage):
            build_language.write(found, folder, seed)
        else:
            build.write(found, folder, seed)
        (folder / MARK).write_text("tiny")
    if isinstance(found, TinyLanguage):
        _tell_of_answer(found, folder, seed, console)
    else:
        _tell(found, folder, seed, console)
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


def _check(folder: Path, force: bool) -> None:
    """Refuse to replace what must stay.

    Raises:
        UserError: the folder holds something else, or a model that is not to be replaced.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    check_output(folder, "tiny", "DIR")
    if not force:
        raise UserError(f"DIR is {folder}, which holds a model; choose another folder, or replace it with --force")


def _tell(found: Tiny, folder: Path, seed: int, console: Console) -> None:
    """Call what was written, and say how it is used."""
    from burnish.models.tiny.calls import load, trial

    pipeline = load(folder)
    started = time.perf_counter()
    trial(found, pipeline, steps=STEPS, seed=seed)
    took = time.perf_counter() - started
    weights = sum(parameter.numel() for part in pipeline.components.values() for parameter in _parameters(part))
    console.print(
        f"{folder} is a {found.pipeline} of {weights:,} random weights. Loaded by diffusers, it made "
        f"{UNITS[found.makes]}{_size(found)} in {STEPS} steps and {took:.2f} s.",
        markup=False,
    )
    options = {"height": found.height, "width": found.width, "num_frames": found.num_frames}
    given = [f"rollout.{option}={value}" for option, value in options.items() if value is not None]
    console.print(f"In a recipe: {' '.join([f'model.path={folder}', *given])}", markup=False)
    if found.inputs:
        console.print(f"Its prompts bring {', '.join(found.inputs)}.", markup=False)


def _tell_of_answer(found: TinyLanguage, folder: Path, seed: int, console: Console) -> None:
    """Show prompts to what was written, one with each thing that it perceives, and say how it is used."""
    from burnish.models.tiny.language.calls import example_prompt, load, trial

    network, reader = load(folder)
    started = time.perf_counter()
    alone: list[tuple[Kind, ...]] = [(kind,) for kind in found.places]
    for kinds in alone or [()]:  # not every class takes pictures beside a video
        trial(network, example_prompt(folder, reader, kinds, seed))
    took = time.perf_counter() - started
    weights = sum(parameter.numel() for parameter in network.parameters())
    media = [KINDS[kind] for kind in found.places]
    prompts = f"prompts with {', '.join(media)}" if len(media) > 1 else " with ".join(["a prompt", *media])
    console.print(
        f"{folder} is a {found.model} of {weights:,} random weights. Loaded by transformers, it read {prompts} "
        f"in {took:.2f} s.",
        markup=False,
    )
    console.print(f"In a recipe: model.path={folder}", markup=False)


def _tell_of_scores(found: TinyScorer, folder: Path, console: Console) -> None:
    """Score a picture with what was written, and say how it is used."""
    import numpy as np

    given = found.given(folder)
    reward = lookup("flow reward", found.name)(**given)
    picture = np.arange(48 * 48 * 3, dtype=np.uint8).reshape(48, 48, 3)
    prompt = Prompt(text="a red fox", images=(Media.array(picture),), extra=EXAMPLE)
    reward.check([prompt])
    what = "a picture" if "image" in reward.reads else "a clip"
    sample = picture if "image" in reward.reads else Clip(frames=np.stack([picture] * 4), fps=4.0)
    started = time.perf_counter()
    value = reward.score([sample], [prompt])[0].value
    console.print(
        f"{folder} is a checkpoint of reward {found.name} with random weights. It scored {what} {value:.3f} in "
        f"{time.perf_counter() - started:.2f} s.",
        markup=False,
    )
    written = {name: f"[{','.join(one)}]" if isinstance(one, list) else one or "null" for name, one in given.items()}
    options = [shlex.quote(f"rewards.{found.name}.{name}={one}") for name, one in written.items()]
    console.print(f"In a recipe: {' '.join([*options, f'rewards.{found.name}.weight=1'])}", markup=False)


def _parameters(part: Any) -> Any:
    return part.parameters() if hasattr(part, "parameters") else ()


def _size(found: Tiny) -> str:
    frames = f" of {found.num_frames} frames" if found.num_frames is not None else ""
    return frames + (f" of {found.width} x {found.height} pixels" if found.height is not None else "")
