"""Workflows, templates and the recipe of a release name what exists, and ask for no more rights than they use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import burnish

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in sorted((GITHUB / "workflows").glob("*.yml"))}
FORMS = {
    path.name: yaml.safe_load(path.read_text())
    for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
    if path.name != "config.yml"
}
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
ON = True  # what YAML 1.1 makes of the key "on"
JOBS = [(file, name, job) for file, flow in WORKFLOWS.items() for name, job in flow["jobs"].items()]
STEPS = [(file, name, step) for file, name, job in JOBS for step in job.get("steps", [])]


def commands() -> list[str]:
    """Lines that workflows run, and that pages for contributors show."""
    found = [line for _, _, step in STEPS for line in step.get("run", "").splitlines()]
    found += [one["command"] for one in WORKFLOWS["ci.yml"]["jobs"]["test"]["strategy"]["matrix"]["include"]]
    pages = [
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *GITHUB.rglob("*.md"),
        *GITHUB.rglob("ISSUE_TEMPLATE/*.yml"),
    ]
    for page in pages:
        text = page.read_text()
        found += re.findall(r"`([^`\n]+)`", text)
        found += [line for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    return found


def test_commands_name_targets_and_files_that_exist():
    seen = set()
    for command in commands():
        words = [word for word in command.split("#")[0].split() if not re.fullmatch(r"[A-Z_]+=\S*", word)]
        if words[:1] == ["make"] and len(words) > 1:
            seen.add(words[1])
            assert words[1] in TARGETS, command
        for word in words:
            if re.match(r"(tools|tests|burnish|benchmarks|docs|examples|\.ci)/", word):
                seen.add(word)
                assert (ROOT / word.split("::")[0]).exists(), command
    assert {"test", "fast", ".ci/run", "tools/release_notes.py"} <= seen
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_foreign_actions_are_pinned_and_run_with_few_rights():
    assert STEPS
    lines = [line for path in (GITHUB / "workflows").glob("*.yml") for line in path.read_text().splitlines()]
    for line in lines:
        assert "secrets." not in line, "PyPI trusts the workflow itself, and GitHub its own token"
        if used := re.search(r"uses: (\S+)(.*)", line):
            assert re.fullmatch(r"\./\S+|[\w-]+/[\w-]+@[0-9a-f]{40}", used[1]), line
            assert used[1].startswith("./") or re.fullmatch(r" # v\d+\.\d+\.\d+", used[2]), line
    for file, flow in WORKFLOWS.items():
        assert flow["permissions"] == {"contents": "read"}, file
    rights = {(file, name): job["permissions"] for file, name, job in JOBS if "permissions" in job}
    needed = {"publish": {"id-token": "write"}, "announce": {"contents": "write"}}
    assert rights == {("release.yml", name): right for name, right in needed.items()}
    for file, name, job in JOBS:
        assert "uses" in job or job["timeout-minutes"] <= 60, (file, name)
    for _, name, step in STEPS:
        assert "checkout" not in step.get("uses", "") or step["with"] == {"persist-credentials": False}, name


def test_every_change_is_tested_and_newer_pushes_end_older_runs():
    flow = WORKFLOWS["ci.yml"]
    assert {"push", "pull_request", "workflow_call"} == flow[ON].keys()
    assert flow["concurrency"]["cancel-in-progress"] is True
    matrix = flow["jobs"]["test"]["strategy"]["matrix"]["include"]
    assert ".ci/run" in {one["command"] for one in matrix}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert [one["python"] for one in matrix] == claimed
    torch = flow["jobs"]["test"]["env"]["TORCH"].split()[0]
    assert f"TORCH ?= {torch}\n" in (ROOT / "Makefile").read_text()


def test_what_a_source_distribution_takes_along_exists():
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    missing = [name for name in targets["sdist"]["include"] if not (ROOT / name).exists()]
    assert not missing
    assert {one["core-metadata-version"] for one in targets.values()} == {"2.4"}, "what every uploader reads"


def test_a_release_is_tested_built_published_and_announced_in_this_order():
    flow = WORKFLOWS["release.yml"]
    assert flow[ON] == {"push": {"tags": ["v*"]}}
    assert flow["jobs"]["test"]["uses"] == "./.github/workflows/ci.yml"
    assert flow["jobs"]["publish"]["needs"] == ["test", "build"]
    assert flow["jobs"]["announce"]["needs"] == "publish"
    lines = [step["run"] for step in flow["jobs"]["build"]["steps"] if "run" in step]
    assert lines[0] == 'python tools/release_notes.py --tag "$GITHUB_REF_NAME" > release_notes.md'
    check = "python tools/release_check.py dist"
    assert lines[-3:] == ["python -m build --no-isolation", "python -m twine check --strict dist/*", check]
    made = (ROOT / "Makefile").read_text()
    assert f"$(BIN)/{lines[-3]}\n" in made, "what CI builds is what a release builds"
    assert f"$(BIN)/{check}\n" in made


@pytest.mark.parametrize("file", FORMS)
def test_forms_are_those_that_github_reads(file):
    form = FORMS[file]
    assert {"name", "description", "labels", "body"} == form.keys()
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in asked}) == len(asked) > 0
    for field in form["body"]:
        assert field["type"] in {"markdown", "input", "textarea", "dropdown", "checkboxes"}
        assert field["attributes"]["value" if field["type"] == "markdown" else "label"]
        assert field["type"] != "dropdown" or len(field["attributes"]["options"]) > 1
    assert any(field["validations"]["required"] for field in asked)


def run_notes(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "tools" / "release_notes.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def repository(tmp_path):
    """A changelog of two versions, of which the second is the package's."""
    for folder in ("tools", "burnish"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tools" / "release_notes.py").write_bytes((ROOT / "tools" / "release_notes.py").read_bytes())
    (tmp_path / "burnish" / "__init__.py").write_text('"""About."""\n\n__version__ = "0.3.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\nAll of it.\n\n## Unreleased\n\n- c\n\n## 0.3.0 - 2027-01-31\n\n### Added\n\n- b\n\n"
        "## 0.2.0 - 2026-12-24\n\n- a\n"
    )
    return tmp_path


def test_notes_are_the_section_of_the_version(repository):
    done = run_notes("--tag", "v0.3.0", root=repository)
    assert (done.returncode, done.stdout) == (0, "### Added\n\n- b\n"), done.stderr


@pytest.mark.parametrize(
    ("heading", "tag", "reason"),
    [
        ("## 0.3.0 - 2027-01-31", "v0.2.0", "the tag is v0.2.0, and the version of burnish/__init__.py is 0.3.0"),
        ("## 0.3.0 - 2027-01-31", "0.3.0", "tag v0.3.0"),
        ("## 0.3.0", "v0.3.0", "has no section '## 0.3.0 - YYYY-MM-DD'"),
        ("## 0.3.0 - unreleased", "v0.3.0", "has no section"),
        ("## 0.3.00 - 2027-01-31", "v0.3.0", "has no section"),
        ("## 0.3.0 - 2027-01-31\n\n## 0.2.9 - 2027-01-01", "v0.3.0", "is empty"),
    ],
)
def test_what_is_not_ready_is_refused(repository, heading, tag, reason):
    changelog = repository / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## 0.3.0 - 2027-01-31", heading))
    done = run_notes("--tag", tag, root=repository)
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr


def test_the_changelog_has_a_section_for_what_is_under_way_and_for_every_version():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    under_way = headings[0] == "Unreleased"
    found = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - \d{4}-\d{2}-\d{2}", heading) for heading in headings[under_way:]]
    assert all(found), headings
    versions = [tuple(map(int, one.groups())) for one in found]
    assert versions == sorted(versions, reverse=True)
    own = tuple(map(int, re.findall(r"\d+", burnish.__version__)[:3]))
    assert under_way or versions[0] == own, "the version of the package has no section"
    assert not versions or versions[0] <= own, "a version is released that the package does not have"


def test_a_target_of_make_is_made_whatever_files_are_called():
    """``make docs`` beside a folder ``docs`` would do nothing and say that it is up to date."""
    made = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", made, re.M)[1].split())
    assert set(re.findall(r"^([\w-]+):", made, re.M)) == phony
