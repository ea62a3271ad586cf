"""What a reader is told to type or to run works: pages on one's own parts, examples, the notebook, the site."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import burnish
from burnish.config.foreign import projects, trainers
from burnish.config.yaml_text import parse
from tests.documents.newcomer import follow, here
from tests.support.shown import OWN_PAGES, ROOT, commands, forgotten, recipe_names, words
from tests.support.tiny_run import burnish as run

BENCHMARKS = ["checkpoints", "flops", "flow_grpo_settings", "language", "loading", "overhead", "pipeline", "precision",
              "real_model", "restart", "scoring", "step_time"]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs_and_what_it_writes_can_be_read(name, tmp_path):
    output = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--smoke", "--output", str(output)],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert result["threads"] == 1
    assert all(row["name"] in done.stdout for row in result["rows"])
    numbers = [value for row in result["rows"] for value in row.values() if isinstance(value, float)]
    assert numbers
    assert all(0 <= value < float("inf") for value in numbers)


EXAMPLE = ROOT / "examples" / "tiny_flow_grpo.py"
DIGITS = {"TRAIN": "burnish:vlm_quickstart/train.jsonl", "HELDOUT": "burnish:vlm_quickstart/turned_heldout.jsonl"}
NOTEBOOKS: dict[str, dict[str, Any]] = {  # what names in their cells are here
    "quickstart": {"STEPS": 1, "PROMPTS": 2}, "sdxl": {"MODEL": "tiny", "SIZE": 64, "STEPS": 1},
    "qwen25_vl": {"MODEL": "tiny", "TOKENS": 8, "STEPS": 1} | DIGITS,
}  # fmt: skip
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120",
    "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "MPLBACKEND": "agg", "HF_HUB_OFFLINE": "1",
    "NO_MKDOCS_2_WARNING": "1",
}  # fmt: skip


def python(folder: Path, *arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("page", OWN_PAGES, ids=lambda page: page.stem)
def test_what_a_page_on_your_own_says_works_from_top_to_bottom(page, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with capfd.disabled(), forgotten():
        assert follow(page, here) > 2


@pytest.mark.thorough
def test_the_commands_on_tiny_models_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data/pickscore").mkdir(parents=True)
    for name in ("train", "test"):
        Path(f"data/pickscore/{name}.jsonl").write_text('{"prompt": "a red fox"}\n{"prompt": "two apples"}\n')
    section = (ROOT / "docs" / "models.md").read_text().partition("## Tiny models")[2].partition("\n## ")[0]
    shown = commands(section)
    assert [words(line)[0] for line in shown] == ["tiny"] * 5 + ["train", "sample"]
    for line in shown:
        run(*words(line))
    assert [*Path("clips").glob("*.mp4"), *Path("clips").glob("*.webp")]


@pytest.mark.thorough
def test_the_example_in_one_file_learns_without_leaving_the_data(tmp_path):
    said = python(tmp_path, EXAMPLE)
    found = re.findall(r"(before|after): reward ([\d.-]+), distance to the nearest spot ([\d.]+)", said)
    (before, reward, near), (after, more, far) = found
    assert (before, after) == ("before", "after")
    assert 0.15 < float(reward) < 0.35  # a generator that does not listen is right once in four times
    assert float(more) > 0.85
    assert float(far) < float(near) + 0.15  # without the KL it is 0.6 further


def program(name: str, given: dict[str, Any]) -> str:
    """The code cells of a notebook as one program; what only a notebook knows is left out."""
    cells = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    text = "\n\n".join(re.sub(r"^(\s*)%.*$", r"\1pass", cell, flags=re.M) for cell in code)
    for variable, value in given.items():
        text, count = re.subn(rf"^{variable} = .*$", f"{variable} = {value!r}", text, flags=re.M)
        assert count == 1, variable
    return f"display = print\n{text}"


@pytest.mark.thorough
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_cells_of_a_notebook_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("tiny", {"qwen25_vl": "qwen2_5_vl"}.get(name, "sdxl"), "tiny")
    said = python(tmp_path, "-c", program(name, NOTEBOOKS[name]))
    folder = next((tmp_path / "runs").iterdir())
    assert (folder / "report.html").exists()
    if name == "quickstart":
        assert re.search(r"held-out numbers: [\d.]+ before, [\d.]+ after 1 updates", said)
        assert "weights" in said.splitlines()[-1]
        assert (tmp_path / "my_model" / "model_index.json").exists()
    else:
        assert "It fits into" in said
        assert "safetensors" in said.splitlines()[-1]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["sdxl", "qwen25_vl"])
def test_the_published_model_of_a_notebook_fits_the_card_that_it_names(name, tmp_path):
    data = {variable: value for variable, value in NOTEBOOKS[name].items() if variable in DIGITS}
    assert "It fits into" in python(tmp_path, "-c", program(name, data).partition("run = ")[0])


SEARCHED = parse((Path(__file__).parent / "searched.yaml").read_text())


def missed(site: Path) -> list[str]:
    """Queries that the site's search answers by other pages; as lunr.js does it, with the separator of mkdocs.yml."""
    lunr = pytest.importorskip("lunr", reason="needs lunr: pip install 'burnish[docs]'")
    parts = json.loads((site / "search" / "search_index.json").read_text())
    separator = re.compile(parts["config"]["separator"])

    def clean(text: str) -> str:
        return separator.sub(" ", re.sub(r"<[^>]+>", " ", text))

    fields = [{"field_name": "title", "boost": 1000}, {"field_name": "text", "boost": 1}]
    documents = [
        {"at": one["location"], **{key: clean(one[key]) for key in ("title", "text")}} for one in parts["docs"]
    ]
    index = lunr.lunr(ref="at", fields=fields, documents=documents)
    found = []
    for page, queries in SEARCHED.items():
        for query in queries:
            pages = list(dict.fromkeys(one["ref"].partition("#")[0] for one in index.search(clean(query))))
            if f"{page}.html" not in pages[:3]:
                found.append(f"{query}: {pages[:3]}")
    return found


