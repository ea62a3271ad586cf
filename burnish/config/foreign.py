"""Other trainers: names of their options, former ones of ours, and files of theirs, which are read and never run."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache, partial, reduce
from itertools import groupby, pairwise
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
    programs: list[str] = field(default_factory=list)  # that it is: `dpo` of TRL/DPO; without, a project's main one
    marks: list[str] = field(default_factory=list)  # names of which a file has one that is for this one of several
    lets: dict[str, str] = field(default_factory=dict)  # names for formulas of others, in order
    asks: dict[str, str] = field(default_factory=dict)  # what has to be said if nothing says the value of a name

    def find(self, name: str) -> str:
        """A name as the table has it: that of other versions, and an argument of a class without the class."""
        name = self.also.get(name, name)
        if self.like is not None and name not in self.names:
            name = self.like.find(name)
            name = self.also.get(name, name)
        inner = name.partition(".")[2]
        return self.find(inner) if inner and name[0].isupper() and self.look(name)[0] == "unknown" else name

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
        shared = {} if above is None else {one: getattr(above, one) for one in ("recipe", "rewards", "lets", "asks")}
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
    "each": lambda several, key, end="": [f"{one if key is None else one[key]}{end}" for one in several],
    "named": lambda key, several: [{key: one} for one in several],
    "values": lambda tree: list(tree.values()),
    "having": lambda several, key: [one for one in several if key in one],
    "got": lambda several, key, other: [one.get(key, other) for one in several],
    "pair": lambda one: one if isinstance(one, list) else [one],
    "root": lambda number, degree: round(number ** (1 / degree), 12),
    "split": lambda text, at: [float(part) for part in text.split(at)],
    "without": lambda several, key: [one for one in several if one != key],
    "last": lambda path: path.rpartition(".")[2], "os.getcwd": lambda: ".",
    "many": lambda one: one if isinstance(one, list) else [_value(part) for part in str(one).split(",")],
    "os.path.join": lambda *parts: "/".join(part for part in parts if part != "."),
}  # fmt: skip


_PARENS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_BRACES = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"
_VARIABLE = re.compile(rf"\$\{{(?:oc\.(?:env|select):)?([\w.]+)(?:\[[@*]\])?(?:(:?[-=]|,|//?)({_BRACES}))?\}}|\$(\w+)")
_ARITHMETIC = re.compile(rf"\$\(({_PARENS})\)")
_DOUBLE = rf'(?:\\[\s\S]|\${_PARENS}|[^"\\])*+'
_BARE = rf"\$?{_PARENS}|\$\{{{_BRACES}\}}|`[^`]*`|\\[\s\S]"
_WORD = rf"""(?:'[^']*'|"{_DOUBLE}"|{_BARE}|[^\s;&|<>()'"\\`])++"""
_SYNTAX = re.compile(  # a comment, where output goes, the end of a command, a `case`, a word
    rf"(?<!\S)#.*|\\\n|[\d&]?[<>]+(?:&\d|\s*{_WORD})|(?P<end>[\n;&|]+)|\s+"
    rf"|\bcase\s+(?P<of>{_WORD})\s+in\s(?P<arms>[\s\S]*?)\besac\b|(?P<word>{_WORD})|[\s\S]"
)
_PIECE = re.compile(rf"""'([^']*)'|"({_DOUBLE})"|((?:{_BARE}|[^'"\\])+)""", re.DOTALL)
_HEREDOC = re.compile(r"^(.*)<<-?\s*['\"]?(\w+)['\"]?(.*)\n((?:.*\n)*?)\s*\2$", re.MULTILINE)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_OPTION = re.compile(r"(?:--|[+~]{0,2})([a-z_][\w.@/-]*)=(.*)", re.DOTALL)
_KEYWORDS = ("then", "do", "{", "export", "local", "declare", "readonly")  # that a command follows
_STARTERS = ("--", "python", "python3", "accelerate", "torchrun", "deepspeed", "trl")  # the run's own command begins
_BRACKETS = ("[", "[[", "test", "]", "]]")
_TESTS: dict[str, Callable[[str, str], bool]] = {
    "=": fnmatch, "==": fnmatch, "!=": lambda one, other: not fnmatch(one, other),
    "-eq": lambda one, other: int(one) == int(other), "-ne": lambda one, other: int(one) != int(other),
    "-gt": lambda one, other: int(one) > int(other), "-ge": lambda one, other: int(one) >= int(other),
    "-lt": lambda one, other: int(one) < int(other), "-le": lambda one, other: int(one) <= int(other),
}  # fmt: skip


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
            tree = ast.parse(text)
            usage = [] if function else [*_Script().options(ast.get_docstring(tree) or "")]
            return [_Module(tree, defaults).options(function) | max(usage, key=len, default={})]
        script = _Script()
        return [_with_files(options, path, script.files, defaults) for options in script.options(text)]
    except (ConfigError, RecursionError, MemoryError, SyntaxError, ValueError, OSError) as error:
        raise UserError(f"{path} can't be read: {error}; correct it, or give another file") from None


