"""How much the tests protect: faults are put into the package one at a time, and the tests that cover them run.

    python tools/mutants.py record build/mutants            # once: which test runs which line (the whole suite, slower)
    python tools/mutants.py run build/mutants --count 300   # draws mutants by --seed, tries them, prints what survived
    python tools/mutants.py run build/mutants --only burnish/rl

A mutant is one changed statement: a comparison turned round, a sign, a constant, a condition, a call or a guard that is
gone. Statements are drawn at random over the whole package, in functions and methods. A mutant is killed when a test
fails that covers its line; the shortest of them run, for at most --seconds. What no test covers survives. Results are
kept in FOLDER/results.jsonl; those of the same seed, tests and code are not tried again.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "burnish"
SITE = "sitecustomize.py"
VARIABLE = "BURNISH_MUTANT"  # file of the changed module, for processes that tests start
RECORDER = """\
import coverage, pytest, json, os

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    if (measuring := coverage.Coverage.current()) is not None:
        measuring.switch_context(item.nodeid)
    yield

def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ["DURATIONS"], "a") as file:
            file.write(json.dumps([report.nodeid, report.duration, report.outcome]) + "\\n")
"""
HOOK = f"""\
import json, os
from importlib.machinery import SourceFileLoader

if (named := os.environ.get("{VARIABLE}")):
    with open(named) as file:
        changed = json.load(file)
    original = SourceFileLoader.get_code

    def get_code(self, fullname):
        if os.path.realpath(self.path) == changed["path"]:
            return compile(changed["source"], self.path, "exec", dont_inherit=True)
        return original(self, fullname)

    SourceFileLoader.get_code = get_code
