"""Commands and names in the text of documents, docstrings, comments and helps are those of today."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest

from burnish.cli import VERBS
from burnish.config.complaints import every_option
from burnish.config.load import context_of
from burnish.config.yaml_text import parse
from burnish.registry import ENTRY_POINTS, KINDS, names
from tests.support.command_lines import accept_line, accept_name
from tests.support.shown import BESIDE, ROOT, blocks, own_recipe, spans

DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*BESIDE, *DOCS]
PROGRAM = re.compile(r"(?:[A-Z_]+=\S+ )*(burnish|make|pip|python|kubectl|sbatch) (?=\S)")
PLACES = {  # what stands for the reader's own, and what it may be
    " RECIPE": " quickstart", " RUN": " runs/a", "rewards.NAME.": "rewards.brightness.", " algorithm=NAME": "",
    "…": "x",
}  # fmt: skip
CUT = re.compile(r"<TAB>|\.\.\.|\{|-m$|ARGUMENTS")  # commands that are not shown to their end
LACKS = re.compile(r"are required|expected one argument|NAME")
CONTEXTS = (
    *(("quickstart", f"algorithm={name}") for name in names("flow algorithm")),
    *(("vlm_quickstart", f"algorithm={name}") for name in names("language algorithm")),
    ("vlm_quickstart", "environment.name=tools"),
    ("quickstart", "rewards.function.weight=1", "rewards.pickscore.weight=1"),
)  # fmt: skip
LINE = re.compile(r"(?:[a-z_]+\.)*([a-z_]+): ([\w.-]+|[\[{].*[\]}])")  # of a recipe or a suite
# recipes' own keys; of records; of files of diffusers; of requests
NO_OPTIONS = ("extends", "plugins", "role", "changed", "tie", "final_sigmas_type", "_auto_resize", "max_tokens",
              "top_logprobs")  # fmt: skip
FORMS = ("old_linear: [delay, start, slope, end]", "steps: [[end, value], ...]")  # names in the places of values
FILES = re.compile(r"\.(jsonl|py|yaml|pth|layers)$")


def shown() -> Iterator[tuple[str, str]]:
    """Commands that stand in text, with where."""
    texts = {page: page.read_text() for page in PAGES}
    notebook = ROOT / "examples" / "quickstart.ipynb"
    texts[notebook] = "\n".join("".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"])
    for folder in ("burnish", "tools", "benchmarks", "examples"):
        for file in (ROOT / folder).rglob("*.py"):
            texts[file] = re.sub(r"``([^`\n]+)``", r"`\1`", file.read_text())
    for page, text in texts.items():
        yield from ((page.relative_to(ROOT).as_posix(), one) for one in spans(text) if PROGRAM.match(one))
    for folder in ("burnish/recipes", "examples"):
        for file in (ROOT / folder).rglob("*.yaml"):
            for line in re.findall(r"^ *#.*?(?:# +|: )((?:burnish|python) .*)$", file.read_text(), re.M):
                yield file.relative_to(ROOT).as_posix(), line
    for name, verb in VERBS.items():
        lines = re.findall(r"^ +(burnish .*?)(?:  .*)?$", verb.examples, re.M)
        yield from ((f"burnish {name} --help", line) for line in lines)


SHOWN = sorted({(line, where) for where, line in shown()})


@pytest.mark.parametrize(("line", "where"), SHOWN, ids=[f"{where}: {line}" for line, where in SHOWN])
def test_a_command_in_text_is_accepted(line, where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own_recipe(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for page in DOCS:
        for block in blocks(page) if page.name in ("rewards.md", Path(where).name) else ():
            if block.title:
                (tmp_path / block.title).write_text(block.text)
    for place, own in PLACES.items():
        line = line.replace(place, own)
    if CUT.search(line) or line == "burnish --version":
        return
    try:
        accept_line(line)
    except ValueError as error:
        if not LACKS.search(str(error)):
            raise
        accept_name(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_names_of_python_are_there(page):
    for name in spans(page.read_text()):
        if re.match(r"(burnish|benchmarks|tests|tools)\.[a-z]", name) and name != ENTRY_POINTS:
            assert exists(name.partition("(")[0].replace(":", ".")), f"{page.name} names {name}"


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or what is in one."""
    module, _, rest = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ImportError:
        return bool(module) and exists(module) and hasattr(importlib.import_module(module), rest)
    return True


@cache
def known() -> frozenset[str]:
    """Every option of some recipes; of every reward and pool as of NAME, too."""
    options = {one for context in CONTEXTS for one in every_option(context_of(context[0], context[1:]))}
    return frozenset(options | {re.sub(r"^(rewards|pools)\.\w+\.", r"\1.NAME.", one) for one in options})


# of other trainers, in coming_from.md; and what readers name themselves
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "coming_from.md"], ids=lambda page: page.stem)
def test_options_that_are_named_are_there(page):
    sections = {one[: dot.start()] for one in known() for dot in re.finditer(r"\.", one)}
    for name in spans(page.read_text()):
        name = name.replace(".LABEL.", ".NAME.")
        if re.fullmatch(r"[a-z_]+(\.\w+)+", name) and name.partition(".")[0] in sections and not FILES.search(name):
            within = name.rpartition(".")[0]  # of an option that is a table
            assert name in known() | sections or within in known() - sections, f"{page.name} names {name}"


@cache
def sections() -> list[type]:
    """Every class of options."""
    for kind in KINDS:
        names(kind)
    importlib.import_module("burnish.evaluation.suite")
    modules = [module for name, module in sys.modules.items() if name.startswith("burnish.")]
    found = {id(one): one for module in modules for one in vars(module).values() if isinstance(one, type)}
    return [one for one in found.values() if "__pydantic_fields__" in vars(one)]


def taken(name: str, value: Any) -> bool:
    """Whether some class of options has this one, with this value."""
    for section in sections():
        field = section.__pydantic_fields__.get(name)
        with suppress(pydantic.ValidationError):
            if field is not None:
                pydantic.TypeAdapter(Annotated[field.annotation, field]).validate_json(json.dumps(value), strict=True)
                return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_line_of_a_recipe_in_text_is_taken(page):
    lines = [line for span in spans(page.read_text()) if span not in FORMS and (line := LINE.fullmatch(span))]
    others = {*NO_OPTIONS, *names("flow reward"), *names("language reward")}
    wrong = [line[0] for line in lines if line[1] not in others and not taken(line[1], parse(line[2]))]
    assert wrong == []


@pytest.mark.parametrize("line", ["opponents: many", "oponents: 4", "heads: {truth: one}"])
def test_a_line_that_nothing_takes_is_found(line):
    _, name, value = LINE.fullmatch(line).group(0, 1, 2)
    assert not taken(name, parse(value))