def _value(text: str) -> Any:
    """A value as YAML reads it; what is no YAML is text."""
    try:
        value = parse(text.strip())
        return text if isinstance(value, dict | list) and text.strip()[0] not in "{[" else value
    except ConfigError:
        return text


def _filled(text: str, values: Mapping[str, Any]) -> str:
    """A text with what its variables stand for, as far as that is known: ``${name}``, ``${name:-value}``."""

    def put(found: re.Match[str]) -> str:
        value, how, other = values.get(found[1] or found[4]), found[2] or "", found[3]
        if how.startswith("/"):
            known = value is not None and not set(other) & set("*?[")
            value = str(value).replace(*other.partition("/")[::2]) if known else None
        elif how and value in (None, ""):
            value = other.strip("'\" ")
        return found[0] if value is None or isinstance(value, list) or len(str(value)) > LONGEST else str(value)

    for _ in range(DEEPEST if "$" in text else 0):
        text = _VARIABLE.sub(put, text) if len(text) < LONGEST else text
    return text


def _tree(path: Path, text: str | None = None) -> dict[str, Any]:
    """A YAML file, or its text, above those beside it that its ``defaults`` name."""
    tree = parse(read_text(path) if text is None else text)
    if not isinstance(tree, dict):
        raise ConfigError("it holds no options by name")
    named = tree["defaults"] if isinstance(tree.get("defaults"), list) else []
    below = {str(one): _tree(path.parent / f"{one}.yaml") for one in named if (path.parent / f"{one}.yaml").is_file()}
    others = [name for name in named if str(name) not in below]
    return reduce(merge, [*below.values(), tree | ({"defaults": others} if below else {})])


def _of_yaml(path: Path, text: str | None = None) -> Options:
    """The leaves of a file; ``${other.option}``, ``${..sibling}`` and ``${oc.env:NAME,value}`` are replaced."""
    options = dict(flattened(_tree(path, text)))

    def filled(name: str, value: str) -> Any:
        value = re.sub(r"^\$\{oc\.decode:(.*)\}$", r"\1", value)
        above = name.split(".")
        value = re.sub(r"\$\{(\.+)", lambda dots: "${" + "".join(f"{one}." for one in above[: -len(dots[1])]), value)
        return _value(_filled(value, options))

    return options | {
        name: filled(name, value) for name, value in options.items() if isinstance(value, str) and "${" in value
    }


def _commands(text: str) -> Iterator[tuple[list[str], str]]:
    """The words of each command of a script, as they are written, and what ends it."""
    command: list[str] = []
    for token in _SYNTAX.finditer(f"{text}\n"):
        if token["of"]:
            yield ["case", token["of"], token["arms"]], ""
        elif token["word"]:
            command.append(token["word"])
        elif token["end"] in ("&&", "||") and command[:1] in (["if"], ["elif"]):
            command.append(token["end"])
        elif token["end"]:
            yield command, token["end"].strip()
            command = []


