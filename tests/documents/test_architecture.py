"""The page about the way of one sample names every file that a small run enters, and no other."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import burnish

ROOT = Path(burnish.__file__).parents[1]
SMALL = ["algorithm=flow_grpo", "steps=1", "data.train_batch_size=2", "rollout.n=4", "validation.max_prompts=2",
         "scoring.processes=0"]  # fmt: skip
ENTRIES = {("loop.py", "run"), ("data/records.py", "read_files")}  # where the way begins: an update, and its data


def walk() -> None:
    """Print the files that are entered below ``ENTRIES`` in order, hooks left out, each with the function."""
    package = str(ROOT / "burnish") + "/"
    entered: dict[str, str] = {}
    inside, hooks = [0], [0]

    def look(frame, event, argument):
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(package):
            return
        name, function = frame.f_code.co_filename.removeprefix(package), frame.f_code.co_name
        step = 1 if event == "call" else -1
        hooks[0] += step * (bool(inside[0]) and name.startswith("hooks/"))
        inside[0] += step * ((name, function) in ENTRIES)
        if inside[0] and not hooks[0] and event == "call":
            entered.setdefault(name, function)

    with tempfile.TemporaryDirectory() as folder:
        config = burnish.load("quickstart", *SMALL, f"output_dir={folder}/run")
        sys.setprofile(look)
        burnish.train(config)
        sys.setprofile(None)
    print("WAY", *(f"{name}:{function}" for name, function in entered.items()))


def test_the_page_of_the_way_of_a_sample_names_every_file_on_it():
    told = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    entered = [one.partition(":")[0] for one in told.partition("WAY ")[2].splitlines()[0].split()]
    named = re.findall(r"`((?:\w+/)*\w+\.py)`", (ROOT / "docs" / "architecture.md").read_text())
    wrong = {
        "name, in this order of entry": [name for name in entered if name not in named],
        "leave out": [name for name in named if name not in entered],
    }
    assert not any(wrong.values()), f"docs/architecture.md must {wrong}"


if __name__ == "__main__":
    walk()
