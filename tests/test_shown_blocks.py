"""Every block of code of the documents is run, or composed by what would read it. A block of another kind fails."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from burnish.cli import main
from burnish.config import load
from burnish.config.plugins import open_plugins
from burnish.config.yaml_text import parse
from burnish.data.flow.pictures import read_pictures
from burnish.evaluation.suite import read_suite
from burnish.utils.errors import UserError
from tests.support.command_lines import accept_line
from tests.support.shown import BESIDE, HOLLOW, OWN_PAGES, ROOT, Block, blocks, forgotten, own_recipe, shell_lines

DOCS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page not in OWN_PAGES]  # tests/test_own_pages.py
PAGES = [*BESIDE, ROOT / "CHANGELOG.md", *DOCS]
# text that nothing reads; formulas in docs/algorithms are text, too
TEXTS = {
    "alarms.md": "what the run in tests/system/test_learning.py says",
    "data_forms.md": "what records are read as, which tests/data/test_forms_page.py compares",
    **dict.fromkeys(("loop.md", "plan.md", "reward_service.md", "rewards_language.md"), "tests/test_shown_texts.py"),
}
# Python that is not run here
NOT_RUN = {
    "loop.md": "the loop in a few lines; its calls are compared with burnish/loop.py",
    "python.md": "tests/test_api.py trains with it",
    "evaluation.md": "opens the folder of a run that is not there",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder, with what the README calls the reader's own; what is registered there is forgotten."""
    monkeypatch.chdir(tmp_path)
    own_recipe(tmp_path)
    for block in blocks(ROOT / "docs" / "rewards.md"):
        if block.title:  # which that recipe names
            (tmp_path / block.title).write_text(block.text)
    with forgotten():
        yield tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_a_page_is_what_it_says(page, place):
    found = list(blocks(page))
    for block in found:
        if block.title:
            (place / block.title).write_text(block.text)
    for block in found:
        check(block, page, place)


def check(block: Block, page: Path, place: Path) -> None:
    assert block.kind in KINDS, f"{block.where}: a block must be one of {', '.join(KINDS)}, not {block.kind!r}"
    assert block.text.strip(), f"{block.where}: the block is empty"
    try:
        KINDS[block.kind](block, page, place)
    except (UserError, ValueError, SyntaxError, ImportError, AttributeError) as error:
        pytest.fail(f"{block.where}: {error}")


def shell(block: Block, page: Path, place: Path) -> None:
    for line in shell_lines(block.text):
        accept_line(line)


def composed(block: Block, page: Path, place: Path) -> None:
    """A recipe by itself, or else what is added to one of the quickstarts; a suite, with a suite's options."""
    tree = parse(block.text)
    if "scorers" in tree:
        read_suite(str(written(block, place, "suite.yaml")))
        return
    path = written(block, place, "block.yaml")
    if "extends" in tree or "path" in tree.get("model", {}):
        load(str(path))
        return
    refused = []
    for recipe in ("quickstart", "vlm_quickstart", "video_quickstart"):
        path.write_text(f"extends: {recipe}\n{block.text}")
        try:
            load(str(path))
        except UserError as error:
            refused.append(f"onto {recipe}: {error}")
        else:
            return
    pytest.fail(f"{block.where}: {'; '.join(refused)}")


def records(block: Block, page: Path, place: Path) -> None:
    """What ``burnish data show`` reads; pairs of pictures are read as such."""
    path = written(block, place, {"json": "block.jsonl", "csv": "block.csv"}[block.kind])
    if block.text.startswith("["):
        path = path.rename(path.with_suffix(".json"))
    for name in re.findall(r'"([\w/]+\.png)"', block.text):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), f"#{len(name):06}").save(name)
    if '"chosen"' in block.text:
        assert read_pictures(str(path), "pairs", size=None, keys=load("quickstart").data)
        return
    sees = page.name in ("data_language.md", "data_forms.md")
    assert main(["data", "show", str(path), *(["--recipe", "vlm_quickstart"] if sees else [])]) == 0


def python(block: Block, page: Path, place: Path) -> None:
    """It is a module that can be imported, or a plugin that registers something, without undefined names."""
    if page.name == "loop.md":
        loop = (ROOT / "burnish" / "loop.py").read_text()
        calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Call)]
        assert [call for call in calls if f"{call}(" not in loop] == []
        return
    undefined = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", "--stdin-filename", "block.py", "-"],
        input=block.text, capture_output=True, text=True,
    )  # fmt: skip
    assert undefined.returncode == 0, f"{block.where}: {undefined.stdout}"
    if page.name in NOT_RUN:
        resolve(block.text)
    else:
        open_plugins([str(written(block, place, "block.py"))])


