"""The commands: each is a function of a module here, whose signature and docstring are its command line.

They are read as text, since the modules import what takes seconds. ``name (-n, --flag WORD): help`` in a docstring says
how a parameter is written; ``Annotated[int, 1, 100]`` has the least and the most of a number.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import math
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from burnish.utils.errors import UserError
from burnish.utils.terminal import progress

EXIT_CODES = """\
exit codes:
  0    done
  1    failed, with a traceback; or doctor found a problem
  2    refused: a message says what is wrong with the command, the recipe or the files
  75   stopped by Ctrl-C, SIGTERM, SIGHUP or before the machine is reclaimed, with everything saved: run the same
       command again to resume
  130  interrupted by Ctrl-C; train needs a second one for this, and then says which updates were not saved
"""

_ARGUMENT = re.compile(r"^    (\w+)(?: \((.+?)\))?: (.*(?:\n {8}.*)*)", re.MULTILINE)


class Parser(argparse.ArgumentParser):
    """Raises ``UserError`` with a hint."""

    def error(self, message: str) -> NoReturn:
        dashed = re.match(r"unrecognized arguments: --([a-z][\w.-]*)(?:[= ](\S+))?", message)
        hint = ""
        if dashed and any(action.dest == "overrides" for action in self._actions):
            hint = f"; an option of the run is given without dashes, as {dashed[1]}={dashed[2] or 'VALUE'}"
        raise UserError(f"{message}{hint}; '{self.prog} --help' shows examples")


@dataclass(frozen=True)
class Verb:
    """A command."""

    place: str  # module:function
    says: str = ""  # before the module is imported, which may take a second

    @cached_property
    def _function(self) -> ast.FunctionDef:
        module, _, name = self.place.partition(":")
        tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
        return next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)

    @property
    def _docstring(self) -> tuple[str, str, str]:
        """Description, arguments and examples."""
        text = inspect.cleandoc(ast.get_docstring(self._function) or "")
        described, _, rest = text.partition("\n\nArgs:\n")
        described, _, examples = described.partition("\n\nExamples:\n")
        return described, rest.partition("\n\nReturns:")[0], examples

    @property
    def summary(self) -> str:
        """Its first line."""
        return self._docstring[0].split("\n")[0]

    @property
    def examples(self) -> str:
        """Command lines, with what they do."""
        lines = self._docstring[2].split("\n")
        return "\n".join(["examples:", *(line[2:] for line in lines), ""])

    def parser(self, name: str) -> Parser:
        """Reads its command line."""
        parser = Parser(
            prog=f"burnish {name}",
            description=self._docstring[0],
            epilog=f"{self.examples}\n{EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.arguments(parser)
        return parser

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add an argument for each parameter of the function."""
        helps = {
            name: (written, " ".join(help.split())) for name, written, help in _ARGUMENT.findall(self._docstring[1])
        }
        given = self._function.args
        required = [None] * (len(given.args) - len(given.defaults))
        defaults = [*required, *given.defaults, *given.kw_defaults]
        for parameter, default in zip([*given.args, *given.kwonlyargs], defaults, strict=True):
            written, help = helps[parameter.arg]
            value = ... if default is None else ast.literal_eval(default)
            kind, inside = _kind(parameter.annotation)
            names, options = _argument(parameter.arg, kind, inside, value, written, free=parameter in given.args)
            default_text = (
                f" ({value})" if isinstance(value, int | float | str) and not isinstance(value, bool) and value else ""
            )
            parser.add_argument(*names, help=(help + default_text).replace("%", "%%"), **options)

    def act(self, args: argparse.Namespace) -> int:
        """Call the function."""
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads slow those beside them
        module, _, name = self.place.partition(":")
        with progress(self.says.format(**vars(args))) if self.says else nullcontext():
            function = getattr(import_module(f"burnish.commands.{module}"), name)
        return int(function(**vars(args)))


def _kind(annotation: ast.expr | None) -> tuple[str, list[Any]]:
    """The name of a type without None, and what is between its brackets."""
    if isinstance(annotation, ast.BinOp):
        return _kind(annotation.left)
    if not isinstance(annotation, ast.Subscript):
        return ast.unparse(annotation or ast.Name("str")), []
    inside = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    values = [part.id if isinstance(part, ast.Name) else ast.literal_eval(part) for part in inside]
    return ast.unparse(annotation.value), values


def _argument(
    name: str, kind: str, inside: list[Any], default: Any, written: str, *, free: bool
) -> tuple[list[str], dict[str, Any]]:
    """Names and options of an argument; ``default`` is ... where the parameter has none."""
    flags = [word.rstrip(",") for word in written.split() if word.startswith("-")]
    words = [word for word in written.split() if not word.startswith("-")]
    options: dict[str, Any] = {} if default is ... else {"default": default}
    if kind == "Literal":
        options["choices"] = inside
    elif kind in ("Annotated", "int"):
        options["type"] = _number(*inside) if inside else int
    if kind != "bool" and (words or kind != "Literal"):
        options["metavar"] = (words[0] if len(words) == 1 else tuple(words)) if words else name.upper()
    if free:
        optional = "?" if default is not ... else None
        return [name], options | {"nargs": ("*" if optional else "+") if kind == "Sequence" else optional}
    if kind == "bool":
        options = {"action": "store_false" if default else "store_true"}
    elif kind == "Sequence":
        options |= {"action": "append", "default": []}
    elif kind == "tuple":
        options["nargs"] = "+" if inside[-1] is ... else len(inside)
    long = [] if any(flag.startswith("--") for flag in flags) else [f"--{name.replace('_', '-')}"]
    return [*flags, *long], options | {"dest": name} | ({"required": True} if default is ... else {})


def _number(name: str, least: float = -math.inf, most: float = math.inf) -> Callable[[str], Any]:
    """Reads a number in a range."""
    kind, what = (int, "a whole number") if name == "int" else (float, "a number")
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
    "train": Verb("launch:train"),
    "eval": Verb("evaluate:evaluate", "Reading what to evaluate"),
    "sample": Verb("sample:sample", "Reading {source}"),
    "export": Verb("export:export", "Reading {run}"),
    "push": Verb("push:push", "Reading {run}"),
    "report": Verb("show:report", "Reading {run}"),
    "runs": Verb("show:runs", "Reading {folder}"),
    "compare": Verb("show:compare", "Reading the runs"),
    "board": Verb("serve:board"),
    "recipes": Verb("show:recipes", "Reading the recipes"),
    "config": Verb("show:config", "Reading {recipe}"),
    "plan": Verb("launch:plan"),
    "data": Verb("data:data", "Reading the list of data sets"),
    "pairs": Verb("pairs:pairs", "Reading {run}"),
    "tiny": Verb("tiny:tiny", "Reading the list of models"),
    "serve-reward": Verb("serve:serve_reward", "Loading the rewards"),
    "check-reward": Verb("check_reward:check_reward", "Loading {name}"),
    "completion": Verb("completion:completion"),
    "doctor": Verb("doctor:doctor"),
}
