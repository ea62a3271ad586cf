"""The commands: each is a function of a module here, whose signature and docstring are its command line.

They are read as text, since the modules import what takes seconds. ``name (-n, --flag WORD): help`` in a docstring says
how a parameter is written; ``Annotated[int, 1, 100]`` has the least and the most of a number.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import math
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

from burnish.utils.errors import UserError
from burnish.utils.terminal import progress

WIDTH = 78  # of help, for a terminal of 80 columns
KINDS: dict[str, Any] = {
    "Annotated": Annotated, "Literal": Literal, "Sequence": Sequence, "bool": bool, "float": float, "int": int,
    "str": str, "tuple": tuple,
}  # fmt: skip
POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_ARGUMENT = re.compile(r"^    (\w+)(?: \((.+?)\))?: (.*(?:\n {8}.*)*)", re.MULTILINE)


class Parser(argparse.ArgumentParser):
    """Raises ``UserError`` with a hint."""

    def error(self, message: str) -> NoReturn:
        dashed = re.match(r"unrecognized arguments: --([a-z][\w.-]*)(?:[= ](\S+))?", message)
        near = difflib.get_close_matches(f"--{dashed[1]}", self._option_string_actions, 1, 0.8) if dashed else []
        hint = f"; did you mean {near[0]}?" if near else ""
        if dashed and not near and any(action.dest == "overrides" for action in self._actions):
            hint = f"; an option of the run is given without dashes, as {dashed[1]}={dashed[2] or 'VALUE'}"
        raise UserError(f"{message}{hint}; '{self.prog} --help' shows examples")


@dataclass(frozen=True)
class Verb:
    """A command."""

    place: str  # module:function
    says: str = ""  # before the module is imported, which may take a second

    @cached_property
    def _signature(self) -> tuple[inspect.Signature, str]:
        """Parameters of the function with their types, and its docstring."""
        module, _, name = self.place.partition(":")
        tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
        function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
        given = function.args
        defaults = [*[None] * (len(given.args) - len(given.defaults)), *given.defaults, *given.kw_defaults]
        parameters = [
            inspect.Parameter(
                one.arg, inspect.Parameter.KEYWORD_ONLY if one in given.kwonlyargs else POSITIONAL,
                default=inspect.Parameter.empty if default is None else ast.literal_eval(default),
                annotation=_type(one.annotation),
            )
            for one, default in zip([*given.args, *given.kwonlyargs], defaults, strict=True)
        ]  # fmt: skip
        return inspect.Signature(parameters), ast.get_docstring(function) or ""

    def section(self, title: str) -> str:
        """A part of the docstring; "" is the description."""
        parts = re.split(r"\n\n(Args|Examples|Returns):\n", self._signature[1])
        return dict(zip(["", *parts[1::2]], parts[::2], strict=True)).get(title, "")

    def parser(self, name: str) -> Parser:
        """Reads its command line: an argument for each parameter of the function."""
        parser = Parser(
            prog=f"burnish {name}",
            description="\n\n".join(textwrap.fill(text, WIDTH) for text in self.section("").split("\n\n")),
            epilog=f"examples:\n{_examples(textwrap.dedent(self.section('Examples')))}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        helps = {
            name: (written, " ".join(help.split())) for name, written, help in _ARGUMENT.findall(self.section("Args"))
        }
        for parameter in self._signature[0].parameters.values():
            written, help = helps[parameter.name]
            names, options = _argument(parameter, written)
            default = options.get("default")
            shown = f" ({default})" if default and isinstance(default, int | float | str) else ""
            parser.add_argument(*names, help=(help + shown).replace("%", "%%"), **options)
        return parser

    def act(self, args: argparse.Namespace) -> int:
        """Call the function."""
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads slow those beside them
        for library in ("TRANSFORMERS", "DIFFUSERS"):  # they warn of classes that want torchvision, and of long prompts
            os.environ.setdefault(f"{library}_VERBOSITY", "error")
        module, _, name = self.place.partition(":")
        with progress(self.says.format(**vars(args))) if self.says else nullcontext():
            function = getattr(import_module(f"burnish.commands.{module}"), name)
        return int(function(**vars(args)))


def _examples(text: str) -> str:
    """Commands with what is said of them, which has a line of its own if one is too wide."""
    lines = [f"  {line}" for line in text.splitlines()]
    if max(map(len, lines)) > WIDTH:
        lines = [re.sub(r"(?<=\S) {2,}", "\n      ", line) for line in lines]
    return "\n".join(lines)


def _type(node: Any) -> Any:
    """An annotation, of which nothing is run."""
    if isinstance(node, ast.BinOp):
        return _type(node.left) | _type(node.right)
    if isinstance(node, ast.Subscript):
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return KINDS[ast.unparse(node.value)][tuple(map(_type, inside))]
    return KINDS[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)


def _argument(parameter: inspect.Parameter, written: str) -> tuple[list[str], dict[str, Any]]:
    """Names and options of an argument."""
    kind, default, name = parameter.annotation, parameter.default, parameter.name
    kind = get_args(kind)[0] if type(None) in get_args(kind) else kind
    origin, required = get_origin(kind) or kind, default is parameter.empty
    flags = [word.rstrip(",") for word in written.split() if word.startswith("-")]
    words = tuple(word for word in written.split() if not word.startswith("-"))
    options: dict[str, Any] = {} if required else {"default": default}
    if origin is bool:
        options = {"action": "store_false" if default else "store_true"}
    elif words or origin is not Literal:
        options["metavar"] = (words[0] if len(words) == 1 else words) or name.upper()
    if origin is Literal:
        options["choices"] = get_args(kind)
    elif origin is Annotated:
        options["type"] = _number(kind.__origin__, *kind.__metadata__)
    if parameter.kind is not parameter.KEYWORD_ONLY:
        several = "+" if required else "*"
        return [name], options | {"nargs": several if origin is Sequence else None if required else "?"}
    if origin is Sequence:
        options |= {"action": "append", "default": []}
    elif origin is tuple:
        options["nargs"] = len(get_args(kind))
    long = [] if any(flag.startswith("--") for flag in flags) else [f"--{name.replace('_', '-')}"]
    return [*flags, *long], options | {"dest": name} | ({"required": True} if required else {})


def _number(kind: type[float], least: float, most: float = math.inf) -> Callable[[str], Any]:
    """Reads a number in a range."""
    what = "a whole number" if kind is int else "a number"
    bounds = [f">= {least:,}".replace(",", "")] if math.isfinite(least) else []
    bounds += [f"<= {most:,}".replace(",", "")] if math.isfinite(most) else []

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (least <= value <= most and math.isfinite(value)):
            raise argparse.ArgumentTypeError(f"it is {text!r:.80}, but must be {what} {' and '.join(bounds)}".rstrip())
        return value

    return read


VERBS = {
    "init": Verb("init:init", "Reading the recipes"),
    "train": Verb("launch:train"),
    "eval": Verb("evaluate:evaluate", "Reading what to evaluate"),
    "sample": Verb("sample:sample", "Reading {source}"),
    "export": Verb("export:export", "Reading {run}"),
    "push": Verb("push:push", "Reading {run}"),
    "report": Verb("show:report", "Reading {run}"),
    "runs": Verb("show:runs", "Reading {folder}"),
    "compare": Verb("show:compare", "Reading the runs"),
    "reproduce": Verb("reproduce:reproduce", "Reading {run}"),
    "board": Verb("board:board", "Reading {folder}"),
    "recipes": Verb("show:recipes", "Reading the recipes"),
    "config": Verb("show:config", "Reading {recipe}"),
    "plan": Verb("plan:plan", "Reading {recipe}"),
    "convert": Verb("convert:convert", "Reading {file}"),
    "data": Verb("data:data", "Reading the data"),
    "pairs": Verb("pairs:pairs", "Reading {run}"),
    "tiny": Verb("tiny:tiny", "Reading the list of models"),
    "serve-reward": Verb("serve:serve_reward", "Loading the rewards"),
    "check-reward": Verb("check_reward:check_reward", "Loading {name}"),
    "completion": Verb("completion:completion"),
    "doctor": Verb("doctor:doctor"),
}
