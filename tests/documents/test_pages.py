"""What pages show is so: blocks are run or composed, and commands, options, names and links in their text are there."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from functools import cache
from pathlib import Path

import pytest
from PIL import Image

import burnish
from burnish.cli import VERBS
from burnish.registry import ENTRY_POINTS
from tests.support.command_lines import accept_line, accept_name, all_options, is_option
from tests.support.reward_service import get, post, served
from tests.support.shown import BESIDE, FENCED, HOLLOW, OWN_PAGES, ROOT, Block, blocks, forgotten, own_recipe, spans
from tests.support.shown import shell_lines as lines_of
from tests.support.tiny_run import TinyRun
from tests.support.tiny_run import burnish as run

DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*BESIDE, ROOT / "CHANGELOG.md", *DOCS]
WRITTEN_BY_TOOLS = [ROOT / "docs" / f"{name}.md" for name in ("generators", "language_models", "hardware")]
QUICKSTARTS = ("quickstart", "vlm_quickstart", "video_quickstart")
# text that nothing reads; formulas in docs/algorithms are text, too
TEXTS = {
    "monitoring.md": "what the run in tests/system/test_learning.py says",
    "data_formats.md": "what records are read as, which tests/data/test_records.py compares",
    "memory.md": "of a machine that is not here", **dict.fromkeys(("recovery.md", "judges.md"), "compared below"),
}  # fmt: skip
# Python whose imports are looked up instead of run
NOT_RUN = {
    "install.md": "tests/documents/test_own_parts.py trains with it",
    "evaluation.md": "opens the folder of a run that is not there",
}
PROGRAM = re.compile(r"(?:[A-Z_]+=\S+ )*(burnish|make|pip|python|kubectl|sbatch) (?=\S)")
PLACES = {  # what stands for the reader's own, and what it may be
    " RECIPE": " quickstart", " RUN": " runs/a", "rewards.NAME.": "rewards.brightness.", " algorithm=NAME": "",
    "…": "x",
}  # fmt: skip
CUT = re.compile(r"<TAB>|\.\.\.|\{|-m$|ARGUMENTS")  # commands that are not shown to their end
LACKS = re.compile(r"are required|expected one argument|NAME")
FILES = re.compile(r"\.(jsonl|py|yaml|pth|layers)$")
GIVEN = re.compile(r"([a-z_]+(?:\.\w+)+)=([\w.'-]+)")  # an option with a plain value
BASES = ("quickstart", "vlm_quickstart", "video_quickstart", "qwen25_vl/grpo")


@pytest.fixture
def place(tmp_path):
    """An empty folder, with what the README calls the reader's own; what is registered there is forgotten."""
    own_recipe(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    write_titled(ROOT / "docs" / "rewards.md", tmp_path)  # which that recipe names
    with chdir(tmp_path), forgotten():
        yield tmp_path


def write_titled(page: Path, place: Path) -> None:
    for block in blocks(page):
        if block.title:
            (place / block.title).write_text(block.text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_shows_is_so(page, place):
    write_titled(page, place)
    complaints = [why for block in blocks(page) if (why := wrong_block(block, page, place))]
    if page.name != "CHANGELOG.md":  # which tells of what was
        complaints += wrong_text(page, page.read_text())
    assert complaints == []


def wrong_text(page: Path, text: str) -> list[str]:
    return [f"{name}: {what}" for name, reader in READERS.items() for what in reader(page, text)]


def wrong_block(block: Block, page: Path, place: Path) -> str:
    if block.kind not in BLOCKS:
        return f"{block.where}: a block must be one of {', '.join(BLOCKS)}, not {block.kind!r}"
    if not block.text.strip():
        return f"{block.where}: the block is empty"
    try:
        BLOCKS[block.kind](block, page, place)
    except (ValueError, SyntaxError, ImportError, AttributeError, AssertionError) as error:
        return f"{block.where}: {error}"
    return ""


def shell(block: Block, page: Path, place: Path) -> None:
    for line in lines_of(block.text):
        if page not in OWN_PAGES or (line.startswith("burnish ") and "exit code" not in line):  # typed elsewhere
            accept_line(line)


def composed(block: Block, page: Path, place: Path) -> None:
    """A recipe by itself, or else what is added to one of the quickstarts; a suite, with a suite's options."""
    path = place / (block.title or "block.yaml")
    path.write_text(block.text)
    if block.text.startswith("scorers:") or "\nscorers:" in block.text:
        accept_line(f"burnish eval runs/a --suite {path}")
    elif re.search(r"^extends:|^model:\s.*?path:", block.text, re.M | re.S):
        burnish.load(str(path))
    else:
        refused = []
        for recipe in QUICKSTARTS:
            path.write_text(f"extends: {recipe}\n{block.text}")
            try:
                burnish.load(str(path))
            except ValueError as error:
                refused.append(f"onto {recipe}: {error}")
        assert len(refused) < len(QUICKSTARTS), "; ".join(refused)


def records(block: Block, page: Path, place: Path) -> None:
    """What ``burnish data show`` reads; pairs of images are read by a run that learns from them."""
    path = place / (
        "block.json" if block.text.startswith("[") else {"json": "block.jsonl", "csv": "block.csv"}[block.kind]
    )
    path.write_text(block.text)
    for name in re.findall(r'"([\w/]+\.png)"', block.text):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), f"#{len(name):06}").save(name)
    if page in OWN_PAGES:  # whose keys a recipe of its own names
        return
    sees = page.name == "data_formats.md" or "<image>" in block.text
    recipe = "vlm_quickstart" if sees else "sd35/diffusion_dpo" if '"chosen"' in block.text else "quickstart"
    run("data", "show", path, "--recipe", recipe)