@pytest.mark.thorough
def test_the_site_has_every_option_recipe_and_version_and_fetches_nothing(tmp_path):
    pytest.importorskip("mkdocs", reason="needs mkdocs: pip install 'burnish[docs]'")
    site, earlier = tmp_path / burnish.__version__, tmp_path / "0.0.1"
    earlier.mkdir()
    (earlier / "index.html").write_text("an earlier one")
    python(ROOT, "-m", "mkdocs", "build", "--strict", "--site-dir", site)
    pages = {page.relative_to(site).as_posix(): page.read_text() for page in site.rglob("*.html")}
    assert {"index.html", "changelog.html", "papers.html", "recipes.html"} <= pages.keys()
    fetching = r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?(https?://[^\"' >]+)"
    assert [name for name, text in pages.items() if re.search(fetching, text)] == []
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [version["version"] for version in listed] == [burnish.__version__, "0.0.1"]
    assert f"url={burnish.__version__}/index.html" in (tmp_path / "index.html").read_text()
    opening = pages["index.html"].partition("<h2")[0]
    assert re.findall(r'class="md-button[^"]*" href="([^"]+)"', opening) == ["quickstart.html", "recipes.html"]
    images = [Path(one).name for one in re.findall(r'<img [^>]*src="([^"]+)"', opening)]
    assert images == ["quickstart.png", "quickstart.svg", "board.png"]
    theirs = {name for project in projects() for name in trainers()[project].names}
    assert {name for name in theirs if f"<code>{name}</code>" not in pages["reference/foreign_names.html"]} == set()
    for option in ("optimizer.lr", "rollout.num_inference_steps", "rollout.max_new_tokens"):
        assert f"<code>{option}</code>" in pages["reference/options.html"]
    for name in recipe_names():
        folder, _, last = name.rpartition("/")
        text = pages["recipes.html"]
        part = text.partition(f"<code>{folder}/*</code>")[2].partition("</table>")[0] if folder else text
        assert f"<code>{last}</code>" in part, name
    assert "burnish.rl.surrogates" in pages["reference/mathematics.html"]
    assert missed(site) == []
