"""Tries the distributions of a release as somebody who has nothing else.

    make release-check                                       # builds them first
    python tools/release_check.py dist                       # the wheel in an empty environment: two minutes
    python tools/release_check.py dist --beside --brief      # beside the libraries of this Python, and less of it

Everything that the package has must be inside the wheel. Away from the source tree, the wheel trains both quickstarts
(``--updates`` of them), serves the board, pushes to a hub on loopback, and diffusers and transformers load what came
there. TORCH says what pip installs PyTorch from, as in the Makefile. The exit status is 1, with the reason, where
something fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from release_notes import version_of

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.fake_hub import TOKEN, fake_hub  # noqa: E402

SECONDS = 900  # that a command may take
SMALL = ("validation.max_prompts=4", "validation.n=2", "scoring.processes=0")
RUNS = {
    "quickstart": ("data.train_batch_size=2", "rollout.n=4", "validation.reference_guidance=null"),
    "vlm_quickstart": (
        "data.train_batch_size=4",
        "rollout.n=4",
        "trainer.mini_batch_size=null",
        "optimizer.warmup_steps=0",
    ),
}  # fmt: skip
LOADED = {
    "quickstart": 'StableDiffusion3Pipeline.from_pretrained("me/quickstart", vae=None, text_encoder_3=None, '
    "tokenizer_3=None).transformer",
    "vlm_quickstart": 'Qwen2_5_VLForConditionalGeneration.from_pretrained("me/vlm_quickstart")',
}
LIBRARY = {"quickstart": "diffusers", "vlm_quickstart": "transformers"}


class Failed(Exception):
    """What is wrong with the distributions."""


def packaged(tree: Path) -> set[str]:
    """Every file of the package in a source tree."""
    files = (path for path in (tree / "burnish").rglob("*") if path.is_file())
    return {
        path.relative_to(tree).as_posix() for path in files if "__pycache__" not in path.parts and path.suffix != ".pyc"
    }


def check_contents(wheel: Path, tree: Path) -> None:
    """Refuse a wheel that lacks a file of the package, has others, or is of another version."""
    with zipfile.ZipFile(wheel) as opened:
        inside = {name for name in opened.namelist() if not name.endswith("/")}
        metadata = next(name for name in inside if name.endswith(".dist-info/METADATA"))
        stated = re.search(rb"^Version: (\S+)$", opened.read(metadata), re.MULTILINE)
    own = version_of((tree / "burnish/__init__.py").read_text())
    assert stated is not None
    if stated[1].decode() != own:
        raise Failed(f"{wheel.name} says version {stated[1].decode()}, and burnish/__init__.py {own}")
    expected, found = packaged(tree), {name for name in inside if ".dist-info/" not in name}
    if missing := sorted(expected - found):
        raise Failed(f"{wheel.name} lacks {len(missing)} files of the package: {', '.join(missing[:5])}")
    if others := sorted(found - expected):
        raise Failed(f"{wheel.name} has {len(others)} files that the package has not: {', '.join(others[:5])}")


@dataclass(frozen=True)
class Installed:
    """An installed wheel, used from a folder that is far from the source tree."""

    python: str
    script: Path
    folder: Path  # where commands run
    path: str | None  # PYTHONPATH

    def environment(self, **more: str) -> dict[str, str]:
        """Of its processes: nothing of ours leads back to the source tree, and nothing is asked of a network."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_", "BURNISH_"))}
        own = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HOME": str(self.folder / "hf"), "FORCE_COLOR": "1"}
        return kept | own | ({"PYTHONPATH": self.path} if self.path else {}) | more

    def run(self, *words: str, **more: str) -> str:
        """What a command prints, as a log file has it."""
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment(**more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=SECONDS,
        )  # fmt: skip
        said = done.stdout.decode(errors="replace")
        if done.returncode:
            raise Failed(f"{' '.join(words)}: exit code {done.returncode}\n{said[-3000:]}")
        return said

    def burnish(self, *words: str, **more: str) -> str:
        """What a command of Burnish prints."""
        return self.run(self.python, str(self.script), *words, **more)


def install(wheel: Path, folder: Path, *, beside: bool) -> Installed:
    """Install a wheel into an empty environment, or alone beside the libraries of this Python."""
    away, pip = folder / "elsewhere", ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    away.mkdir()
    if beside:
        target = folder / "site"
        subprocess.run([sys.executable, *pip, "--no-deps", "--no-index", "--target", target, wheel], check=True)
        return Installed(sys.executable, target / "bin" / "burnish", away, str(target))
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    installed = Installed(str(python), python.with_name("burnish"), away, None)
    for wanted in (os.environ.get("TORCH", "torch").split(), [str(wheel)]):
        print(f"installing {wanted[0]}", flush=True)
        subprocess.run([python, *pip, *wanted], check=True, env=installed.environment(), timeout=SECONDS)
    return installed


