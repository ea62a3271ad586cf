"""Tables and figures of pages are those of recipes, algorithms, metrics and measurements."""

import json
import re
from collections import Counter

import burnish
from burnish.registry import names
from tests.golden.recorded import recorded
from tests.support.command_lines import known_options
from tests.support.shown import ROOT, recipe_names
from tests.support.tiny_run import TinyRun, is_time_column
from tools import hardware_table

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \| `(\w+)/\*` \| (\d+) \| (.+?) \| (.+?) \|$", README, re.M)
ALGORITHMS = names("flow algorithm")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_table_of_support_is_that_of_the_recipes():
    assert len(ROWS) == README.count("/*` |") > 8
    for _, folder, algorithms, gpus, needed in ROWS:
        recipes = [name for name in recipe_names() if name.startswith(f"{folder}/")]
        assert len({type(burnish.load(name).algorithm).name for name in recipes}) == int(algorithms), folder
        recipes = [name for name in recipes if hardware_table.hardware_of(name)[0].memory_gb == 80]
        stated = {one.gpus for name in recipes for one in hardware_table.hardware_of(name)}
        assert gpus == " or ".join(map(str, sorted(stated)))
        figures = [hardware_table.needs()[name] for name in recipes if name in hardware_table.needs()]
        assert needed == "–".join(map(str, sorted({round(min(figures)), round(max(figures))})))


def test_the_figures_of_the_readme_are_those_of_their_pages():
    ends = []
    for row in ("before", "after 60 updates of DiffusionNFT"):
        seeds = re.search(rf"^\| {row} \| \**([\d./ ]+)", page("quickstart.md"), re.M)[1].split("/")
        shares = [round(100 * float(share)) for share in seeds]
        assert len(shares) == 3
        ends.append(f"{min(shares)}–{max(shares)} %")
    assert f"rise from {ends[0]} to {ends[1]} (three seeds)" in " ".join(README.split())
    found = zip(*re.findall(r"^\| \d.*?\| (\d+ %) \| (\d+ %) \|", page("quickstart.md"), re.M), strict=True)
    for row, shares in zip(("before", "after 30 updates"), found, strict=True):
        assert f"| {row} | {' | '.join(shares)} |" in README


def test_the_table_of_hardware_is_that_of_the_recipes():
    assert hardware_table.updated(page("hardware.md")) == page("hardware.md"), "run: python tools/hardware_table.py"
    for name, hardware, taken in hardware_table.stated():
        assert not taken or burnish.load(name, *hardware_table.machine(hardware), *taken)


def is_named(option: str, text: str) -> bool:
    return re.search(rf"`[^`]*\b{option.rpartition('.')[2]}\b[^`]*`", text) is not None


def only_there(options: dict[str, set[str]]) -> dict[str, set[str]]:
    counts = Counter(option for own in options.values() for option in own)
    return {name: {option for option in own if counts[option] == 1} for name, own in options.items()}


FAMILIES = "\n".join(one.read_text() for one in DOCS.glob("algorithms/*.md") if not one.stem.startswith("language"))


def test_every_option_of_an_algorithm_is_explained_on_its_page_or_where_those_of_several_are():
    options = {
        name: {one for one in known_options("quickstart", f"algorithm={name}") if re.fullmatch(r"algorithm\.\w+", one)}
        for name in ALGORITHMS
    }
    everywhere = "\n".join(path.read_text() for path in DOCS.rglob("*.md"))
    assert [option for option in set().union(*options.values()) if not is_named(option, everywhere)] == []
    for name, own in only_there(options).items():
        (text,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", FAMILIES, re.M | re.S)
        assert [option for option in own if not is_named(option, text)] == [], name


TOP = {column.partition("/")[0] for record in recorded().values() for column in record["metrics"]}
TOP |= {"pipeline", "perf", "reward", "suite", "timing_s", "timing_per_image_ms", "timing_per_token_ms"}


def metrics_of_the_page() -> list[re.Pattern[str]]:
    """Names in its tables as patterns: what is in capitals stands for anything, and so do dots."""
    found: list[str] = []
    for line in page("metrics.md").partition("\n## Names of verl")[0].splitlines():
        row: list[str] = []
        section = ""
        for name in re.findall(r"`([^`]+)`", line.split("|")[1]) if line.startswith("| `") else []:
            if name.startswith("/"):  # an ending of all before it
                row += [f"{start}{name}" for start in row]
            elif "/" in name and name.partition("/")[0] in TOP:
                section = name.rpartition("/")[0]
                row.append(name)
            else:  # it lies beside the last one, or beside what that is in
                row += [f"{section}/{name}", *([f"{section.rpartition('/')[0]}/{name}"] if "/" in name else [])]
        found += row
    capitals = r"(?<![A-Za-z])(?:NAME|SOURCE|TASK|COLUMN|PHASE|K|N)(?![A-Za-z])"
    return [re.compile(re.sub(capitals, ".+", re.escape(name).replace(re.escape("..."), ".+"))) for name in found]


def unexplained(columns: set[str]) -> list[str]:
    patterns = metrics_of_the_page()
    return sorted(column for column in columns if not any(one.fullmatch(column) for one in patterns))


def test_what_golden_runs_log_is_explained():
    columns = {column for record in recorded().values() for column in record["metrics"]}
    assert {"critic/rewards/std_mean", "actor/ratio_std", "train/kept_groups"} <= columns
    assert unexplained(columns) == []


def test_what_a_run_logs_of_time_and_memory_is_explained(files, monkeypatch):
    monkeypatch.setattr("burnish.tasks.assembly.device_peak", lambda *_: 1e11)
    options = ["algorithm=grpo", "checkpoint.every=1", "validation.every=1"]
    tried = TinyRun(files, "language", "llama", *options)
    tried.train()
    lines = (tried.output / "metrics.jsonl").read_text().splitlines()
    columns = {column for line in lines for column in json.loads(line)}
    asked = {"training/epoch", "perf/mfu/actor", "perf/cpu_memory_gb/gen", "timing_s/save_checkpoint",
             "perf/throughput", "global_seqlen/mean", "response/aborted_ratio"}  # fmt: skip
    assert asked <= columns
    assert any(map(is_time_column, columns))
    assert unexplained(columns) == []