class _Script:
    """A shell script: assignments, and commands with their options. What its own variables decide is followed."""

    def __init__(self) -> None:
        self.files: Options = {}  # that it writes
        self._values: Options = {"HOME": "~", "PWD": ".", "@": []}
        self._undecided: dict[str, str] = {}  # tests of what it does not set: what is done

    def options(self, text: str) -> Iterator[Options]:
        """Options of each command: ``a.b=value`` and ``--name value``."""
        branches: list[bool | str | None] = []  # open ifs: taken, not yet, no more, or a test that can't be known
        skipped = False
        text = re.sub(r"\$\{(\w+):?\?[^{}]*\}", r"$\1", re.sub(r"(?m)^\s*#.*\n?", "", text))
        for command, end in _commands(_HEREDOC.sub(self._written, text)):
            while command and command[0] in _KEYWORDS:
                command = command[1:]
            word = command[0] if command else ""
            known = self._decided(command) if word in ("if", "elif", *_BRACKETS) else True
            if word == "if":
                branches.append(known)
            elif word in ("elif", "else") and branches:
                branches[-1] = known if branches[-1] is False else None
            elif word == "fi" and branches:
                branches.pop()
            command = command[1:] if word == "else" else [] if word in ("if", "elif", "fi") else command
            if not skipped and False not in branches and None not in branches:
                yield from self._done(command, [test for test in branches if isinstance(test, str)])
            skipped = word in _BRACKETS and end in ("&&", "||") and known is not (end == "&&")
            self._undecided |= {known: "what it would do is left out"} if skipped and isinstance(known, str) else {}

    def _done(self, command: list[str], undecided: list[str]) -> Iterator[Options]:
        """Assign, or give the options of a command."""
        pairs = [one.groups() for one in map(_ASSIGNED.fullmatch, command) if one]
        if command[:1] == ["case"]:
            yield from self.options(self._arm(*command[1:]))
        elif len(pairs) == len(command):
            self._undecided |= dict.fromkeys(undecided if command else [], "what it would do is taken")
            for name, more, raw in pairs:
                held = self._words(raw, several=True) if raw.startswith("(") else self._words(raw)[0]
                self._values[name] = self._values.get(name, type(held)()) + held if more else held
        else:
            words = [word for raw in command for word in self._words(raw, several=True)]
            inner = [word for before, word in pairwise(words) if before in ("-c", "eval") and " " in word]
            for text in inner:
                yield from self.options(text)
            options = {} if inner else _of_command(words)
            alone = [word for before, word in pairwise(words) if word.startswith("$") and not before.startswith("-")]
            self._undecided |= dict.fromkeys(alone if options else [], "what it would do is left out")
            yield options | ({"if": dict(self._undecided)} if options and self._undecided else {})

    def _words(self, raw: str, *, several: bool = False) -> list[str]:
        """The words that one becomes, as far as the script says what its variables are: one, or ``several``."""
        if several and raw.startswith("("):
            written = [token["word"] for token in _SYNTAX.finditer(raw[1:-1]) if token["word"]]
            return [word for one in written for word in self._words(one, several=True)]
        whole = re.fullmatch(r'"?\$\{?(\w+|@)(?:\[[@*]\])?\}?"?', raw)
        if several and whole and isinstance(held := self._values.get(whole[1]), list):
            return held
        words = [""]
        for literal, quoted, bare in _PIECE.findall(raw):
            text = literal or self._known(
                re.sub(r"\\(?:\n|(.))" if bare else r'\\(?:\n|([$`"\\]))', r"\1", quoted or bare)
            )
            first, *others = text.split() or [""] if several and "$" in bare and "$(" not in text else [text]
            words = [*words[:-1], words[-1] + first, *others]
        return words if any(words) or not several or raw[:1] in "'\"" else []

    def _known(self, text: str) -> str:
        """A text with its variables and sums, as far as they are known."""
        texts = {name: " ".join(held) if isinstance(held, list) else held for name, held in self._values.items()}

        def computed(found: re.Match[str]) -> str:
            try:
                formula = ast.parse(found[1].replace("/", "//"), mode="eval").body
                return str(evaluate(formula, lambda name: int(texts[name])))
            except (SyntaxError, ValueError, TypeError, LookupError, ArithmeticError):
                return found[0]

        filled = _filled(text, texts)
        if otherwise := re.search(r"\$\((.*)\|\|\s*echo ([\w.-]+)\)", filled):  # nothing is run, so nothing succeeds
            self._undecided[f"$({otherwise[1].strip()})"] = f"{otherwise[2]} is taken"
            filled = filled.replace(otherwise[0], otherwise[2])
        return _ARITHMETIC.sub(computed, filled)

    def _decided(self, command: list[str]) -> bool | str:
        """Whether a test is true; its text, if the script does not say."""
        for joint, joined in (("||", any), ("&&", all)):
            if joint in command:
                parts = [self._decided(list(part)) for same, part in groupby(command, joint.__eq__) if not same]
                return next((part for part in parts if isinstance(part, str)), joined(parts))
        command = [word for word in command if word not in ("if", "elif", *_BRACKETS)]
        plain = [self._words(re.sub(r"\$\{?[1-9@*]\}?", "", word).replace("$#", "0"))[0] for word in command]
        negated = plain[:1] == ["!"]
        try:
            match plain[negated:]:
                case ["-z" | "-n" as how, word] if "$" not in word:
                    return (not word) is ((how == "-z") is not negated)
                case [one, how, other] if how in _TESTS and "$" not in one + other:
                    return _TESTS[how](one, other) is not negated
        except ValueError:
            pass
        return f"if {' '.join(command)}"

    def _arm(self, of: str, arms: str) -> str:
        """What a `case` does."""
        (word,) = self._words(of)
        self._undecided |= {f"case {of}": "what it would do is left out"} if "$" in word else {}
        parts = [arm.strip().lstrip("(").partition(")") for arm in arms.split(";;") if "$" not in word]
        matches = (
            body for patterns, _, body in parts for one in patterns.split("|") if fnmatch(word, one.strip("'\" "))
        )
        return next(matches, "")

    def _written(self, found: re.Match[str]) -> str:
        """What a heredoc becomes: the value of a variable, or a file."""
        variable = re.search(r"\bread\b.*?(\w+)\s*$|(\w+)=\$\(\s*cat\s*$", found[1])
        if variable:
            quoted = found[4].replace('"', r"\"")
            return f'{variable[1] or variable[2]}="{quoted}"'
        if file := re.search(r">\s*(\S+)", found[1] + found[3]):
            self.files[file[1].strip("'\"")] = found[4]
        return ""


