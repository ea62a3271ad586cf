"""The Docker file names what exists: there is no Docker where the tests run."""

from __future__ import annotations

import re
import shlex
import tomllib
from itertools import pairwise

import pytest

from burnish.cli import VERBS
from tests.support.shown import ROOT

TEXT = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = [line.partition(" ")[::2] for line in TEXT.replace("\\\n", " ").splitlines() if line and line[0] != "#"]
KNOWN = {"FROM", "ARG", "COPY", "RUN", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
PAGE = (ROOT / "docs" / "install.md").read_text()


def values(instruction: str) -> list[str]:
    return [rest.strip() for name, rest in LINES if name == instruction]


def arguments() -> dict[str, str]:
    return {name: value.strip('"') for name, _, value in (one.partition("=") for one in values("ARG"))}


def test_it_begins_from_a_python_that_is_tested():
    assert {name for name, _ in LINES} <= KNOWN
    assert LINES[0][0] == "FROM"
    (base,) = values("FROM")
    version = re.fullmatch(r"python:(3\.\d+)-slim-\w+", base)
    assert version is not None
    assert f"Programming Language :: Python :: {version[1]}" in PROJECT["classifiers"]


def test_versions_and_extras_are_those_of_the_package():
    given = arguments()
    assert f"TORCH ?= {given['TORCH']}\n" in (ROOT / "Makefile").read_text()
    assert set(given["EXTRAS"].split(",")) <= PROJECT["optional-dependencies"].keys() - {"dev"}
    used = set(re.findall(r"\$\{(\w+)\}", TEXT))
    assert used == given.keys()


def test_what_it_copies_is_there_and_is_what_the_wheel_is_built_from():
    copied = [word for one in values("COPY") for word in one.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    assert {"pyproject.toml", "burnish", PROJECT["readme"], *PROJECT["license-files"]} == set(copied)
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert set(kept) == set(copied)
    for source in values("COPY"):
        *names, target = source.split()
        assert target.startswith("/src/")
        assert names != ["burnish"] or target == "/src/burnish", "a folder's content is copied, not the folder"


def test_what_it_starts_is_a_command():
    (entry,), (first,) = values("ENTRYPOINT"), values("CMD")
    assert entry == '["burnish"]'
    assert "burnish" in PROJECT["scripts"]
    assert first.strip('[]"') in VERBS


def test_it_runs_as_nobody_in_particular_and_fetches_nothing_else():
    assert values("USER") == ["1000:1000"]
    for command in values("RUN"):
        assert not re.search(r"curl|wget|git clone|http:|sudo|TOKEN|SECRET", command)
    assert "pip install --no-cache-dir ${TORCH}" in values("RUN")
    assert "TOKEN" not in TEXT


@pytest.mark.parametrize("command", re.findall(r"^docker (?:build|run) .*$", PAGE.replace("\\\n", " "), re.MULTILINE))
def test_commands_that_are_shown_fit_it(command):
    words = shlex.split(command, comments=True)
    if words[1] == "build":
        given = [word.partition("=")[0] for flag, word in pairwise(words) if flag == "--build-arg"]
        assert set(given) <= arguments().keys()
        assert words[-1] == "."
        return
    assert words[words.index("burnish") + 1] in VERBS
    mounts = [word.rpartition(":")[2] for flag, word in pairwise(words) if flag == "-v"]
    made = " ".join(values("RUN") + values("WORKDIR"))
    assert all(f"/{mount.split('/')[1]}" in made for mount in mounts)


def test_the_page_shows_how_it_is_built_and_run():
    assert {"build", "run"} <= set(re.findall(r"^docker (\w+) ", PAGE, re.MULTILINE))
