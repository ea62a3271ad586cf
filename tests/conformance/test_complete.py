"""No reference case is forgotten: each is tested somewhere, or ``README.md`` says why not."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
FILES = ["correction", "credit", "ema", "flow", "losses", "metrics", "rewards"]
COUNT = 148  # of verl-omni 104, of the other diffusion projects 44
READERS = {"case", "cases", "every"}


def ids(file: str) -> set[str]:
    return {c["id"] for c in json.loads((HERE / f"{file}.json").read_text())}


KNOWN = {(file, name) for file in FILES for name in ids(file)}


def first_column(table: str) -> set[str]:
    """Ids that the rows of a table start with."""
    return set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE))


def listed() -> set[str]:
    """Those in the README's first table."""
    return first_column((HERE / "README.md").read_text().split("## Not tested")[1].split("\n## ")[0])


def strings(node: ast.AST) -> list[str]:
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def read(source: str) -> Iterator[tuple[str, str]]:
    """(file, prefix or id) that a test module reads cases by."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in READERS and node.args:
            file, *names = node.args
            if isinstance(file, ast.Constant):
                yield from ((file.value, name) for part in names for name in strings(part))
    # ids in a list that tests go through by name
    identical = {identity for _, identity in KNOWN}
    yield from ((file, text) for text in strings(tree) if text in identical for file in FILES)


def asked_for() -> set[str]:
    sources = [path.read_text() for path in HERE.parent.rglob("test_*.py") if path != Path(__file__)]
    asked = {pair for source in sources if "tests.conformance" in source for pair in read(source)}
    return {name for file, name in KNOWN if any(file == f and name.startswith(prefix) for f, prefix in asked)}


def test_every_case_is_tested_or_explained():
    names = {name for _, name in KNOWN}
    assert len(names) == COUNT
    forgotten = names - asked_for() - listed()
    assert not forgotten, f"neither tested nor in tests/conformance/README.md: {sorted(forgotten)}"
    assert listed() <= names
    assert not listed() & asked_for()


def test_every_case_of_lightrft_is_tested_or_explained():
    known, explained = ids("lightrft"), first_column((HERE / "lightrft.md").read_text())
    calls = [
        node
        for file in HERE.glob("test_lightrft*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "every"
    ]
    tested = {name for name in known if name.startswith(tuple(text for call in calls for text in strings(call)))}
    assert not explained - known
    assert not explained & tested
    assert not known - tested - explained


def test_reading_is_recognised():
    assert set(read('case("flow", "cfg/wan")')) >= {("flow", "cfg/wan")}
    assert {pair for pair in read('@every("flow", "cfg/", f"schedule/{x}")\ndef f(): ...') if pair[0] == "flow"} == {
        ("flow", "cfg/"), ("flow", "schedule/")
    }  # fmt: skip
    assert not list(read("cases(file, name)"))