def python(block: Block, page: Path, place: Path) -> None:
    """It can be imported as a plugin, or what it imports is there; no name is undefined."""
    if page.name == "architecture.md":  # the loop in a few lines
        loop = (ROOT / "burnish" / "loop.py").read_text()
        calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Call)]
        assert [call for call in calls if f"{call}(" not in loop] == []
        return
    undefined = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", "--stdin-filename", "block.py", "-"],
        input=block.text, capture_output=True, text=True,
    )  # fmt: skip
    assert undefined.returncode == 0, undefined.stdout
    if page.name in NOT_RUN:
        resolve(block.text)
        return
    path = place / (block.title or f"block_{block.where.partition(':')[2]}.py")
    path.write_text(block.text)
    (place / "plugged.yaml").write_text(json.dumps({"extends": "quickstart", "plugins": [path.name]}))
    burnish.load("plugged.yaml")


def resolve(text: str) -> None:
    """Import what Python imports, and look up what it takes of it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                getattr(importlib.import_module(str(node.module)), alias.name)
        elif isinstance(node, ast.Import):
            for module in [importlib.import_module(alias.name) for alias in node.names]:
                for used in re.findall(rf"\b{module.__name__}\.(\w+)", text):
                    getattr(module, used)


def text(block: Block, page: Path, place: Path) -> None:
    hollow = HOLLOW.findall(block.text)
    assert hollow == [], f"it shows {hollow} in the place of a value"
    known = page.parent.name == "algorithms" or page.name in TEXTS or page in OWN_PAGES
    assert known, "what reads this text? Say so in TEXTS"
    hidden = [line for line in block.text.splitlines() if line.startswith(("burnish ", "make ", "python ", "pip "))]
    assert hidden == [], "commands belong in a block of bash"


BLOCKS: dict[str, Callable[[Block, Path, Path], None]] = {
    "bash": shell, "yaml": composed, "json": records, "csv": records, "python": python, "text": text,
}  # fmt: skip


def wrong_commands(page: Path, text: str) -> Iterator[str]:
    for line in spans(text):
        if PROGRAM.match(line) and (why := refused(line)):
            yield f"{line}: {why}"


def refused(line: str) -> str:
    for stands, own in PLACES.items():
        line = line.replace(stands, own)
    if CUT.search(line) or line == "burnish --version":
        return ""
    try:
        accept_line(line)
    except ValueError as error:
        if not LACKS.search(str(error)):
            return str(error)
        accept_name(line)
    return ""


def wrong_names(page: Path, text: str) -> Iterator[str]:
    for name in spans(text):
        ours = re.match(r"(burnish|benchmarks|tests|tools)\.[a-z]", name) and name != ENTRY_POINTS
        if ours and not exists(name.partition("(")[0].replace(":", ".")):
            yield name


def exists(name: str) -> bool:
    module, _, rest = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ImportError:
        return bool(module) and exists(module) and hasattr(importlib.import_module(module), rest)
    return True


def wrong_options(page: Path, text: str) -> Iterator[str]:
    """Dotted options that no recipe has, or whose value none takes; one page has others' own."""
    starts = {option.partition(".")[0] for option in all_options()}
    for span in [] if page.name == "extending.md" else spans(text):
        name = span.partition("=")[0].replace(".LABEL.", ".NAME.")
        ours = re.fullmatch(r"[a-z_]+(\.\w+)+", name) and name.partition(".")[0] in starts and not FILES.search(name)
        if ours and not (is_option(name) and ((found := GIVEN.fullmatch(span)) is None or takes(*found.groups()))):
            yield span


