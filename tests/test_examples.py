"""The one-file example learns, stays short, and needs nothing but PyTorch."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny_flow_grpo.py"


def test_it_learns_without_leaving_the_data():
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"(before|after): reward ([\d.-]+), distance to the nearest spot ([\d.]+)", done.stdout)
    assert [name for name, _, _ in found] == ["before", "after"]
    (_, before, near), (_, after, far) = found
    assert 0.15 < float(before) < 0.35  # a generator that does not listen is right once in four times
    assert float(after) > 0.85
    assert float(far) < float(near) + 0.15  # without the KL it is 0.6 further


def test_it_imports_only_torch_and_the_standard_library():
    imported = set()
    for node in ast.walk(ast.parse(EXAMPLE.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module.split(".")[0])
    assert "torch" in imported
    assert imported - {"torch"} <= sys.stdlib_module_names


def test_it_is_a_page_or_three():
    assert len(EXAMPLE.read_text().splitlines()) < 200