"""
COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
BODIES = ("body", "orelse", "finalbody", "handlers", "cases")  # of a statement, which are statements of their own


@dataclass(frozen=True)
class Mutant:
    """A fault: which statement, and what became of it."""

    file: str  # from the root
    line: int
    change: str  # for people
    source: str  # of the module with it


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")
    recording = verbs.add_parser("record", help="run the suite and keep who covers what")
    running = verbs.add_parser("run", help="try mutants")
    for one, function in ((recording, record), (running, run)):
        one.add_argument("folder", type=Path)
        one.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
        one.set_defaults(do=function)
    recording.add_argument("tests", nargs="*", default=["tests"], help="what to run (default: all)")
    running.add_argument("--count", type=int, default=300, help="mutants (default: %(default)s)")
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--seconds", type=float, default=120, help="of tests for a mutant (default: %(default)s)")
    running.add_argument("--only", default="burnish", help="a part of the package")
    arguments = parser.parse_args()
    done: int = arguments.do(arguments)
    return done


def record(arguments: argparse.Namespace) -> int:
    """Run the suite under coverage, with a context for each test."""
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(".coverage*"):
        old.unlink()
    (folder / "durations.jsonl").unlink(missing_ok=True)
    (folder / "record_contexts.py").write_text(RECORDER)
    settings = folder / "coverage.ini"
    # a process that a test starts has the test's name from its environment
    settings.write_text(
        f"[run]\nsource = {PACKAGE}\ndata_file = {folder}/.coverage\nparallel = true\npatch = subprocess\n"
        "context = ${PYTEST_CURRENT_TEST-}\nsigterm = true\n"
    )
    environment = os.environ | {
        "PYTHONPATH": f"{folder}:{ROOT}", "COVERAGE_PROCESS_START": str(settings), "OMP_NUM_THREADS": "1",
        "DURATIONS": str(folder / "durations.jsonl"), "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    coverage = [sys.executable, "-m", "coverage"]
    tests = ["-p", "record_contexts", "-n", str(arguments.jobs), "--dist", "loadfile", *arguments.tests]
    command = [*coverage, "run", f"--rcfile={settings}", "-m", "pytest", *tests]
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    combine = [*coverage, "combine", f"--rcfile={settings}", "--keep", str(folder)]
    subprocess.run(combine, cwd=ROOT, env=os.environ | {"PYTEST_CURRENT_TEST": ""}, check=True)
    return status


def run(arguments: argparse.Namespace) -> int:
    """Draw mutants, try them, and print the killed share by folder and the survivors."""
    folder = arguments.folder.resolve()
    covering = Covering(folder)
    (folder / SITE).write_text(HOOK)
    results = folder / "results.jsonl"
    known = {}
    if results.is_file():
        known = {(one["file"], one["line"], one["change"]): one for one in map(json.loads, results.open())}
    mutants = list(draw(arguments.count, arguments.seed, arguments.only))
    waiting = [one for one in mutants if (one.file, one.line, one.change) not in known]
    children: dict[int, tuple[Mutant, Path, float]] = {}
    with results.open("a") as file:
        while waiting or children:
            while waiting and len(children) < arguments.jobs:
                mutant = waiting.pop()
                output = folder / f"mutant_{len(waiting)}.txt"
                children[_start(mutant, covering.of(mutant, arguments.seconds), arguments.seconds, output)] = (
                    mutant, output, time.monotonic(),
                )  # fmt: skip
            pid, status = os.wait()
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what its tests left running
            mutant, output, begun = children.pop(pid)
            outcome = _outcome(os.waitstatus_to_exitcode(status), output)
            row = {key: value for key, value in asdict(mutant).items() if key != "source"} | {
                "outcome": outcome, "seconds": round(time.monotonic() - begun, 1),
            }  # fmt: skip
            known[mutant.file, mutant.line, mutant.change] = row
            print(json.dumps(row), file=file, flush=True)
            print(f"{len(mutants) - len(waiting) - len(children)}/{len(mutants)} {outcome:9} {_shown(row)}", flush=True)
    _table([known[one.file, one.line, one.change] for one in mutants])
    return 0


class Covering:
    """Which tests run a line, and how long they take."""

    def __init__(self, folder: Path) -> None:
        (found,) = folder.glob(".coverage")
        self._data = sqlite3.connect(found)
        self.seconds: Counter[str] = Counter()
        for line in (folder / "durations.jsonl").open():
            name, seconds, outcome = json.loads(line)
            self.seconds[name] += seconds if outcome == "passed" else 0

    def of(self, mutant: Mutant, seconds: float) -> list[str]:
        """Tests that run its line, the shortest, for about as long, one at least; those of a file together."""
        from coverage.numbits import numbits_to_nums

        rows = self._data.execute(
            "select context.context, line_bits.numbits from line_bits join file on file.id = file_id "
            "join context on context.id = context_id where file.path like ?", (f"%/{mutant.file}",),
        )  # fmt: skip
        names = {name.rsplit(" (")[0] for name, bits in rows if name and mutant.line in numbits_to_nums(bits)}
        ordered = sorted((name for name in names if self.seconds[name] > 0), key=lambda name: self.seconds[name])
        taken: list[str] = []
        total = 0.0
        for name in ordered:
            total += self.seconds[name]
            if taken and total > seconds:
                break
            taken.append(name)
        files = list(dict.fromkeys(name.partition("::")[0] for name in taken))
        return sorted(taken, key=lambda name: files.index(name.partition("::")[0]))


def draw(count: int, seed: int, only: str) -> Iterator[Mutant]:
    """Mutants of statements drawn evenly over the package."""
    chosen = random.Random(seed)
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    places = [
        (path, index)
        for path, tree in trees.items()
        for index, _ in enumerate(_statements(tree))
        if str(path.relative_to(ROOT)).startswith(only)
    ]
    chosen.shuffle(places)
    made = 0
    for path, index in places:
        if made == count:
            return
        tree = copy.deepcopy(trees[path])
        parent, field, at = list(_statements(tree))[index]
        statement = getattr(parent, field)[at]
        changes = list(_changes(statement))
        if not changes:
            continue
        before = ast.unparse(_head(statement))
        replaced = chosen.choice(changes)()
        if replaced is not statement:
            getattr(parent, field)[at] = ast.copy_location(replaced, statement)
        if (after := ast.unparse(_head(getattr(parent, field)[at]))) == before:
            continue
        source = ast.unparse(ast.fix_missing_locations(tree))
        yield Mutant(str(path.relative_to(ROOT)), statement.lineno, f"{before}  ->  {after}", source)
        made += 1


def _statements(tree: ast.Module) -> Iterator[tuple[ast.AST, str, int]]:
    """Statements of functions and methods, as the list that they stand in; documentation is none."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for parent in ast.walk(function):
                for field in ("body", "orelse", "finalbody"):
                    held = getattr(parent, field, None)
                    for at, statement in enumerate(held if isinstance(held, list) else []):
                        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                        if not text and not isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.Pass):
                            yield parent, field, at


