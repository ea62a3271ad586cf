"""Other trainers: names of their options, former ones of ours, and files of theirs, which are read and never run."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache, partial, reduce
from itertools import groupby
from pathlib import Path
from typing import Any

from burnish.config.yaml_text import merge, nest, parse
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.json_text import flattened
from burnish.utils.paths import ASSETS
from burnish.utils.reading import read_text

OLD = "Burnish"  # whose former names are in the table, too
PROJECTS = {
    "language": (OLD, "verl", "EasyR1", "TRL", "LightRFT", "OpenRLHF", "UniRL"),
    "flow": (OLD, "flow_grpo", "Flow-Factory", "verl-omni", "UniRL"),
}
_AND = re.compile(r" and (?=[\w.]+(?: = |=|$))")  # between options, not in a formula
_TARGET = re.compile(r"([^=]+?)(?: = (.+)|=(.+))?")  # option, option = FORMULA, option=VALUE
_CHOICE = re.compile(r"'([\w. -]+)': '([\w. -]+)'")


@dataclass(frozen=True)
class Trainer:
    """What the table says of a project."""

    names: dict[str, str]  # its options: ours, see ``read_entry``
    also: dict[str, str] = field(default_factory=dict)  # other names of these: of other versions, of classes
    same: list[str] = field(default_factory=list)  # names that are ours, too, and mean the same
    defaults: dict[str, Any] = field(default_factory=dict)  # of options that a file leaves out
    recipe: dict[str, Any] = field(default_factory=dict)  # what only we ask for
    rewards: dict[str, Any] = field(default_factory=dict)  # its rewards: ours
    needless: dict[str, list[str]] = field(default_factory=dict)  # reasons: names that nothing is lost with
    lost: dict[str, list[str]] = field(default_factory=dict)  # what to do instead: names without a counterpart
    like: Trainer | None = None  # whose names it has, too

    def find(self, name: str) -> str:
        """A name as the table has it: that of other versions, and an argument of a class without the class."""
        name = self.also.get(name, name)
        inner = name.partition(".")[2]
        if self.look(name)[0] == "unknown" and inner and name[0].isupper():
            return self.find(inner)
        return name if self.like is None or name in self.names else self.like.find(name)

    def look(self, name: str) -> tuple[str, str]:
        """What the table says of a name: in ``names`` its entry, in ``needless`` or ``lost`` the reason; or unknown."""
        if name in self.names or name in self.same:
            return "names", self.names.get(name, name)
        for kind, group in (("needless", self.needless), ("lost", self.lost)):
            for why, patterns in group.items():
                if any(fnmatch(name, pattern) for pattern in patterns):
                    return kind, why
        return ("unknown", "") if self.like is None else self.like.look(name)


@cache
def trainers() -> dict[str, Trainer]:
    """The table, by project."""
    found: dict[str, Trainer] = {}
    for project, own in parse((ASSETS / "foreign_names.yaml").read_text(encoding="utf-8")).items():
        above = found.get(own.get("like", ""))
        shared = {} if above is None else {"recipe": above.recipe, "rewards": above.rewards}
        found[project] = Trainer(**shared | own | {"like": above})
    return found


def projects() -> list[str]:
    """Those of others in the table."""
    return [project for project in trainers() if project != OLD]


def read_entry(entry: str) -> tuple[list[tuple[str, str | None, str | None]], str]:
    """What an entry of the table names: each of our options with its formula or its value in YAML; and a remark."""
    ours, _, remark = entry.partition("; ")
    matches = [_TARGET.fullmatch(text) for text in _AND.split(ours)]
    return [(one[1], one[2], one[3]) for one in matches if one is not None], remark


def shown(entry: str) -> tuple[list[str], str]:
    """The options of an entry as people write them, and what there is to say of them."""
    targets, remark = read_entry(entry)
    pairs = [pair for _, formula, _ in targets for pair in _CHOICE.findall(formula or "") if pair[0] != pair[1]]
    said = remark or ", ".join(dict.fromkeys(f"`{theirs}` is `{ours}`" for theirs, ours in pairs))
    return [option if value is None else f"{option}={value}" for option, _, value in targets], said


def foreign_name(option: str, half: str, *, short: bool) -> str | None:
    """What an option of another trainer, or a former one of ours, is called now; None if none of them has it.

    Args:
        option: dotted, and perhaps an option of what is a section here or a dictionary there.
        half: of the run; names in trainers of that half come first.
        short: whether the end of a name will do: ``ppo_epochs`` for ``actor_rollout_ref.actor.ppo_epochs``, or
            a name in a section that it is not in, as in ``trainer.num_train_epochs``.
    """
    ranked = sorted(trainers().items(), key=lambda item: item[0] not in PROJECTS[half])
    parts = option.split(".")
    above = {".".join(parts[:i]): -i for i in range(1, len(parts) + 1)}  # the longest first, then ends of names
    found = [
        (above.get(name, 0), project, name, *shown(entry))
        for project, trainer in ranked
        for name, entry in trainer.names.items()
        if name in above or (short and (name.endswith(f".{option}") or name == parts[-1]))
    ]
    theirs = [one for one in found if one[2] not in one[3]]  # the others are names of ours, too
    if not theirs:
        return None
    _, project, name, ours, remark = min(theirs, key=lambda one: one[0])
    whose = "a former name" if project == OLD else f"{project}'s name"
    note = f" ({remark})".replace("`", "") if remark else ""
    return f"{whose}{'' if name == option else f' {name}'}; here it is {' and '.join(ours)}{note}"


# files: YAML, shell scripts and Python

Options = dict[str, Any]  # by dotted name

DEEPEST = 20  # names in values of names
LONGEST = 2_000  # characters of a value that names others, or is put in their place
YAML = (".yaml", ".yml", ".json")
ENDS = "\n;&|"  # of a command
MOST = 100  # calls of functions of a Python file
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg, ast.Not: operator.not_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda one, several: one in several,
    ast.NotIn: lambda one, several: one not in several,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "float": float, "int": int, "len": len, "max": max, "min": min, "round": round, "str": str,
    "each": lambda several, key, end="": [f"{one[key]}{end}" for one in several],
    "named": lambda key, several: [{key: one} for one in several],
    "values": lambda tree: list(tree.values()),
    "having": lambda several, key: [one for one in several if key in one],
    "got": lambda several, key, other: [one.get(key, other) for one in several],
    "pair": lambda one: one if isinstance(one, list) else [one],
    "root": lambda number, degree: round(number ** (1 / degree), 12),
    "split": lambda text, at: [float(part) for part in text.split(at)],
    "without": lambda several, key: [one for one in several if one != key],
    "last": lambda path: path.rpartition(".")[2], "os.getcwd": lambda: ".",
    "os.path.join": lambda *parts: "/".join(part for part in parts if part != "."),
}  # fmt: skip


_VARIABLE = re.compile(r"\$\{(?:oc\.env:|oc\.select:)?([\w.]+)(?:\[@\])?(?::?[-,]\s*([^${}]*))?\}|\$(\w+)")
_ARITHMETIC = re.compile(r"\$\(\((.*?)\)\)")
_CLEANED = (  # what is put in the place of what in a script
    (r"(?m)^\s*#.*\n?|(?<=\s)#\s.*$", ""),  # comments
    (r"(?m)^(?:if|while) .*(?:fi|done)$|^while (?:.*\n)*?done$", ""),
    (r"(?m)^(?:if|case) (?:.*\n)*?(?:else\n((?:.*\n)*?))?(?:fi|esac)$", r"\1"),
    (r"(?m)^\s*(?:export )?\w+=.*\$\([^(].*$", ""),  # what only running says
    (r"\\\n", " "),
    (r"(?m)(^\s*|; *|&& *)(?:export|local|readonly) (?=\w+=)", r"\1"),
    (r"(?ms)^(\s*\w+=)\(\n(.*?)^\s*\)", lambda found: f"{found[1]}({' '.join(found[2].split())} )"),
    (_ARITHMETIC, lambda found: found[0].replace(" ", "")),
)


class Expression(str):
    """What stands in a file in the place of a value: code, which is not run."""


def evaluate(node: ast.AST, name: Callable[[str], Any], functions: Mapping[str, Callable[..., Any]] = FUNCTIONS) -> Any:
    """The value of an expression of numbers, texts, lists and dotted names.

    Raises:
        ValueError: it is anything else.
        ArithmeticError, LookupError, TypeError: it has no value.
    """
    value = partial(evaluate, name=name, functions=functions)
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() | ast.Attribute():
            return name(ast.unparse(node))
        case ast.List() | ast.Tuple():
            return [value(one) for one in node.elts]
        case ast.Dict():
            return {value(key): value(one) for key, one in zip(node.keys, node.values, strict=True) if key}
        case ast.JoinedStr():
            return "".join(str(value(one)) for one in node.values)
        case ast.FormattedValue():
            return value(node.value)
        case ast.IfExp():
            return value(node.body if value(node.test) else node.orelse)
        case ast.BoolOp(values=[first, *others]):
            known = value(first)
            decided = not others or bool(known) is isinstance(node.op, ast.Or)
            return known if decided else value(ast.BoolOp(node.op, others))
        case ast.Compare(ops=[how], comparators=[other]) if type(how) in OPERATORS:
            return OPERATORS[type(how)](value(node.left), value(other))
        case ast.UnaryOp() if type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.operand))
        case ast.BinOp() if type(node.op) in OPERATORS:
            sides = value(node.left), value(node.right)
            if isinstance(node.op, ast.Add) or all(isinstance(side, int | float) for side in sides):
                return OPERATORS[type(node.op)](*sides)
        case ast.Subscript(value=ast.Dict() as choices):  # of which the chosen one alone is computed
            held = {value(key): one for key, one in zip(choices.keys, choices.values, strict=True) if key}
            return value(held[value(node.slice)])
        case ast.Subscript():
            return value(node.value)[value(node.slice)]
        case ast.Call() if (function := functions.get(ast.unparse(node.func))) is not None:
            return function(*map(value, node.args))
    raise ValueError(f"{ast.unparse(node)} is not a value")


def read(path: Path, function: str | None, defaults: Options) -> list[Options]:
    """The options of a file: of each command of a script, of a YAML or a Python file.

    Args:
        path: of the file.
        function: which one of a Python file; None takes all that stands outside of functions.
        defaults: what ``get_config()`` of a Python file returns, which is in another file.

    Raises:
        UserError: it can't be read.
    """
    text = read_text(path)
    try:
        if path.suffix in YAML:
            return [_of_yaml(path)]
        if path.suffix == ".py":
            return [_Module(ast.parse(text), defaults).options(function)]
        return [_with_file(options, path, defaults) for options in _of_script(text)]
    except (ConfigError, RecursionError, MemoryError, SyntaxError, ValueError, OSError) as error:
        raise UserError(f"{path} can't be read: {error}; correct it, or give another file") from None


def _value(text: str) -> Any:
    """A value as YAML reads it; what is no YAML is text."""
    try:
        return parse(text.strip())
    except ConfigError:
        return text


def _filled(text: str, values: Mapping[str, Any]) -> str:
    """A text with what its variables stand for, as far as that is known: ``${name}``, ``${name:-value}``."""

    def put(found: re.Match[str]) -> str:
        value = values.get(found[1] or found[3])
        value = found[2] if value in (None, "") else value
        return found[0] if value is None or isinstance(value, list) or len(str(value)) > LONGEST else str(value)

    for _ in range(DEEPEST if "$" in text else 0):
        text = _VARIABLE.sub(put, text) if len(text) < LONGEST else text
    return text


def _tree(path: Path) -> dict[str, Any]:
    """A YAML file, above those beside it that its ``defaults`` name."""
    tree = parse(read_text(path))
    if not isinstance(tree, dict):
        raise ConfigError("it holds no options by name")
    named = tree["defaults"] if isinstance(tree.get("defaults"), list) else []
    below = {str(one): _tree(path.parent / f"{one}.yaml") for one in named if (path.parent / f"{one}.yaml").is_file()}
    others = [name for name in named if str(name) not in below]
    return reduce(merge, [*below.values(), tree | ({"defaults": others} if below else {})])


def _of_yaml(path: Path) -> Options:
    """The leaves of a file; ``${other.option}``, ``${..sibling}`` and ``${oc.env:NAME,value}`` are replaced."""
    options = dict(flattened(_tree(path)))

    def filled(name: str, value: str) -> Any:
        value = re.sub(r"^\$\{oc\.decode:(.*)\}$", r"\1", value)
        above = name.split(".")
        value = re.sub(r"\$\{(\.+)", lambda dots: "${" + "".join(f"{one}." for one in above[: -len(dots[1])]), value)
        return _value(_filled(value, options))

    return options | {
        name: filled(name, value) for name, value in options.items() if isinstance(value, str) and "${" in value
    }


def _of_script(text: str) -> Iterator[Options]:
    """Options of each command: ``a.b=value`` and ``--name value``. Of ``if`` the ``else`` alone is read."""
    for pattern, instead in _CLEANED:
        text = re.sub(pattern, instead, text)
    words = shlex.shlex(text, posix=True, punctuation_chars=ENDS)
    words.whitespace, words.commenters, words.whitespace_split = " \t\r", "", True
    variables: dict[str, list[str]] = {"HOME": ["~"]}
    for ends, group in groupby(words, lambda word: word != "" and not word.strip(ENDS)):
        command = list(group)
        name, assigned, first = (command or [""])[0].partition("=")
        if assigned and name.isidentifier() and (first.startswith("(") or len(command) == 1):
            held = [first.removeprefix("("), *command[1:]]
            variables[name] = [one for word in held if word not in ("", ")") for one in _expanded(word, variables)]
        elif not ends:
            yield _of_command([one for word in command if word != "$@" for one in _expanded(word, variables)])


def _expanded(word: str, variables: Mapping[str, list[str]]) -> list[str]:
    """The words that a word becomes, as far as the script says what its variables are."""
    whole = re.fullmatch(r"\$\{?(\w+)(?:\[@\])?\}?", word)
    if whole and whole[1] in variables:
        return [one for held in variables[whole[1]] for one in (held.split() if held.startswith("--") else [held])]
    texts = {name: " ".join(held) for name, held in variables.items()}

    def computed(found: re.Match[str]) -> str:
        try:
            return str(
                evaluate(ast.parse(found[1].replace("/", "//"), mode="eval").body, lambda name: int(texts[name]))
            )
        except (SyntaxError, ValueError, TypeError, LookupError, ArithmeticError):
            return found[0]

    return [_ARITHMETIC.sub(computed, _filled(word, texts))]


def _of_command(words: list[str]) -> Options:
    """The options of a command; those before ``--`` are of what starts it."""
    options: Options = {}
    flags: dict[str, list[Any]] = {}
    flag = ""
    for word in words:
        keyed = re.fullmatch(r"(--|[+~]{0,2})([a-z_][\w./-]*)=(.*)", word, re.DOTALL)
        if word == "--":
            options, flags, flag = {}, {}, ""
        elif keyed:
            options[keyed[2].replace("-", "_")] = _value(keyed[3])
        elif word.startswith("--"):
            flag = word[2:].replace("-", "_")
            flags[flag] = []
        elif flag and not (flags[flag] and word.endswith(".py")):
            flags[flag].append(_value(word.rstrip(",")))
        else:
            flag = ""
    return options | {
        name: (given[0] if len(given) == 1 else given) if given else True for name, given in flags.items()
    }


def _with_file(options: Options, script: Path, defaults: Options) -> Options:
    """Options of a command with those of the file, or FILE.py:NAME, that it names, which lie below them."""
    named, _, function = str(options.get("config", "")).partition(".py:")
    named = f"{named}.py" if function else named
    places = [folder / named for folder in (Path(), *script.absolute().parents) if named.endswith((*YAML, ".py"))]
    file = next((place for place in places if place.is_file()), None)
    own = {name: value for name, value in options.items() if name != "config"}
    return options if file is None else reduce(dict.__or__, [*read(file, function or None, defaults), own])


class _Module:
    """The assignments of a Python file and of its functions."""

    def __init__(self, tree: ast.Module, defaults: Options) -> None:
        self._functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
        self._tree, self._defaults, self._calls = tree, defaults, 0
        self._names: dict[str, Any] = {}
        self._follow(tree.body, self._names)

    def options(self, function: str | None) -> Options:
        """What a function returns, and its numbers; without one, arguments of what makes options and trainers."""
        if function is not None and function not in self._functions:
            raise ValueError(f"its functions are {', '.join(self._functions) or 'none'}")
        if function is not None:
            names: dict[str, Any] = {}
            returned = self._follow(self._functions[function].body, names)
            return {name: one for name, one in names.items() if type(one) is int} | dict(flattened(returned))
        given: Options = {}
        for node in ast.walk(self._tree):
            name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and name.endswith(("Config", "Arguments", "Trainer", "load_dataset")):
                for one in [*(ast.keyword("path", first) for first in node.args[:1]), *node.keywords]:
                    given.setdefault(f"{name}.{one.arg}", self._value(one.value, self._names))
        return given

    def _follow(self, body: list[ast.stmt], names: dict[str, Any]) -> Any:
        """Do assignments one after the other; what is returned."""
        for statement in body:
            match statement:
                case ast.Return(value=ast.expr() as node):
                    return self._value(node, names)
                case ast.Assign(targets=targets):
                    value = self._value(statement.value, names)
                    for target in targets:
                        if isinstance(target, ast.Name):
                            names[target.id] = value
                        elif isinstance(target, ast.Attribute) and isinstance(
                            held := self._value(target.value, names), dict
                        ):
                            held[target.attr] = value
        return {}

    def _value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        """The value of an expression, or its text."""
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if called in self._functions and self._calls < MOST:
            self._calls += 1
            return self._follow(self._functions[called].body, {})
        if called.endswith(("get_config", "ConfigDict")):
            return nest(self._defaults if called.endswith("get_config") else {})
        try:
            return evaluate(node, partial(self._named, names))
        except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError):
            return Expression(ast.unparse(node))

    def _named(self, names: Mapping[str, Any], name: str) -> Any:
        first, *inner = name.split(".")
        value = reduce(operator.getitem, inner, names.get(first, self._names.get(first)))
        return Expression(name) if value is None else value
