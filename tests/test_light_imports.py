"""Options are read, and wrong ones refused, before anything heavy is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "diffusers", "transformers", "peft", "ray", "vllm", "onnxruntime", "matplotlib"}
LOAD = "from burnish.config import load; load('quickstart').check()"
REFUSE = "from burnish.cli import main; assert main(['train', 'quickstart', 'algorithm.no_such=1']) == 2"
NO_GPU = REFUSE.replace("quickstart', 'algorithm.no_such=1", "qwen25_vl/grpo', 'model.device=cpu")
HELP = "from burnish.cli import main\ntry:\n    main(['train', '--help'])\nexcept SystemExit:\n    pass"


def imported_by(code: str) -> set[str]:
    """Names of the modules that a new process has imported after running ``code``."""
    code = f"{code}\nimport sys; print('modules', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_the_package_imports_nothing_until_it_is_asked():
    assert not [name for name in imported_by("import burnish") if name.startswith("burnish.")]


@pytest.mark.parametrize(
    "code",
    ["import burnish.config", "import burnish.cli", LOAD, REFUSE, NO_GPU, HELP],
    ids=["config", "cli", "load", "refuse", "no GPU", "help"],
)
def test_a_command_line_is_checked_before_anything_heavy_is_imported(code):
    assert not HEAVY & imported_by(code)
