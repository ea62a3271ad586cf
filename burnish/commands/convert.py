"""burnish convert: a recipe of what a file of another trainer says, and what of it has no counterpart."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from burnish import __version__
from burnish.config import load
from burnish.config.foreign import (
    FUNCTIONS,
    Expression,
    Options,
    Trainer,
    evaluate,
    projects,
    read,
    read_entry,
    trainers,
)
from burnish.config.load import labelled
from burnish.config.names import Context
from burnish.config.tasks import task_named
from burnish.config.yaml_text import nest, parse, show
from burnish.registry import fields
from burnish.utils import terminal
from burnish.utils.addresses import HIDDEN
from burnish.utils.disk import write_atomically
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.json_text import flattened
from burnish.utils.reading import checked_path

FUNCTIONS_OF = "flow_grpo"  # the project whose configurations are functions
GROUPS = (
    ("lost", "Not carried over:"),
    ("unknown", "Unknown to Burnish; look for a counterpart in burnish config RECIPE:"),
    ("needless", "Nothing to set here:"),
)
ALGORITHM = "algorithm.name"  # never another one than theirs
FEW = 3  # names of a project that a file has at least
OFF = (None, False, 0, "", "none", "no")
MACHINE = ("gpus", "nodes")  # words of the command line, and no options of a recipe
NO_COUNTERPART = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # of a formula
SECRET_NAME = re.compile(r"(api_?|\.)key$|(^|_)token$|password$|secret$", re.IGNORECASE)  # whose value is not repeated
OWN_CODE = "my_rewards.py"  # where rewards are that have to be written


def convert(file: str, *, project: str | None = None, output: str | None = None) -> int:
    """Convert a configuration of another trainer to a recipe.

    Reads YAML files, shell scripts and Python files of verl, EasyR1, verl-omni, TRL, OpenRLHF, LightRFT, flow_grpo,
    Flow-Factory and UniRL, as text: nothing in them is run. The recipe says of each line what it is of, and lists every
    option that was not carried over. It is composed, without weights: 2 is returned where that is refused.

    Examples:
        burnish convert run_qwen2_5_vl.sh --output mine.yaml
        burnish convert config/grpo.py:pickscore_sd3              the function of a file with several
        burnish convert config.yaml --from EasyR1

    Args:
        file: a .yaml, .sh or .py file; FILE.py:NAME is a function that returns a configuration
        project (--from PROJECT): whose file it is; without it that is seen by the names of its options
        output (-o, --output FILE): a new .yaml file; without it the recipe is printed
    """
    if project is not None and project not in projects():
        raise UserError(f"--from is {project}; give one of {', '.join(projects())}")
    name, _, function = file.partition(".py:")
    path = checked_path(f"{name}.py" if function else file, "FILE")
    found = read(path, function or None, trainers()[FUNCTIONS_OF].defaults)
    if not found:
        raise UserError(f"{path} holds no options; give a .yaml, .sh or .py file with the options of a run")
    given = max(found, key=len)
    undecided = given.pop("if", {})  # tests of a script
    program = given.pop("program", "")
    conversion = Conversion(project_of(given, program, project), given, program)
    others = sum(map(bool, found)) - 1  # commands of a script that have options, too
    conversion.options = {"output_dir": (f"runs/{path.stem}", "")} | conversion.options
    target = None if output is None else checked_path(output, "--output")
    if target is not None and (target.exists() or target.suffix not in (".yaml", ".yml")):
        raise UserError(f"--output is {output}; give a .yaml file that does not exist yet")
    with TemporaryDirectory() as folder:
        place = target or Path(folder) / f"{path.stem}.yaml"
        said = [f"# The file does not decide `{test}`: {what}." for test, what in undecided.items()]
        lines = [*_comments(conversion, path, place, others), *said, "", *conversion.lines(), ""]
        text = "\n".join(" ".join(line.splitlines()) for line in lines)  # names and values may come from somebody else
        write_atomically(place, text.encode())
        if target is None:
            print(terminal.printable(text), end="")
        try:
            load(str(place), [word for word in conversion.words if "$" not in word])
            if ALGORITHM not in conversion.options:
                raise ConfigError([f"{ALGORITHM}: theirs has no counterpart by name; see above, and choose one"])
        except ConfigError as error:
            raise ConfigError(["the recipe can't be trained yet:", *error.complaints]) from None
    if target is not None:
        terminal.say(
            f"{target} is written; its first lines list what was not carried over. Next:\n"
            f"burnish plan {shlex.join([str(target), *conversion.words])} memory=80GB"
        )
    return 0


def _comments(conversion: Conversion, source: Path, place: Path, others: int) -> Iterator[str]:
    """What stands above a recipe of one command, beside which a script has ``others``."""
    yield f"# Converted from {source.name} of {conversion.project} by Burnish {__version__}."
    machine = [of for name, (_, of) in conversion.options.items() if name in MACHINE]
    of = f"    # {', '.join(machine)}" if machine else ""
    yield f"# {shlex.join(['burnish', 'train', place.name, *conversion.words])}{of}"
    if others:
        yield f"# Commands of the file that are left out: {others}. This is the one with the most options."
    if made_up := {
        name.split(".")[1] for name, (_, of) in conversion.options.items() if name.startswith("rewards.") and not of
    }:
        yield f"# The file names no reward: put yours in the place of {', '.join(made_up)} (docs/rewards.md)."
    values = [str(value) for value, _ in conversion.options.values()]
    if any(value.startswith(OWN_CODE) for value in values):
        yield f"# Write the reward functions of {OWN_CODE} first."
    if any(re.search(r"\$[A-Za-z_{(]", value) for value in values):
        yield "# Values with a $ are variables that the file does not set; put in what they stand for."
    trainer = trainers()[conversion.project]
    yield from (f"# {why}" for name, why in trainer.asks.items() if conversion.values.get(name) is None)
    for kind, title in GROUPS:
        by_reason: dict[str, list[str]] = {}
        for name, why in getattr(conversion, kind).items():
            value = conversion.stated[name]
            text = HIDDEN if SECRET_NAME.search(name) and isinstance(value, str) else show(value)
            by_reason.setdefault(why, []).append(f"{conversion.written[name]}={text:.60}")
        if by_reason:
            yield from ("#", f"# {title}")
        for why, names in by_reason.items():
            yield f"#   {', '.join(names)}{f': {why}' if why else ''}"


class Skip(Exception):
    """A formula sets nothing."""


def project_of(given: Options, program: str = "", whose: str | None = None) -> str:
    """The project whose names these are, or the part of it that a program is: ``TRL/DPO``.

    Args:
        given: the options of the file.
        program: that a command runs.
        whose: a project; None is any.

    Raises:
        UserError: it is none of the table's.
    """
    asked = [one for one in projects() if whose in (None, one, one.partition("/")[0])]
    named = [one for one in asked if any(fnmatch(program, name) for name in trainers()[one].programs)]
    known: dict[str, tuple[int, int, int]] = {}
    for project in asked:
        trainer = trainers()[project]
        names = [trainer.find(name) for name, _ in _leaves(nest(given), trainer)]
        kinds = [trainer.look(name)[0] for name in names]
        own = sum(name in trainer.names for name in names)
        known[project] = kinds.count("names"), own, len(kinds) - kinds.count("unknown")
    best = max(named or known, key=known.__getitem__)
    if whose is None and known[best][2] < (1 if named else FEW):
        raise UserError(f"its options are of no project that is known; give --from, one of {', '.join(known)}")
    several = [one for one in known if one.partition("/")[0] == best.partition("/")[0]]
    stated = {name.rpartition(".")[2] for name in given}
    marked = {one: len({*trainers()[one].marks} & stated) for one in several if trainers()[one].marks}
    if any(marked.values()) and not named:
        return max(marked, key=lambda one: (marked[one], known[one]))
    if marked and not named and whose is None:
        raise UserError(f"it does not say for which trainer it is; give --from, one of {', '.join(several)}")
    return best if named or not marked else str(whose)


@dataclass
class Conversion:
    """What a file of a project says, as options of ours; what becomes of each of its options.

    Args:
        project: a name in the table.
        given: the options of the file.
        program: what reads them, if that is known.
    """

    project: str
    given: Options
    program: str = ""
    options: dict[str, tuple[Any, str]] = field(default_factory=dict)  # ours: value, and what it is of
    needless: dict[str, str] = field(default_factory=dict)  # theirs: why
    lost: dict[str, str] = field(default_factory=dict)  # theirs: what to do instead
    unknown: dict[str, str] = field(default_factory=dict)  # theirs: where it might belong
    barred: set[str] = field(default_factory=set)  # ours that theirs would need another value of than there is

    def __post_init__(self) -> None:
        trainer = trainers()[self.project]
        leaves = list(_leaves(nest(self.given), trainer))
        self.stated = {trainer.find(name): value for name, value in leaves}
        self.written = {trainer.find(name): name for name, _ in leaves}
        self.values = trainer.defaults | self.stated
        known = any(fnmatch(self.program, name) for name in trainer.programs)
        self.values["program"] = self.program if known else None
        for name, formula in trainer.lets.items():
            with suppress(*NO_COUNTERPART):
                self.values[name] = self._result(None, formula, None)
        places = {name: place for place, name in enumerate(trainer.names)}  # what stands later in the table decides
        for name in sorted(trainer.defaults | self.stated, key=lambda name: places.get(name, -1)):
            self._take(name, name in self.stated)
        scored = any(option.startswith("rewards.") for option in self.options)
        below = {name: one for name, one in trainer.recipe.items() if not (scored and name.startswith("rewards."))}
        self.options = {name: (value, "") for name, value in below.items()} | self.options
        self.options = {name: one for name, one in self.options.items() if name not in self.barred}
        self._leave_out()

    @property
    def words(self) -> list[str]:
        """What the command line says of the machine."""
        return [f"{name}={self.options[name][0]}" for name in MACHINE if name in self.options]

    def _take(self, name: str, stated: bool) -> None:
        """Convert one of their options."""
        trainer, value = trainers()[self.project], self.values[name]
        kind, text = trainer.look(name)
        off = kind == "lost" and value in (None, "", [], {})
        if kind != "names":
            getattr(self, "needless" if off else kind)[name] = "nothing is set" if off else text
            return
        targets, remark = read_entry(text)
        problems, done = [], False
        for option, formula, literal in targets:
            try:
                result = self._result(value, formula, literal)
            except Skip:
                continue
            except NO_COUNTERPART:
                self.barred |= {option} & {ALGORITHM}
                problems.append(f"{show(value)} can't be converted{f' ({remark})' if remark else ''}")
                continue
            origin = self.written[name] if stated else f"{self.project}'s default of {name}"
            result = float(f"{result:.12g}") if type(result) is float else result  # 5e-7, not 5.000000000000001e-07
            for place, leaf in flattened({option: result}):
                others = self._stated_of(place) if stated else []
                self.options[place] = leaf, ", ".join([*others, origin])
            done = True
        if problems and stated and value is not None:
            self.lost[name] = problems[0]
        elif not done and stated:
            always = all(formula == "skip" for _, formula, _ in targets)
            self.needless[name] = remark if always and remark else "nothing has to be set for this value"

    def _stated_of(self, option: str) -> list[str]:
        """Their options, of those in the file, that one of ours is of."""
        written = set(self.written.values())
        return [one for one in self.options.get(option, (None, ""))[1].split(", ") if one in written]

    def _result(self, value: Any, formula: str | None, literal: str | None) -> Any:
        """What one of our options becomes.

        Raises:
            Skip: nothing is set.
            ValueError, LookupError, TypeError, ArithmeticError: there is no counterpart.
        """
        if formula is not None:
            rewards = partial(_rewards, trainers()[self.project].rewards)
            named = partial(self._named, value)
            return evaluate(ast.parse(formula, mode="eval").body, named, FUNCTIONS | {"rewards": rewards})
        if isinstance(value, Expression):
            raise ValueError("it is code")
        if value is None or (literal is not None and value in OFF):
            raise Skip
        return value if literal is None else parse(literal)

    def _named(self, this: Any, name: str) -> Any:
        """The value of a name in a formula: null if the file does not say it, and it has no default."""
        if name == "skip":
            raise Skip
        return this if name == "this" else self.values.get(name)

    def _leave_out(self) -> None:
        """Drop options that the chosen task or algorithm has not, and say so."""
        tree = nest({name: value for name, (value, _) in self.options.items()})
        config = task_named(tree["task"]).config
        known = Context([("", tree)], {}, labelled(tree), config).options
        for option in [one for one in self.options if one not in MACHINE]:
            above = option  # or the innermost section that it is in
            while above not in known:
                above = above.rpartition(".")[0]
            if above == option or (known[above][1] is None and above):  # what is in a dictionary is anybody's
                continue
            for name in [name for name, written in self.written.items() if written in self._stated_of(option)]:
                self.lost[name] = f"{option} is not an option of {tree['algorithm'].get('name', 'the algorithm')}"
            del self.options[option]

    def lines(self) -> Iterator[str]:
        """The recipe, each line with what it is of."""
        options = {name: one for name, one in self.options.items() if name not in MACHINE}
        order = list(fields(task_named(options["task"][0]).config))
        tree = nest({name: value for name, (value, _) in options.items()})
        yield from _lines(dict(sorted(tree.items(), key=lambda item: order.index(item[0]))), options, "")


def _leaves(tree: Mapping[str, Any], trainer: Trainer, above: str = "") -> Iterator[tuple[str, Any]]:
    """Options by dotted name; a section that the table knows as an option is one."""
    for key, value in tree.items():
        name = f"{above}{key}"
        if isinstance(value, dict) and value and trainer.look(trainer.find(name))[0] != "names":
            yield from _leaves(value, trainer, f"{name}.")
        else:
            yield name, value


def _lines(tree: Mapping[str, Any], options: Mapping[str, tuple[Any, str]], above: str) -> Iterator[str]:
    """YAML of a section."""
    indent = "  " * above.count(".")
    for name, value in tree.items():
        option = f"{above}{name}"
        if option in options:
            origin = options[option][1]
            yield f"{indent}{_scalar(name)}: {_scalar(value)}{f'  # {origin}' if origin else ''}"
        else:
            yield f"{indent}{_scalar(name)}:"
            yield from _lines(value, options, f"{option}.")


def _scalar(value: Any) -> str:
    """A name or a value in YAML, on one line whatever is in it."""
    text = show(value)
    return text if len(text.splitlines()) == 1 else json.dumps(value)


def _rewards(known: Mapping[str, Any], given: Any, weights: Any = None) -> dict[str, Any]:
    """Rewards by name, with their weights, as a section of ours.

    Args:
        known: their names: ours, with options.
        given: a name, a list of names or of dictionaries with name or reward_model and weight, or weights by name.
        weights: of the list, or one number for all; None is 1.
    """
    if isinstance(given, dict) and "name" not in given:
        given, weights = list(given), list(given.values())
    several = given if isinstance(given, list) else [given]
    section: dict[str, Any] = {}
    for place, one in enumerate(several):
        own = one if isinstance(one, dict) else {"name": str(one)}
        name = str(own.get("reward_model") or own["name"])
        weight = weights[place] if isinstance(weights, list) else own.get("weight", 1) if weights is None else weights
        label = re.sub(r"\W+", "_", name.rpartition(".")[2])
        ours = known.get(name, {"label": label, "name": "function", "path": f"{OWN_CODE}:{label}"})
        ours = {"weight": weight} | ({"name": ours} if isinstance(ours, str) else ours)
        label = ours.pop("label", ours["name"])
        section[label] = ours
    return section
