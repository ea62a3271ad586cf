"""burnish tiny: a pipeline, a language model or a reward of real classes, random weights, small enough for a CPU."""

from __future__ import annotations

import difflib
import shlex
import shutil
from pathlib import Path
from typing import Annotated

from burnish.models.tiny import ALL, LANGUAGE, Tiny, TinyLanguage, describe
from burnish.rewards.tiny import SCORERS, TinyScorer, scorer_named
from burnish.rewards.tiny import write as write_scorer
from burnish.utils import terminal
from burnish.utils.disk import writing
from burnish.utils.errors import UserError
from burnish.utils.paths import MARK, check_output
from burnish.utils.reading import checked_path


def tiny(
    name: str | None = None,
    directory: str | None = None,
    *,
    seed: Annotated[int, 0, 9223372036854775807] = 0,
    force: bool = False,
    list_all: bool = False,
) -> int:
    """Write a tiny random model to try recipes with.

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
    if list_all:
        rows: list[tuple[str, ...]] = [
            (model.name, model.kind, model.makes, ", ".join([*(["prompt"] if model.prompt else []), *model.inputs]))
            for model in ALL
        ]
        rows += [(model.name, str(model.kind), "text", ", ".join(["prompt", *model.places])) for model in LANGUAGE]
        rows += [(scorer.name, "reward", "scores", "sample, prompt") for scorer in SCORERS]
        terminal.table(("name", "class", "makes", "takes"), rows)
        return 0
    if name is None or directory is None:
        raise UserError(
            "burnish tiny takes a name and a folder, such as 'burnish tiny wan2.2 my_tiny_wan'; --list shows the names"
        )
    folder, model = checked_path(directory, "DIR"), _named(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        check_output(folder, "tiny", "DIR")
        if not force:
            raise UserError(f"DIR is {folder}, which holds a model; choose another folder, or replace it with --force")
    with terminal.loading_pytorch():
        from burnish.models.tiny import build, language
    if not isinstance(model, TinyScorer) and (absent := model.missing()):
        raise UserError(f"{model.kind} needs {' and '.join(absent)}; run: pip install {' '.join(absent)}")
    with writing(folder), terminal.progress(f"Writing {name}"):
        if folder.is_dir():
            shutil.rmtree(folder)
        if isinstance(model, TinyScorer):
            write_scorer(model, folder, seed)
        elif isinstance(model, TinyLanguage):
            language.write(model, folder, seed)
        else:
            build.write(model, folder, seed)
        (folder / MARK).write_text("tiny")
    terminal.say("\n".join(_usage(model, folder)))
    return 0


def _named(name: str) -> Tiny | TinyLanguage | TinyScorer:
    if (scorer := scorer_named(name)) is not None:
        return scorer
    if near := difflib.get_close_matches(name, [one.name for one in SCORERS], n=1, cutoff=0.8):
        raise UserError(f"{name!r} can't be made; did you mean {near[0]}? 'burnish tiny --list' shows all")
    found: Tiny | TinyLanguage = describe(name)
    return found


def _usage(model: Tiny | TinyLanguage | TinyScorer, folder: Path) -> list[str]:
    """What was written, and the options by which a recipe uses it."""
    if isinstance(model, TinyScorer):
        given = {name: f"[{','.join(value)}]" if isinstance(value, list) else value or "null"
                 for name, value in model.given(folder).items()}  # fmt: skip
        options = [shlex.quote(f"rewards.{model.name}.{name}={value}") for name, value in given.items()]
        options.append(f"rewards.{model.name}.weight=1")
        return [
            f"{folder} is a checkpoint of reward {model.name} with random weights.",
            f"In a recipe: {' '.join(options)}",
        ]
    if isinstance(model, TinyLanguage):
        return [f"{folder} is a {model.kind} of random weights.", f"In a recipe: model.path={folder}"]
    sizes = {"height": model.height, "width": model.width, "num_frames": model.num_frames}
    options = [
        f"model.path={folder}",
        *(f"rollout.{name}={value}" for name, value in sizes.items() if value is not None),
    ]
    takes = [f"Its prompts bring {', '.join(model.inputs)}."] if model.inputs else []
    return [
        f"{folder} is a {model.kind} of random weights.",
        f"In a recipe: {' '.join([f'model.path={folder}', *options])}",
        *takes,
    ]
