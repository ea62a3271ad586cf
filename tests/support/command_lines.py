"""Whether a shown command line would be accepted: its verb, its arguments, and the options of the run that it names."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shlex
import sys
import tomllib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, NoReturn

import pydantic

from burnish.cli import VERBS
from burnish.commands.sweep import checked
from burnish.config import load
from burnish.config.complaints import every_option
from burnish.config.load import context_of, recipe_names
from burnish.config.overrides import read_overrides
from burnish.config.serving import load_service
from burnish.config.yaml_text import parse
from burnish.data.sets import SETS
from burnish.evaluation.suite import read_suite
from burnish.registry import KINDS, lookup, names
from tests.support.shown import ROOT, words

# programs of others, which nothing here runs
FOREIGN = ("docker", "git", "hf", "kubectl", "mypy", "ray", "ruff", "sbatch", "source")


def accept_line(line: str) -> None:
    """Look at a line of a shell without running it: our commands, modules, scripts, extras and targets are there.

    Raises:
        ValueError: something is not.
    """
    for inner in re.findall(r"<\((.*?)\)", line):
        accept(inner)
    line = re.sub(r"^([A-Z_]+=\S+ )+", "", line)
    program, *rest = shlex.split(line, comments=True)
    if program == "burnish":
        accept(line)
    elif program == "make":
        target = next(word for word in rest if "=" not in word)
        if not re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M):
            raise ValueError(f"make {target}: there is no such target")
    elif program == "pip":
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        wanted = {one for extras in re.findall(r"burnish\[([\w,]+)\]", line) for one in extras.split(",")}
        if not wanted <= known.keys():
            raise ValueError(f"{line}: there are no extras {wanted - known.keys()}")
    elif program == "python" and rest[0] == "-c":
        compile(rest[1], line, "exec")
    elif program == "python":
        _accept_python(rest)
    elif program not in FOREIGN and not program.startswith(".venv/bin/"):
        raise ValueError(f"{line}: what is {program}?")
    for word in rest:
        ours = re.match(r"(benchmarks|docs|examples|tests|tools)/", word)
        if ours and "PLACE" not in word and not (ROOT / word).exists():
            raise ValueError(f"{line}: there is no {word}")


def _accept_python(rest: list[str]) -> None:
    """A script or a module, whose source knows every flag."""
    if rest[:2] == ["-m", "pytest"]:
        return
    found = importlib.util.find_spec(rest[1]) if rest[0] == "-m" else None
    path = Path(found.origin) if found is not None and found.origin else ROOT / rest[0]
    if not path.exists():
        raise ValueError(f"there is no {' '.join(rest)}")
    source = "".join(file.read_text() for file in (path.parent.glob("*.py") if path.stem == "__init__" else [path]))
    beside = [path.parent / f"{name}.py" for name in re.findall(r"from (?:benchmarks\.|tools\.)?(\w+) import", source)]
    source += "".join(file.read_text() for file in beside if file.exists())
    flags = [word.removeprefix("--") for word in rest if word.startswith("--")]
    if unknown := [flag for flag in flags if not re.search(rf'"(--)?{flag}"|\b{flag}=', source)]:
        raise ValueError(f"python {' '.join(rest)}: {path} knows no {unknown}")


def accept_name(command: str) -> None:
    """Look at a command that is shown without what it requires: its verb and its flags are there.

    Raises:
        ValueError: they are not.
    """
    _, verb, *given = command.split()
    if verb not in VERBS:
        raise ValueError(f"{verb!r} is no command")
    flags = _parser(verb)._option_string_actions
    if unknown := [word for word in given if word.startswith("-") and word not in flags]:
        raise ValueError(f"burnish {verb} knows no {unknown}")


def _parser(verb: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=f"burnish {verb}", allow_abbrev=False)
    VERBS[verb].arguments(parser)
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{self.prog}: {message}")


def accept(command: str) -> None:
    """Compose what a command would run, and run nothing.

    Raises:
        ValueError: it would be refused.
    """
    verb, *given = words(command)
    if verb not in VERBS:
        raise ValueError(f"{verb!r} is no command")
    args = _parser(verb).parse_intermixed_args(given)
    if verb in COMPOSED:
        COMPOSED[verb](args)


def _train(args: argparse.Namespace) -> None:
    if args.sweep:
        checked(args.recipe, args.overrides)
    else:
        load(args.recipe, args.overrides)


def _recipe(args: argparse.Namespace) -> None:
    load(args.recipe, [one for one in args.overrides if not one.startswith("memory=")])


def _eval(args: argparse.Namespace) -> None:
    """The options of a run are those of the recipe that its folder is named after."""
    own = [one for one in args.overrides if one.startswith("suite.")]
    recipe = (args.source or "").removeprefix("runs/")
    others = [one for one in args.overrides if one not in own]
    if recipe in recipe_names():
        load(recipe, others)
    elif others:
        raise ValueError(f"options of {args.source}, which no recipe is named after: {others}")
    if args.suite:
        read_suite(args.suite, read_overrides([one.removeprefix("suite.") for one in own]))


def _data(args: argparse.Namespace) -> None:
    if args.action == "prepare" and args.source not in SETS:
        raise ValueError(f"{args.source} is no set")
    if args.action == "show":
        recipe = args.source if args.source in recipe_names() else args.recipe or "quickstart"
        load(recipe, args.overrides)


COMPOSED = {
    "train": _train,
    "config": _recipe,
    "plan": _recipe,
    "eval": _eval,
    "data": _data,
    "serve-reward": lambda args: load_service(args.served, task=args.task),
    "check-reward": lambda args: lookup("flow reward", args.name),
}


def known_options(recipe: str, *options: str) -> list[str]:
    """Dotted names of every option of a recipe."""
    return every_option(context_of(recipe, options))


@cache
def _sections() -> list[type]:
    """Every class of options."""
    for kind in KINDS:
        names(kind)
    modules = [module for name, module in sys.modules.items() if name.startswith("burnish.")]
    found = {id(one): one for module in modules for one in vars(module).values() if isinstance(one, type)}
    return [one for one in found.values() if "__pydantic_fields__" in vars(one)]


def taken(name: str, text: str) -> bool:
    """Whether some class of options has this one, with this value."""
    value = parse(text)
    for section in _sections():
        field = section.__pydantic_fields__.get(name)
        with suppress(pydantic.ValidationError):
            if field is not None:
                pydantic.TypeAdapter(Annotated[field.annotation, field]).validate_json(json.dumps(value), strict=True)
                return True
    return False
