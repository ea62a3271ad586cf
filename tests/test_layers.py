"""Imports point down, as the design says, so that a file can be understood without what is built on it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "burnish"

# the bottom first; a name imports from itself and from the lines above it, never from its neighbours: so no
# algorithm knows a model, and no model an algorithm
LAYERS = [
    ["utils", "recipes"],
    ["registry"],
    ["options"],
    ["types"],
    ["flow", "language", "losses"],
    ["advantages"],
    ["batches"],
    ["metrics"],
    ["measured"],
    ["algorithms", "models"],
    ["rewards"],  # of which some are models
    ["environments"],
    ["service"],  # of rewards
    ["data"],
    ["rollout", "training"],
    ["checkpoint"],
    ["config"],
    ["evaluation"],
    ["tasks", "loop"],
    ["controller"],
    ["runtime"],
    ["forecast"],
    ["alarms"],
    ["report"],
    ["trackers"],
    ["hooks", "board"],
    ["commands"],
    ["cli", "api"],
    ["__main__"],
]
LAYER = {name: level for level, names in enumerate(LAYERS) for name in names}

HEAVY = ["torch", "diffusers", "transformers", "peft", "ray", "vllm", "onnxruntime", "matplotlib"]


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def unit(parts: tuple[str, ...]) -> str | None:
    """The name directly below ``burnish`` that a dotted name belongs to; None for the package itself."""
    if len(parts) < 2 or parts[1] == "__version__":
        return None
    return parts[1]


def imports(source: str, module: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Every import of burnish, wherever it stands: at the top, in a function, for types only, by name."""
    for node in ast.walk(ast.parse(source)):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(module[: len(module) - node.level]) if node.level else []
            base += node.module.split(".") if node.module else []
            found = [".".join([*base, alias.name]) for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func)
            if called.endswith(("import_module", "__import__")) and isinstance(node.args[0].value, str):
                found = [node.args[0].value]
        for name in found:
            parts = tuple(name.split("."))
            if parts[0] == "burnish":
                yield node.lineno, parts


def violations(source: str, module: tuple[str, ...]) -> list[str]:
    """What a module imports that it must not."""
    own, complaints = unit(module), []
    for line, parts in imports(source, module):
        other = unit(parts)
        if other in (None, own) or own is None:
            continue
        where = f"{'/'.join(module)}.py:{line}: {own} imports {other}"
        if other not in LAYER:
            complaints.append(f"{where}, which tests/test_layers.py does not place")
        elif LAYER[other] > LAYER[own]:
            complaints.append(f"{where}, which is above it; move what both need down")
        elif LAYER[other] == LAYER[own]:
            complaints.append(f"{where}, which is beside it: neither may know the other")
    return complaints


def test_every_module_has_its_place():
    names = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()} - {"__init__"}
    assert names <= LAYER.keys(), (
        f"{sorted(names - LAYER.keys())} have no place yet: enter each into LAYERS in tests/test_layers.py, "
        "below whatever imports it, and say in the design what it is for"
    )


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    module = path.relative_to(PACKAGE.parent).with_suffix("").parts
    if module[1] in LAYER:
        assert not violations(path.read_text(), module)


def test_the_package_itself_imports_nothing_until_it_is_asked():
    code = "import sys, burnish; print(*sorted(name for name in sys.modules if name.startswith('burnish.')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == []


WRONG = {
    "from burnish.loop import run": "above",
    "import burnish.models.flow.base": "beside",
    "from burnish.models import sd3": "beside",
    "def late():\n    from burnish.training.ema import Ema": "above",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from burnish import tasks": "above",
    "import importlib\nimportlib.import_module('burnish.cli')": "above",
    "from ..models.base import FlowModel": "beside",
    "from .. import hooks": "above",
    "from burnish.mystery import x": "does not place",
}
RIGHT = [
    "from burnish import __version__",
    "from burnish.utils import random",
    "from burnish.types.rollout import Loss",
    "from burnish.algorithms.base import Algorithm",
    "from .base import Algorithm",
    "import torch",
]


@pytest.mark.parametrize("source", WRONG)
def test_an_import_upwards_is_found_wherever_it_stands(source):
    (complaint,) = violations(source, ("burnish", "algorithms", "flow_grpo"))
    assert WRONG[source] in complaint


@pytest.mark.parametrize("source", RIGHT)
def test_an_import_downwards_is_none(source):
    assert not violations(source, ("burnish", "algorithms", "flow_grpo"))


LOAD = "from burnish.config import load; load('quickstart').check()"
REFUSE = "from burnish.cli import main; assert main(['train', 'quickstart', 'algorithm.no_such=1']) == 2"
NO_GPU = REFUSE.replace("quickstart', 'algorithm.no_such=1", "qwen25_vl/grpo', 'model.device=cpu")
HELP = "from burnish.cli import main\ntry:\n    main(['train', '--help'])\nexcept SystemExit:\n    pass"


@pytest.mark.parametrize(
    "code",
    ["import burnish.config", "import burnish.cli", LOAD, REFUSE, NO_GPU, HELP],
    ids=["config", "cli", "load", "refuse", "no GPU", "help"],
)
def test_a_command_line_is_checked_before_anything_heavy_is_imported(code):
    show = f"import sys; print('heavy:', *[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].strip() == "heavy:"
