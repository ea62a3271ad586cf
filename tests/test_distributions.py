"""Wheel and source distribution, built by the commands of a release: complete, and of use elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import release_check

ROOT = Path(__file__).parents[1]
BUILDS = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("build") is None or find_spec("hatchling") is None, reason="build is not installed"),
]


def build(folder: Path, target: Path, *more: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *more, "--outdir", str(target), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


class TestBuilt:
    pytestmark = BUILDS

    def test_the_wheel_works_away_from_the_source_tree(self, distributions, capsys):
        """Built from the source distribution, as a release is; ``make release-check`` has an empty environment."""
        release_check.check(distributions, beside=True, brief=True, updates=1)
        said = capsys.readouterr().out
        assert "none is missing" in said
        assert "burnish train quickstart: 1 updates" in said
        assert "its page is there" in said

    def test_what_the_docker_file_copies_is_enough(self, tmp_path):
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            (tmp_path / "src" / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "src" / name)
        shutil.copytree(ROOT / "burnish", tmp_path / "src" / "burnish", ignore=shutil.ignore_patterns("__pycache__"))
        build(tmp_path / "src", tmp_path / "dist", "--wheel")
        (wheel,) = (tmp_path / "dist").glob("*.whl")
        release_check.check_contents(wheel, ROOT)


@pytest.fixture
def tree(tmp_path):
    """A package of two files, and what its wheel would hold."""
    package = tmp_path / "burnish"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (package / "page.html").write_text("<p>")
    (package / "__pycache__" / "x.pyc").write_text("")
    return tmp_path


def wheel(folder: Path, *names: str, version: str = "1.2.3") -> Path:
    with zipfile.ZipFile(folder / "burnish.whl", "w") as opened:
        for name in names:
            opened.writestr(name, "x")
        opened.writestr("burnish-1.2.3.dist-info/METADATA", f"Name: burnish\nVersion: {version}\n")
    return folder / "burnish.whl"


BOTH = ("burnish/__init__.py", "burnish/page.html")


def test_a_whole_wheel_is_fit(tree):
    release_check.check_contents(wheel(tree, *BOTH), tree)


@pytest.mark.parametrize(
    ("names", "version", "reason"),
    [
        (BOTH[:1], "1.2.3", "lacks 1 files of the package: burnish/page.html"),
        ((*BOTH, "burnish/.env"), "1.2.3", "has 1 files that the package has not: burnish/.env"),
        ((*BOTH, "tests/a.py"), "1.2.3", "tests/a.py"),
        (BOTH, "1.2.4", "says version 1.2.4, and burnish/__init__.py 1.2.3"),
    ],
)
def test_a_wheel_that_lacks_something_is_refused(tree, names, version, reason):
    with pytest.raises(release_check.Failed, match=reason):
        release_check.check_contents(wheel(tree, *names, version=version), tree)


def test_a_release_has_one_of_each(tmp_path):
    with pytest.raises(release_check.Failed, match="0 wheels and 0 source distributions"):
        release_check.check(tmp_path, beside=True, brief=True, updates=1)
