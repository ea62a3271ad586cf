"""burnish init: a recipe of one's own from a few answers, with which a run fits its GPUs."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from burnish.config import RunConfig, load
from burnish.config.batches import smallest, with_sizes
from burnish.config.hardware import read_machine
from burnish.config.load import context_of, recipe_names
from burnish.config.yaml_text import merge, nest, read_overrides, show
from burnish.utils import terminal
from burnish.utils.disk import write_atomically
from burnish.utils.errors import UserError
from burnish.utils.reading import checked_path

log = logging.getLogger(__name__)


def init(
    file: str = "my_recipe.yaml",
    *,
    model: str | None = None,
    like: str | None = None,
    train: str | None = None,
    val: str | None = None,
    reward: str | None = None,
    gpus: Annotated[int, 1, 100_000] | None = None,
    memory: str | None = None,
) -> int:
    """Write a recipe for a model, data and a reward of your own.

    It asks for what is not given. The recipe extends one that ships with Burnish. It is composed and forecast as
    burnish plan does, and gets the options with which it fits your GPUs.

    Examples:
        burnish init
        burnish init mine.yaml --model my_model --like sd35/flow_grpo --reward ocr

    Args:
        file: a new .yaml file
        model: a folder, or a name on the Hugging Face hub
        like (RECIPE): the recipe to begin with, of a model of the same kind
        train (FILE): prompts or questions to train on
        val (FILE): those of validations; none takes the training prompts
        reward (NAME|FILE.py:FUNCTION): a reward of Burnish or your own function
        gpus: of this machine, or of all
        memory: of each GPU, such as 80GB
    """
    place = checked_path(file, "FILE")
    if place.exists() or place.suffix not in (".yaml", ".yml"):
        raise UserError(f"FILE is {file}; give a .yaml file that does not exist yet")
    model = model or _ask("model", "Model, a folder or a name on the hub")
    like = like or _ask("like", "Recipe to begin with (burnish recipes lists them)", _recipe_of(model))
    train = train or _ask("train", "File of training prompts")
    val = val or _ask("val", "File of validation prompts", "none")
    reward = reward or _ask("reward", "Reward, a name or FILE.py:FUNCTION")
    machine = {"gpus": gpus or _ask("gpus", "GPUs", "1"), "memory": memory or _ask("memory", "Memory of each", "80GB")}
    words = [f"{name}={value}" for name, value in machine.items()]
    answers = {"model": model, "like": like, "train": train, "val": val, "reward": reward, **machine}
    tree: dict[str, Any] = {
        "extends": like, "model": {"path": model}, "output_dir": f"runs/{place.stem}",
        "data": {"train_files": train, "val_files": None if val == "none" else val},
        "rewards": {"function": {"path": reward}} if ":" in reward else {reward: {}},
    }  # fmt: skip

    def read(options: Sequence[str]) -> RunConfig:
        write_atomically(place, "".join(f"{name}: {show(value)}\n" for name, value in tree.items()).encode())
        return load(str(place), [*words, *options])

    try:
        tree = merge(tree, nest(read_overrides(_fitting(read, words))))
        read(())
    except BaseException:
        place.unlink(missing_ok=True)
        log.warning(
            "%s is not written; to give the same answers again: %s", place,
            shlex.join(["burnish", "init", file, *(f"--{name}={answer}" for name, answer in answers.items())]),
        )  # fmt: skip
        raise
    terminal.say(f"{place} is written; next:\n  burnish config {place} --changed\n  burnish train {place} {words[0]}")
    return 0


def _fitting(read: Callable[[Sequence[str]], RunConfig], words: Sequence[str]) -> Sequence[str]:
    """Options with which a run fits."""
    with terminal.loading_pytorch():
        from burnish.commands.fitting import LARGER, why
        from burnish.plan.advice import remedies
        from burnish.plan.forecast import forecast
    config, memory = read(()), read_machine(words)[0].memory or 0
    try:
        with terminal.progress("Forecasting") as tell:
            least = forecast(with_sizes(config, smallest(config)), tell)
            tried = (one.options for one in remedies(read, least, memory, tell) if one.fits)
            fits = () if least.fits(memory) else next(tried, None)
    except UserError:
        raise
    except Exception as error:  # a model that no forecast knows may fail in any way
        terminal.say(f"No memory forecast, and the recipe is written without: {why(error)}")
        return ()
    if fits is None:
        raise UserError(f"{'; '.join(pool.why(memory) for pool in least.pools)}; nothing makes it fit: {LARGER}")
    return fits


def _recipe_of(model: str) -> str:
    """A recipe that trains this model, by policy gradients where there is one; "" if none does."""
    names = sorted(recipe_names(), key=lambda name: not name.endswith("grpo"))
    with terminal.progress("Looking for a recipe of this model"):
        return next((name for name in names if (context_of(name).tree.get("model") or {}).get("path") == model), "")


def _ask(name: str, question: str, default: str = "") -> str:
    """An answer of whoever sits at the terminal; without one it asks again."""
    answer = ""
    while not answer:
        try:
            answer = input(f"{question}{f' [{default}]' if default else ''}: ").strip() or default
        except EOFError:
            raise UserError(f"--{name} is not given, and nobody answers; give it") from None
    return answer