def resolve(text: str) -> None:
    """Import what Python imports, and look up what it takes of it."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                getattr(importlib.import_module(str(node.module)), alias.name)
        elif isinstance(node, ast.Import):
            for module in [importlib.import_module(alias.name) for alias in node.names]:
                for used in re.findall(rf"\b{module.__name__}\.(\w+)", text):
                    getattr(module, used)


def text(block: Block, page: Path, place: Path) -> None:
    hollow = HOLLOW.findall(block.text)
    assert hollow == [], f"{block.where}: it shows {hollow} in the place of a value"
    assert page.parent.name in ("algorithms", "language") or page.name in TEXTS, (
        f"{block.where}: what reads this text? Say so in TEXTS"
    )
    hidden = [line for line in block.text.splitlines() if line.startswith(("burnish ", "make ", "python ", "pip "))]
    assert hidden == [], f"{block.where}: commands belong in a block of bash"


def written(block: Block, place: Path, name: str) -> Path:
    path = place / (block.title or f"{block.where.replace(':', '_').replace('.', '_')}_{name}")
    path.write_text(block.text)
    return path


KINDS = {"bash": shell, "yaml": composed, "json": records, "csv": records, "python": python, "text": text}


PUBLISHED = [
    pytest.param(
        page, block, id=block.where, marks=pytest.mark.slow if page.name == "README.md" else pytest.mark.thorough
    )
    for page in PAGES
    for block in blocks(page)
    if block.kind == "yaml" and re.search(r"^model:\s.*?path: [\w-]+/[\w.-]+", block.text, re.M | re.S)
]


@pytest.mark.parametrize(("page", "block"), PUBLISHED)
def test_a_recipe_of_a_published_model_fits_the_gpu_beside_it(page, block, place):
    from burnish.config.batches import smallest, with_sizes
    from burnish.forecast.forecast import forecast

    said = re.search(r"[Ii]t fits one GPU of (\d+) GB", page.read_text().partition(block.text)[2])
    assert said, f"{block.where}: say what GPU it fits, as in: It fits one GPU of 80 GB."
    (place / "prompts.txt").write_text("a cat\n" * 8)
    for name in ("pairs.jsonl", "heldout_pairs.jsonl"):
        (place / name).write_text('{"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}\n' * 64)
    memory = int(said[1]) * 10**9
    config = load(str(written(block, place, "block.yaml")), [f"memory={said[1]}GB"])
    assert forecast(with_sizes(config, smallest(config))).needs_of(memory) < memory  # batches grow into what is left


def test_recipes_of_published_models_are_found():
    assert {parameters.id.partition(":")[0] for parameters in PUBLISHED} == {"README.md", "reward_models.md"}


def test_exceptions_are_needed():
    kinds = {(page.name, block.kind) for page in PAGES for block in blocks(page)}
    assert {(name, "text") for name in TEXTS} | {(name, "python") for name in NOT_RUN} <= kinds


@pytest.mark.parametrize(("broken", "said"), [
    ("```\na\n```\n", "must be one of"),
    ("```mermaid\na\n```\n", "must be one of"),
    ("```bash\nburnish trian quickstart\n```\n", "trian"),
    ("```bash\nburnish train quickstart rollout.m=3\n```\n", "rollout.m"),
    ("```bash\nburnish train their_recipe.yaml\n```\n", "their_recipe"),
    ("```bash\nburnish sample runs/a --cuont 3\n```\n", "cuont"),
    ("```bash\nrm -rf runs\n```\n", "what is rm"),
    ("```bash\nmake quickstrat\n```\n", "make quickstrat"),
    ("```bash\npip install 'burnish[rya]'\n```\n", "rya"),
    ("```yaml\nrollout: {m: 3}\n```\n", "rollout.m"),
    ("```json\n{\"prompt\": 3\n```\n", "json"),
    ("```python\nimport burnish\nburnish.register('flow reward', 'a')(int)\n```\n", "'a'"),
    ("```python\nfrom burnish.options import Positiv\n```\n", "Positiv"),
    ("```python\nx = y\n```\n", "Undefined name `y`"),
    ("```text\nburnish train quickstart\n```\n", "what reads this text"),
    ("```text\n{'reward': nan}\n```\n", "it shows ['nan']"),
    ("```text\nrewards: []\n```\n", "it shows ['[]']"),
    ("```bash\nburnish doctor\n", "has no end"),
    ("``` bash\nburnish doctor\n```\n", "write ```KIND"),
])  # fmt: skip
def test_a_broken_block_fails(broken, said, place, capsys):
    def read():
        page = ROOT / "docs" / "broken.md"
        for block in blocks(page, broken):
            check(block, page, place)

    with pytest.raises((pytest.fail.Exception, AssertionError, ValueError)) as failed:
        read()
    assert said in f"{failed.value} {capsys.readouterr().err}"