@cache
def takes(name: str, value: str) -> bool:
    """Whether some recipe has nothing to say against this value; it may lack what is needed beside it."""
    for recipe in BASES:
        try:
            burnish.load(recipe, f"{name}={value}")
        except ValueError as error:
            if not re.search(rf"\b{re.escape(name)} is .*must be (?:one of|a |an |text|[<>])", str(error)):
                return True
        else:
            return True
    return "NAME" in name or value in ("N", "DIR", "PATH")


def wrong_links(page: Path, text: str) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", text)):
        path, _, section = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link and not (target.exists() and (not section or section in sections(target))):
            yield link


def long_sentences(page: Path, text: str) -> Iterator[str]:
    """Sentences, or parts between semicolons and colons, of more than thirty words; code and addresses don't count."""
    if page in WRITTEN_BY_TOOLS:
        return
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", " ", FENCED.sub("\n\n", text), flags=re.S)
    for piece in re.split(r"\n\s*\n|\n(?=[|*#-] ?|\d+\. )|\||(?<=[.!?:;])\s+", prose):
        if len(re.findall(r"[A-Za-z][\w'-]*", piece)) > 30:
            yield " ".join(piece.split())


def long_cells(page: Path, text: str) -> Iterator[str]:
    """Cells of tables that are paragraphs: more than thirty words beside code."""
    for cell in re.sub(
        r"`[^`]*`|\]\([^)]*\)", " ", "\n".join(re.findall(r"^\|.*\|$", FENCED.sub("", text), re.M))
    ).split("|"):
        if page not in WRITTEN_BY_TOOLS and len(re.findall(r"[A-Za-z][\w'-]*", cell)) > 30:
            yield " ".join(cell.split())


def sections(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    "command": wrong_commands, "name": wrong_names, "option": wrong_options, "link": wrong_links,
    "sentence": long_sentences, "cell": long_cells,
}  # fmt: skip


def test_the_documents_are_short_and_plain():
    """At most as many relative clauses and semicolons by words as TRL's documents have."""
    written = [page for page in (ROOT / "README.md", *DOCS) if page not in WRITTEN_BY_TOOLS]
    texts = [
        FENCED.sub("", re.sub(r"<!-- (\w+).*?<!-- .*?end.*?-->", "", page.read_text(), flags=re.S)) for page in written
    ]
    prose = "\n".join(re.sub(r"^[|#].*$|`[^`]*`|\]\([^)]*\)", " ", text, flags=re.M) for text in texts)
    words, relative = len(re.findall(r"[A-Za-z][\w'-]*", prose)), r"\b(?:which|who|whose|whom|(?<!so )that)\b"
    assert len(written) <= 32
    assert len(" ".join(texts).replace("|", " ").split()) <= 30_000
    assert 1000 * len(re.findall(relative, prose, re.I)) / words <= 6
    assert 1000 * prose.count(";") / words <= 3.9


