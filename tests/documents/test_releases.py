"""Workflows, forms, the changelog and distributions name what exists, and ask for no more rights than they use."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.support.shown import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import release_check

GITHUB = ROOT / ".github"
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in sorted((GITHUB / "workflows").glob("*.yml"))}
JOBS = [(file, name, job) for file, flow in WORKFLOWS.items() for name, job in flow["jobs"].items()]
STEPS = [(file, name, step) for file, name, job in JOBS for step in job.get("steps", [])]


def test_foreign_actions_are_pinned_and_run_with_few_rights():
    lines = [line for path in (GITHUB / "workflows").glob("*.yml") for line in path.read_text().splitlines()]
    for line in lines:
        assert "secrets." not in line, "PyPI trusts the workflow itself, and GitHub its own token"
        if used := re.search(r"uses: (\S+)(.*)", line):
            assert re.fullmatch(r"\./\S+|[\w-]+/[\w-]+@[0-9a-f]{40}", used[1]), line
            assert used[1].startswith("./") or re.fullmatch(r" # v\d+\.\d+\.\d+", used[2]), line
    assert all(flow["permissions"] == {"contents": "read"} for flow in WORKFLOWS.values())
    rights = {(file, name): job["permissions"] for file, name, job in JOBS if "permissions" in job}
    needed = {"publish": {"id-token": "write"}, "announce": {"contents": "write"}}
    assert rights == {("release.yml", name): right for name, right in needed.items()}
    assert all("uses" in job or job["timeout-minutes"] <= 60 for _, _, job in JOBS)
    checkouts = [step for _, _, step in STEPS if "checkout" in step.get("uses", "")]
    assert checkouts
    assert all(step["with"] == {"persist-credentials": False} for step in checkouts)


@pytest.mark.parametrize(("heading", "tag", "reason"), [
    ("## 0.3.0 - 2027-01-31", "v0.3.0", ""), ("## 0.3.0 - 2027-01-31", "v0.2.0", "v0.2.0"),
    ("## 0.3.0 - 2027-01-31\n\n## 0.2.9 - 2027-01-01", "v0.3.0", "empty"),
])  # fmt: skip
def test_the_notes_of_a_release_are_the_section_of_its_version(tmp_path, heading, tag, reason):
    for folder in ("tools", "burnish"):
        (tmp_path / folder).mkdir()
    script = tmp_path / "tools" / "release_notes.py"
    shutil.copy(ROOT / "tools" / "release_notes.py", script)
    (tmp_path / "burnish" / "__init__.py").write_text('"""About."""\n\n__version__ = "0.3.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\nAll of it.\n\n## Unreleased\n\n- c\n\n{heading}\n\n### Added\n\n- b\n\n"
        "## 0.2.0 - 2026-12-24\n\n- a\n"
    )
    command = [sys.executable, str(script), "--tag", tag]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == ((1, "") if reason else (0, "### Added\n\n- b\n")), done.stderr
    assert reason in done.stderr


def build(folder: Path, target: Path, *more: str) -> None:
    if find_spec("build") is None or find_spec("hatchling") is None:
        pytest.skip("build is not installed")
    command = [sys.executable, "-m", "build", "--no-isolation", *more, "--outdir", str(target), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
def test_the_wheel_works_away_from_the_source_tree(tmp_path, capsys):
    """Built from the source distribution, as a release is; ``make release-check`` has an empty environment."""
    build(ROOT, tmp_path)
    release_check.check(tmp_path, beside=True, brief=True, updates=1)
    said = capsys.readouterr().out
    assert "none is missing" in said
    assert "burnish train quickstart: 1 updates" in said
    assert "its page is there" in said
