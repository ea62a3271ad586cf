"""No reference case is forgotten: each is tested somewhere, or ``README.md`` and ``lightrft.md`` say why not."""

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
FILES = ["correction", "credit", "ema", "flow", "losses", "metrics", "rewards"]
COUNT = 148  # of verl-omni 104, of the other diffusion projects 44


def ids(file: str) -> set[str]:
    return {c["id"] for c in json.loads((HERE / f"{file}.json").read_text())}


def explained(table: str) -> set[str]:
    return set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE))


def of(names: set[str], prefixes: set[str]) -> set[str]:
    return {name for name in names if name.startswith(tuple(prefixes))}


def test_every_case_is_tested_or_explained():
    names = {name for file in FILES for name in ids(file)}
    assert len(names) == COUNT
    sources = [path.read_text() for path in HERE.parent.rglob("test_*.py") if path != Path(__file__)]
    quoted = {text for one in sources if "tests.conformance" in one for text in re.findall(r'"([\w./-]+)"', one)}
    tested = of(names, {text for text in quoted if "/" in text or text in ("sde_step", "sde_sample", "sde_ode_limit")})
    listed = explained((HERE / "README.md").read_text().split("## Not tested")[1].split("\n## ")[0])
    assert names - tested == listed, "neither tested nor in tests/conformance/README.md, or both"


def test_every_case_of_lightrft_is_tested_or_explained():
    names = ids("lightrft")
    calls = re.findall(r"^@every\((.*)\)$", (HERE / "test_lightrft.py").read_text(), re.MULTILINE)
    tested = of(names, {text for call in calls for text in re.findall(r'"([^"]+)"', call)})
    assert names - tested == explained((HERE / "lightrft.md").read_text())
