"""Ray is an extra: without it the other tests run, and those that need it are skipped before they are imported."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.optional import NEED_RAY

HERE = Path(__file__).parent
HIDDEN = HERE / "support" / "without_ray"


@cache
def imported(file: Path) -> list[str]:
    """Modules that are imported with a file, from its top level."""
    return list(_imported(file))


def _imported(file: Path) -> Iterator[str]:
    todo: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while todo:
        for node in ast.iter_child_nodes(todo.pop()):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield from (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                todo.append(node)


def needs_ray(file: Path, seen: set[Path]) -> bool:
    """Whether Ray has to be there for a file to be imported, or for what it imports of tests."""
    if file in seen:
        return False
    seen.add(file)
    for name in imported(file):
        if name.partition(".")[0] == "ray" or f"{name}.".startswith("burnish.runtime."):
            return True
        below = HERE.parent / Path(*name.split("."))
        for other in (below.with_suffix(".py"), below / "__init__.py"):
            if name.startswith("tests") and other.is_file() and needs_ray(other, seen):
                return True
    return False


def test_what_needs_ray_is_known_before_it_is_imported():
    for file in sorted(HERE.rglob("*.py")):
        collected = file.name.startswith("test_") or file.name == "conftest.py"
        if collected and not file.relative_to(HERE).as_posix().startswith(NEED_RAY):
            assert not needs_ray(file, set()), f"{file} imports Ray, or burnish.runtime, which does"


def pytest_without_ray(*arguments: str) -> str:
    path = os.pathsep.join([str(HIDDEN), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rs", *arguments],
        cwd=HERE.parent, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode in (0, 5), done.stdout + done.stderr  # 5: all are skipped
    return done.stdout


def test_modules_that_need_ray_are_skipped_with_the_way_out():
    said = pytest_without_ray(
        str(HERE / "runtime" / "test_weight_stream.py"), str(HERE / "runtime" / "test_cluster.py")
    )
    assert "SKIPPED [2] tests/conftest.py" in said
    assert "needs Ray: pip install 'burnish[ray]'" in said
    assert "2 skipped" in said


@pytest.mark.thorough
def test_everything_else_is_collected():
    said = pytest_without_ray("--collect-only", str(HERE))
    assert "error" not in said.splitlines()[-1]