def check_place(installed: Installed) -> None:
    """Refuse to go on with the source tree's package."""
    code = "import burnish, importlib.metadata as m; print(burnish.__file__, burnish.__version__, m.version('burnish'))"
    file, version, stated = installed.run(installed.python, "-c", code).split()
    if Path(file).is_relative_to(ROOT) or version != stated:
        raise Failed(f"{file}, version {version}, is imported, and version {stated} is installed")
    if version not in installed.burnish("--version"):
        raise Failed("burnish --version says another version")


def train(installed: Installed, recipe: str, updates: int) -> None:
    """Train a quickstart; its log must be one that can be read."""
    log = installed.burnish("train", recipe, f"steps={updates}", *SMALL, *RUNS[recipe])
    if "\r" in log or "\x1b[?25" in log or "\x1b[1A" in log:
        raise Failed(f"burnish train {recipe} redraws lines in a log")
    for name in ("report.html", "metrics.jsonl", "checkpoints"):
        if not (installed.folder / "runs" / recipe / name).exists():
            raise Failed(f"burnish train {recipe} left no {name}")


def board(installed: Installed) -> None:
    """Serve the board and ask it for its page and its runs."""
    command = [installed.python, str(installed.script), "board", "runs", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=installed.folder, env=installed.environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said, end = "", time.monotonic() + 60
        while (address := re.search(r"http://127\.0\.0\.1:\d+/", said)) is None:
            line = process.stdout.readline()
            if not line or time.monotonic() > end:
                raise Failed(f"burnish board says no address: {said}")
            said += line
        with urllib.request.urlopen(address[0], timeout=30) as page:
            if b"<script" not in page.read():
                raise Failed("the board's page has no script")
    finally:
        process.terminate()
        process.wait(30)


def push(installed: Installed, recipes: Iterator[str]) -> None:
    """Push runs to a hub on loopback, and load them without Burnish."""
    with fake_hub() as hub:
        online = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
        for recipe in recipes:
            installed.burnish("push", f"runs/{recipe}", "--to", f"me/{recipe}", "--format", "merged", **online)
            code = (
                f"import sys\nfrom {LIBRARY[recipe]} import {LOADED[recipe].partition('.')[0]}\n"
                f"print(sum(one.numel() for one in {LOADED[recipe]}.parameters()))\n"
                "assert not any(name.startswith('burnish') for name in sys.modules)"
            )
            count = installed.run(installed.python, "-c", code, **online).split()[-1]
            print(f"me/{recipe}: {count} weights loaded by {LIBRARY[recipe]} alone", flush=True)


def check(folder: Path, *, beside: bool, brief: bool, updates: int) -> None:
    """Everything, in order.

    Raises:
        Failed: with what is wrong.
    """
    wheels, sources = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sources) != 1:
        raise Failed(
            f"{folder} has {len(wheels)} wheels and {len(sources)} source distributions; make dist leaves one of each"
        )
    check_contents(wheels[0], ROOT)
    print(f"{wheels[0].name}: {len(packaged(ROOT))} files, none is missing", flush=True)
    with tempfile.TemporaryDirectory() as away:
        installed = install(wheels[0].resolve(), Path(away), beside=beside)
        check_place(installed)
        for words in (("recipes",), ("config", "quickstart"), ("completion", "bash")):
            installed.burnish(*words)
        recipes = list(RUNS)[: 1 if brief else None]
        for recipe in recipes:
            train(installed, recipe, updates)
            print(f"burnish train {recipe}: {updates} updates", flush=True)
        board(installed)
        print("burnish board: its page is there", flush=True)
        if not brief:
            push(installed, iter(recipes))


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with one wheel and one source distribution")
    parser.add_argument("--beside", action="store_true", help="install the wheel alone, beside this Python's libraries")
    parser.add_argument("--brief", action="store_true", help="one quickstart, and no hub")
    parser.add_argument("--updates", type=int, default=2, help="of each quickstart (%(default)s)")
    given = parser.parse_args()
    try:
        check(given.folder, beside=given.beside, brief=given.brief, updates=given.updates)
    except Failed as why:
        print(f"not fit for a release: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
