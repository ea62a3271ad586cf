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
from burnish.config.yaml_text import at, nest, parse, show
from burnish.registry import fields
from burnish.utils import terminal
from burnish.utils.addresses import HIDDEN, SECRET_NAME
from burnish.utils.disk import write_atomically
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.json_text import flattened
from burnish.utils.reading import checked_path

OWN_CODE = "my_rewards.py"  # where rewards are that have to be written
FUNCTIONS_OF = "flow_grpo"  # the project whose configurations are functions
GROUPS = (
    ("lost", "Not carried over:"),
    ("unknown", "Unknown to Burnish; look for a counterpart in burnish config RECIPE:"),
    ("needless", "Nothing to set here:"),
)
HINTS = (  # what stands above a recipe with such values
    (rf"\b{re.escape(OWN_CODE)}", "Write the reward functions of {} first."),
    (r"\bmy_(?!rewards)[\w.]+", "Weights and questions of rewards are yours to provide (docs/learned_rewards.md): {}."),
    (
        r"\$[{(]|\$[A-Za-z_]\w+(?![\w$])",
        "Values with a $ are variables that the file does not set; put in what they stand for.",
    ),
)
ALGORITHM = "algorithm.name"  # never another one than theirs
FEW = 3  # names of a project that a file has at least
OFF = (None, False, 0, "", "none", "no")
MACHINE = ("gpus", "nodes")  # words of the command line, and no options of a recipe
NO_COUNTERPART = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # of a formula


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
    conversion.options = {"output_dir": (f"runs/{path.stem}", "")} | conversion.options
    target = None if output is None else checked_path(output, "--output")
    if target is not None and (target.exists() or target.suffix not in (".yaml", ".yml")):
        raise UserError(f"--output is {output}; give a .yaml file that does not exist yet")
    with TemporaryDirectory() as folder:
        place = target or Path(folder) / f"{path.stem}.yaml"
        said = [f"# The file does not decide `{test}`: {what}." for test, what in undecided.items()]
        lines = [*_comments(conversion, path, place, sum(map(bool, found)) - 1), *said, "", *conversion.lines(), ""]
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
    of = {conversion.options[name][1]: None for name in MACHINE if name in conversion.options} or [
        "the file names no number of GPUs: what it says of each is taken for one"
    ]
    yield f"# {shlex.join(['burnish', 'train', place.name, *conversion.words])}    # {', '.join(of)}"
    if others:
        yield f"# Commands of the file that are left out: {others}. This is the one with the most options."
    if made_up := {
        name.split(".")[1] for name, (_, of) in conversion.options.items() if name.startswith("rewards.") and not of
    }:
        yield f"# The file names no reward: put yours in the place of {', '.join(made_up)} (docs/rewards.md)."
    values = " ".join(str(value) for value, _ in conversion.options.values())
    for pattern, hint in HINTS:
        if found := re.findall(pattern, values):
            yield f"# {hint.format(', '.join(sorted(set(found))))}"
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
        raise UserError(
            f"its options are of no project that is known; give --from, one of {', '.join(known)}, or FILE.py:NAME "
            "where a function returns them"
        )
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
            result = float(f"{result:.12g}") if type(result) is float else result  # 5e-7, not 5.000000000000001e-07
            for place, leaf in flattened({option: result}):
                of = [*(self._stated_of(place) if stated else []), *self._origins(name, text, place)]
                self.options[place] = leaf, ", ".join(of)
            done = True
        if problems and stated and value is not None:
            self.lost[name] = problems[0]
        elif not done and stated:
            always = all(formula == "skip" for _, formula, _ in targets)
            self.needless[name] = remark if always and remark else "nothing has to be set for this value"

    def _stated_of(self, option: str) -> list[str]:
        """Their options, of those in the file, that one of ours is of."""
        return [
            one for one in self.options.get(option, (None, ""))[1].split(", ") if one and "'s default of " not in one
        ]

    def _origins(self, name: str, entry: str, option: str) -> list[str]:
        """What an option of ours is of: one of theirs, or those of a section that its entry reads for it or for all."""
        held, written = self.stated.get(name), self.written.get(name, f"{self.project}'s default of {name}")
        leaves = [leaf for leaf, _ in flattened(held) if _reads(entry, leaf)] if isinstance(held, dict) else []
        own = [leaf for leaf in leaves if {*leaf.split(".")} & {*option.split(".")[1:-1]}]
        return [f"{written}.{leaf}" for leaf in own or leaves] or [written]

    def _result(self, value: Any, formula: str | None, literal: str | None) -> Any:
        """What one of our options becomes.

        Raises:
            Skip: nothing is set.
            ValueError, LookupError, TypeError, ArithmeticError: there is no counterpart.
        """
        if formula is not None:
            functions = FUNCTIONS | {"rewards": partial(_rewards, trainers()[self.project].rewards)}
            return evaluate(ast.parse(formula, mode="eval").body, partial(self._named, value), functions)
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
            above = max(
                (one for one in known if not one or f"{option}.".startswith(f"{one}.")), key=len
            )  # it, or its section
            if above == option or (known[above][1] is None and above):  # what is in a dictionary is anybody's
                continue
            self.lost |= {
                name: f"{option} is not an option of {at(tree, 'algorithm', 'name') or tree['task']}"
                for name, written in self.written.items()
                if any(f"{of}.".startswith(f"{written}.") for of in self._stated_of(option))
            }
            del self.options[option]

    def lines(self) -> Iterator[str]:
        """The recipe, each line with what it is of."""
        options = {name: one for name, one in self.options.items() if name not in MACHINE}
        order = list(fields(task_named(options["task"][0]).config))
        values = {name: options[name][0] for name in sorted(options, key=lambda name: order.index(name.split(".")[0]))}
        yield from _lines(nest(values), options, "")


