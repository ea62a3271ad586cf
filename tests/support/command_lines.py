"""Whether a shown command line would be accepted: its verb, its arguments, and the options of the run that it names."""

import argparse
import importlib.util
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

from burnish import load
from burnish.cli import VERBS
from burnish.commands.serve import load_service
from burnish.config.hardware import read_speed
from burnish.config.load import context_of
from burnish.config.yaml_text import read_overrides
from burnish.evaluation.suite import read_suite
from burnish.registry import lookup, names
from tests.support.shown import ROOT, recipe_names, words
from tests.support.tiny_run import burnish

# programs of others, which nothing here runs
FOREIGN = ("docker", "git", "hf", "kubectl", "mypy", "ray", "ruff", "sbatch", "source")


def accept_line(line: str) -> None:
    """Raise a ValueError if commands, modules, scripts, extras or targets of ours in a shell's line are not there."""
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
    """Raise a ValueError if the verb or a flag of a command, shown without what it requires, is not there."""
    _, verb, *given = command.split()
    if verb not in VERBS:
        raise ValueError(f"{verb!r} is no command")
    flags = VERBS[verb].parser(verb)._option_string_actions
    if unknown := [word for word in given if word.startswith("-") and word not in flags]:
        raise ValueError(f"burnish {verb} knows no {unknown}")


def accept(command: str) -> None:
    """Compose what a command would run, and run nothing; a ValueError is raised where it would be refused."""
    verb, *given = words(command)
    if verb not in VERBS:
        raise ValueError(f"{verb!r} is no command")
    args = VERBS[verb].parser(verb).parse_intermixed_args(given)
    if verb in COMPOSED:
        COMPOSED[verb](args)


def _train(args: argparse.Namespace) -> None:
    """Of a sweep the first run."""
    options = [one for one in args.overrides if "=" in one or not hasattr(args, "changed")]  # else sections to show
    swept = [re.sub(r",[^\[{]*$", "", one) if getattr(args, "sweep", False) else one for one in options]
    load(args.recipe, *(one for one in read_speed(swept)[1] if not one.startswith("memory=")))


def _eval(args: argparse.Namespace) -> None:
    """The options of a run are those of the recipe that its folder is named after."""
    own = [one for one in args.overrides if one.startswith("suite.")]
    recipe = (args.source or "").removeprefix("runs/")
    others = [one for one in args.overrides if one not in own]
    if recipe in recipe_names():
        load(recipe, *others)
    elif others:
        raise ValueError(f"options of {args.source}, which no recipe is named after: {others}")
    if args.suite:
        read_suite(args.suite, read_overrides([one.removeprefix("suite.") for one in own]))


def _data(args: argparse.Namespace) -> None:
    if args.action == "prepare" and args.source not in burnish("data", "list").out.split():
        raise ValueError(f"{args.source} is no set")
    if args.action == "show":
        recipe = args.source if args.source in recipe_names() else args.recipe or "quickstart"
        load(recipe, *args.overrides)


COMPOSED = {
    "train": _train, "config": _train, "plan": _train, "eval": _eval, "data": _data,
    "serve-reward": lambda args: load_service(args.served, task=args.task),
    "check-reward": lambda args: lookup("flow reward", args.name),
}  # fmt: skip


def known_options(recipe: str, *options: str) -> list[str]:
    """Dotted names of every option of a recipe."""
    return context_of(recipe, options).every_option()


CONTEXTS = (
    *(("quickstart", f"algorithm={name}") for name in names("flow algorithm")),
    *(("vlm_quickstart", f"algorithm={name}") for name in names("language algorithm")),
    ("vlm_quickstart", "environment.name=tools"),
    ("quickstart", "rewards.function.weight=1", "rewards.pickscore.weight=1"),
)  # fmt: skip


@cache
def all_options() -> frozenset[str]:
    """Every option of some recipes; of every reward and pool as of NAME, too."""
    options = {option for context in CONTEXTS for option in known_options(*context)}
    return frozenset(options | {re.sub(r"^(rewards|pools)\.\w+\.", r"\1.NAME.", option) for option in options})


def is_option(name: str) -> bool:
    """Whether some recipe has an option or a section of this dotted name."""
    name = re.sub(r"^(rewards|pools)\.\w+(?=\.|$)", r"\1.NAME", name)
    sections = {option[: dot.start()] for option in all_options() for dot in re.finditer(r"\.", option)}
    leaves = all_options() - sections  # some of which are tables
    return name in all_options() | sections or any(name.startswith(f"{leaf}.") for leaf in leaves)
