"""Whether a shown command line would be accepted: its verb, its arguments, and the options of the run that it names."""

from __future__ import annotations

import argparse
from typing import NoReturn

from burnish.cli import VERBS
from burnish.commands.sweep import checked
from burnish.config import load
from burnish.config.load import recipe_names
from burnish.config.overrides import read_overrides
from burnish.config.serving import load_service
from burnish.data.sets import SETS
from burnish.evaluation.suite import read_suite
from burnish.registry import lookup
from tests.support.shown import words


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
    parser = _Parser(prog=f"burnish {verb}", allow_abbrev=False)
    VERBS[verb].arguments(parser)
    args = parser.parse_intermixed_args(given)
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
