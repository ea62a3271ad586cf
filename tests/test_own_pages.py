"""A newcomer's path through each page on what is one's own, from its own text: files, commands and what is seen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.registry import lookup, names
from tests.support.shown import OWN_PAGES, ROOT, blocks


def newcomer(folder: Path, *given: str | Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {
        "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "tests.support.newcomer", *map(str, given)],
        cwd=folder, env=env, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.mark.slow
def test_what_the_pages_say_works_from_top_to_bottom(tmp_path):
    done = newcomer(tmp_path, *OWN_PAGES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("commands") == len(OWN_PAGES)


@pytest.mark.thorough
@pytest.mark.parametrize("page", OWN_PAGES, ids=lambda page: page.stem)
def test_it_works_in_a_shell(page, tmp_path):
    done = newcomer(tmp_path, "--shell", page)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", OWN_PAGES, ids=lambda page: page.stem)
def test_it_is_short_and_names_its_files(page):
    text = page.read_text()
    assert len(text.splitlines()) < 120
    found = list(blocks(page))
    assert {"bash", "text"} <= {block.kind for block in found if not block.title}
    for block in found:
        assert f"`{block.title}`" in text, f"{block.where}: the title of a block is not shown everywhere; name the file"


PAGE = """\
```python title="a.py"
A = 3
```
```bash
python a.py
ls {missing}      # exit code 2
printf 'one\\ntwo\\n3\\n'
```
```text
{seen}
```
"""


@pytest.mark.parametrize(("seen", "missing", "said"), [
    ("one\n3", "missing", None),
    ("one\n...\n3", "missing", None),
    ("o...e", "missing", None),
    ("tw", "missing", "own.md:9: 'tw' is not seen"),
    ("3\none", "missing", "own.md:9: 'one' is not seen, or not in this order"),
    ("one", "a.py", "exit code 0, not 2"),
    ("one", "missing; echo '[]'; exit 2", "prints ['[]'] in the place of a value"),
])  # fmt: skip
def test_a_page_that_says_what_is_not_so_fails(seen, missing, said, tmp_path):
    page = tmp_path / "own.md"
    page.write_text(PAGE.format(seen=seen, missing=missing))
    done = newcomer(tmp_path, page)
    assert (done.returncode == 0) == (said is None), done.stderr
    assert said is None or said in done.stderr


def test_a_block_that_nobody_can_type_fails(tmp_path):
    page = tmp_path / "own.md"
    page.write_text("```yaml\nsteps: 3\n```\n")
    done = newcomer(tmp_path, page)
    assert "nobody can tell what to do with this block of yaml" in done.stderr


def test_the_page_on_language_models_names_every_family():
    page = (ROOT / "docs" / "language.md").read_text().partition("## Which models")[2].partition("\n## ")[0]
    known = {kind for name in names("language model") for kind in lookup("language model", name).model_types}
    assert known - set(re.findall(r"`(\w+)`", page)) == set()