def in_helps() -> Iterator[tuple[str, str]]:
    for file in (*(ROOT / "burnish/recipes").rglob("*.yaml"), *(ROOT / "examples").rglob("*.yaml")):
        for line in re.findall(r"^ *#.*?(?:# +|: )((?:burnish|python) .*)$", file.read_text(), re.M):
            yield file.relative_to(ROOT).as_posix(), line
    for name, verb in VERBS.items():
        for line in re.findall(r"^ +(burnish .*?)(?:  .*)?$", verb.section("Examples"), re.M):
            yield f"burnish {name} --help", line


def test_commands_in_recipes_and_helps_are_accepted(place):
    complaints = [f"{where}: {line}: {why}" for where, line in in_helps() if (why := refused(line))]
    assert complaints == []


PUBLISHED = [
    pytest.param(page, block, id=block.where)
    for page in PAGES
    for block in blocks(page)
    if block.kind == "yaml" and re.search(r"^model:\s.*?path: (?!models/)[\w-]+/[\w.-]+", block.text, re.M | re.S)
]


@pytest.mark.thorough
@pytest.mark.parametrize(("page", "block"), PUBLISHED)
def test_a_recipe_of_a_published_model_fits_the_gpu_beside_it(page, block, place):
    said = re.search(r"[Ii]t fits one GPU of (\d+) GB", page.read_text().partition(block.text)[2])
    assert said, f"{block.where}: say what GPU it fits, as in: It fits one GPU of 80 GB."
    (place / "prompts.txt").write_text("a cat\n" * 8)
    for name in ("pairs.jsonl", "heldout_pairs.jsonl"):
        (place / name).write_text('{"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}\n' * 64)
    (place / "block.yaml").write_text(block.text)
    assert "It fits into" in run("plan", "block.yaml", f"memory={said[1]}GB").out


@pytest.mark.parametrize(("broken", "said"), [
    ("```bash\nburnish trian quickstart\n```\n", "trian"),
    ("```bash\nburnish train quickstart rollout.m=3\n```\n", "rollout.m"),
    ("```bash\nmake quickstrat\n```\n", "make quickstrat"), ("```yaml\nrollout: {m: 3}\n```\n", "rollout.m"),
    ("```python\nfrom burnish.options import Positiv\n```\n", "Positiv"),
    ("```text\n{'reward': nan}\n```\n", "it shows ['nan']"), ("`burnish sample RUN --cuont 3`", "cuont"),
    ("`burnish.registry.regster`", "regster"), ("`rollout.num_inference_step`", "num_inference_step"),
    ("`optimizer.schedule=cosin`", "cosin"), ("[a](nowhere.md)", "nowhere.md"), ("and so on " * 11, "sentence"),
])  # fmt: skip
def test_what_is_not_so_is_found(broken, said, place):
    page = ROOT / "docs" / "broken.md"
    try:
        complaints = [wrong_block(block, page, place) for block in blocks(page, broken)] + wrong_text(page, broken)
    except ValueError as error:
        complaints = [str(error)]
    assert said in " ".join(complaints)


def shown(page: str) -> str:
    return [block.text for block in blocks(ROOT / "docs" / page) if block.kind == "text"][-1]


def test_the_files_of_a_run_are_those_that_the_page_names(files):
    tried = TinyRun(files, "generators", "flux", "algorithm=flow_grpo", "validation.every=1", name="shown")
    tried.train()
    lines = shown("recovery.md").splitlines()[1:]
    named = {re.match(r"  ([\w.]+)", line)[1] for line in lines} | set(re.findall(r"(\w+)/ those", "\n".join(lines)))
    written = {path.name for path in tried.output.iterdir() if not path.name.startswith(".")}
    assert {"config.yaml", "metrics.jsonl", "checkpoints", "validation"} <= written <= named


def test_a_reward_service_answers_so():
    asked, answered, health, _ = shown("judges.md").splitlines()
    body, reply = (json.loads(line[line.index("{") :].replace(", ...", "")) for line in (asked, answered))
    with served("numeric") as service:
        assert post(f"{service.url}/score", body)[:2] == (200, reply)
        status, said = get(f"{service.url}/health")
        assert (status, json.loads(said)) == (200, json.loads(re.search(r"\{.*\}", health)[0]))