def _of_command(words: list[str]) -> Options:
    """The options of a command; those before what starts it are of others."""
    options: Options = {}
    flags: dict[str, list[Any]] = {}
    flag = program = ""
    for before, word in pairwise(["", *words]):
        if word.rpartition("/")[2] in _STARTERS and not program:
            options, flags, flag = {}, {}, ""
        elif not program and (word.endswith(".py") or before in ("-m", "--module", "trl")):
            flag = ""
            program = "" if word.startswith(("torch.", "accelerate.")) else word
        elif keyed := _OPTION.fullmatch(word):
            options[keyed[1].replace("-", "_")] = _value(keyed[2])
        elif re.fullmatch(r"~[a-z_][\w.]*", word):
            options[word[1:]] = None
        elif word.startswith("--") and word != "--module":
            flag = word[2:].replace("-", "_")
            flags[flag] = []
        elif flag and not re.match(r"--?[A-Za-z]", word):
            flags[flag].append(_value(word.rstrip(",")))
        else:
            flag = ""
    options |= {name: (given[0] if len(given) == 1 else given) if given else True for name, given in flags.items()}
    options = {
        f"{name}@" if any(one.startswith(f"{name}.") for one in options) else name: options[name] for name in options
    }
    named = Path(program).stem if program.endswith(".py") else program
    return options | ({"program": named} if named and options else {})


def _with_files(options: Options, script: Path, written: Mapping[str, str], defaults: Options) -> Options:
    """Options of a command with those of the YAML files, or FILE.py:NAME, that it names, which lie below them."""
    below: Options = {}
    for key in ("config_file", "config", "config_name"):
        file, _, function = str(options.get(key, "")).partition(".py:")
        name = f"{file}.py" if function else file
        name = name if name.endswith((*YAML, ".py")) else f"{options.get('config_path', '.')}/{name}.yaml"
        places = [folder / name for folder in (Path(), *script.absolute().parents)]
        place = next((one for one in places if name in written or one.is_file()), None)
        if key in options and place is not None:
            below |= _of_yaml(place, written[name]) if name in written else read(place, function or None, defaults)[0]
            options = {one: value for one, value in options.items() if one != key}
    return below | options


class _Module:
    """The assignments of a Python file and of its functions."""

    def __init__(self, tree: ast.Module, defaults: Options) -> None:
        self._functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
        self._tree, self._defaults, self._calls = tree, defaults, 0
        self._names: dict[str, Any] = {}
        for one in tree.body:  # and of `if __name__ == "__main__"` and main()
            main = isinstance(one, ast.If) or one in [self._functions.get("main")]
            self._follow(one.body if main and isinstance(one, ast.If | ast.FunctionDef) else [one], self._names)

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
                for key, value in [
                    *zip(("path", "name"), node.args, strict=False),
                    *((one.arg, one.value) for one in node.keywords),
                ]:
                    given.setdefault(f"{name}.{key}", self._value(value, self._names))
            if name.endswith("Trainer"):
                given.setdefault("program", name.removesuffix("Trainer").lower())
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
        if isinstance(node, ast.Call) and called.endswith(".from_pretrained") and node.args:
            return self._value(node.args[0], names)
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
