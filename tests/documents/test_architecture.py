"""The page about the way of one sample names every file that a small run enters, and no other; so with folders."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import burnish

ROOT = Path(burnish.__file__).parents[1]
SMALL = ["algorithm=flow_grpo", "steps=1", "data.train_batch_size=2", "rollout.n=4", "validation.max_prompts=2",
         "scoring.processes=0"]  # fmt: skip
BEGINS = {("loop.py", "run"), ("data/records.py", "read_files")}  # an update, and its data


def walk() -> None:
    """Print the files that are entered from ``BEGINS`` on, in order, without what hooks do."""
    package, entered, depth = f"{ROOT}/burnish/", dict[str, str](), {"way": 0, "hooks": 0}

    def look(frame, event, argument):
        name, function = frame.f_code.co_filename.removeprefix(package), frame.f_code.co_name
        if event in ("call", "return") and name != frame.f_code.co_filename:
            step = 1 if event == "call" else -1
            depth["hooks"] += step * bool(depth["way"] and name.startswith("hooks/"))
            depth["way"] += step * ((name, function) in BEGINS)
            if depth["way"] and not depth["hooks"] and event == "call":
                entered.setdefault(name, function)

    with tempfile.TemporaryDirectory() as folder:
        config = burnish.load("quickstart", *SMALL, f"output_dir={folder}/run")
        sys.setprofile(look)
        burnish.train(config)
        sys.setprofile(None)
    print("WAY", *entered)


def test_the_page_of_the_way_of_a_sample_names_every_file_on_it():
    told = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    entered = told.partition("WAY ")[2].splitlines()[0].split()
    named = re.findall(r"`((?:\w+/)*\w+\.py)`", (ROOT / "docs" / "architecture.md").read_text())
    add, drop = [name for name in entered if name not in named], [name for name in named if name not in entered]
    assert [*add, *drop] == [], f"docs/architecture.md must name {add}, in this order of entry, and leave out {drop}"


def test_the_table_of_folders_names_each():
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / "architecture.md").read_text(), re.M)
    folders = {file.parent.name for file in (ROOT / "burnish").glob("[!_]*/*.*")}
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(folders)


if __name__ == "__main__":
    walk()