def _leaves(tree: Mapping[str, Any], trainer: Trainer, above: str = "") -> Iterator[tuple[str, Any]]:
    """Options by dotted name. A section that the table knows is one; what its entry doesn't read of it are others."""
    for key, value in tree.items():
        name = f"{above}{key}"
        kind, entry = trainer.look(trainer.find(name))
        if isinstance(value, dict) and value and kind != "names":
            yield from _leaves(value, trainer, f"{name}.")
            continue
        yield name, value
        several = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]
        inner = [leaf for one in several for leaf in flattened(one) if kind == "names"]
        for place in dict.fromkeys(place for place, _ in inner if not _reads(entry, place)):
            values = [leaf for at, leaf in inner if at == place]
            yield f"{name}.{place}", values if values[1:] != values[:-1] else values[0]


def _reads(entry: str, place: str) -> bool:
    """Whether an entry reads what is at a place of a section: all of it, unless it quotes names."""
    return "'" not in entry or f"'{place.rpartition('.')[2]}'" in entry


def _lines(tree: Mapping[str, Any], options: Mapping[str, tuple[Any, str]], above: str) -> Iterator[str]:
    """YAML of a section."""
    indent = "  " * above.count(".")
    for name, value in tree.items():
        option = f"{above}{name}"
        if option in options:
            yield f"{indent}{_scalar(name)}: {_scalar(value)}{'  # ' if options[option][1] else ''}{options[option][1]}"
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
    if isinstance(given, dict) and not {"name", "reward_model"} & given.keys():
        given = [
            (one if isinstance(one, dict) else {"weight": one}) | {"reward_model": key} for key, one in given.items()
        ]
    section: dict[str, Any] = {}
    for place, one in enumerate(given if isinstance(given, list) else [given]):
        own = one if isinstance(one, dict) else {"name": str(one)}
        name = str(own.get("reward_model") or own["name"])
        weight = weights[place] if isinstance(weights, list) else own.get("weight", 1) if weights is None else weights
        label = re.sub(r"\W+", "_", name.rpartition(".")[2])
        path = f"{own['path']}:{own['name']}".removeprefix("pkg://") if "path" in own else f"{OWN_CODE}:{label}"
        ours = known.get(name) or known.get(name.lower()) or {"label": label, "name": "function", "path": path}
        weighted = {"weight": 1, "weight_by": weight} if isinstance(weight, dict) else {"weight": weight}
        ours = weighted | ({"name": ours} if isinstance(ours, str) else ours)
        section[ours.pop("label", ours["name"])] = ours
    return section