def _changes(statement: ast.stmt) -> Iterator[Callable[[], ast.stmt]]:
    """What can be done to a statement, not to those inside of it."""

    def within(node: ast.AST, field: str, value: Any) -> Callable[[], ast.stmt]:
        def apply() -> ast.stmt:
            setattr(node, field, value)
            return statement

        return apply

    if isinstance(statement, ast.Raise) or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        yield ast.Pass
    if isinstance(statement, ast.Return) and statement.value is not None:
        yield lambda: ast.Return(ast.Constant(None))
    if isinstance(statement, ast.If | ast.While):
        yield within(statement, "test", ast.UnaryOp(ast.Not(), statement.test))
    for node in _expressions(statement):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
            yield within(node, "ops", [COMPARED[type(node.ops[0])](), *node.ops[1:]])
        elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in COMPUTED:
            yield within(node, "op", COMPUTED[type(node.op)]())
        elif isinstance(node, ast.BoolOp):
            yield within(node, "op", ast.And() if isinstance(node.op, ast.Or) else ast.Or())
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            yield within(node, "value", not node.value if isinstance(node.value, bool) else node.value + 1)


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement's own expressions, without annotations and texts that are put together."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        for name, value in ast.iter_fields(node):
            if name in (*BODIES, "annotation", "returns") or isinstance(node, ast.JoinedStr):
                continue
            waiting += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, ast.AST)]


def _head(statement: ast.stmt) -> ast.stmt:
    """Without the statements inside of it."""
    head = copy.copy(statement)
    for name in BODIES:
        if getattr(head, name, None):
            setattr(head, name, [ast.Pass()] if name == "body" else [])
    return head


def _start(mutant: Mutant, tests: list[str], seconds: float, output: Path) -> int:
    """A process, forked where torch is loaded, that runs tests on the package with a fault."""
    import pytest
    import torch  # noqa: F401
    import transformers  # noqa: F401

    if (pid := os.fork()) > 0:
        return pid
    os.setsid()  # what tests start ends with it
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    code = 5  # pytest's, where nothing was to be run
    try:
        changed = output.with_suffix(".json")
        changed.write_text(json.dumps({"path": str(ROOT / mutant.file), "source": mutant.source}))
        os.environ |= {VARIABLE: str(changed), "PYTHONPATH": f"{output.parent}:{ROOT}", "HF_HUB_OFFLINE": "1"}
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.chdir(ROOT)
        sys.path[:0] = [str(ROOT)]
        sys.argv = ["pytest"]
        exec(compile(HOOK, SITE, "exec"), {})
        signal.alarm(int(60 + 4 * seconds))  # a loop without end is a fault that is seen, too
        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])) if tests else code
    except BaseException:
        code = 1
    finally:
        os._exit(code)


def _outcome(code: int, output: Path) -> str:
    """What became of a mutant by the status of its tests."""
    output.with_suffix(".json").unlink(missing_ok=True)
    if code == 0:
        return "survived"
    return "uncovered" if code == 5 else "killed"


def _shown(row: dict[str, object]) -> str:
    return f"{row['file']}:{row['line']}  {' '.join(str(row['change']).split()):.160}"


def _table(rows: list[dict[str, object]]) -> None:
    folders: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        parts = str(row["file"]).split("/")
        for name in ("all", parts[1] if len(parts) > 2 else "(files)"):
            folders[name][str(row["outcome"])] += 1
    print("\n| folder | mutants | killed | survived | uncovered |\n| --- | --- | --- | --- | --- |")
    for name, found in sorted(folders.items(), key=lambda one: -sum(one[1].values())):
        total = sum(found.values())
        print(f"| {name} | {total} | {found['killed'] / total:.0%} | {found['survived']} | {found['uncovered']} |")
    print("\nNot killed:")
    for row in sorted(rows, key=lambda row: str(row["file"])):
        if row["outcome"] != "killed":
            print(f"  {row['outcome']:9} {_shown(row)}")


if __name__ == "__main__":
    sys.exit(main())
