"""What the README shows is accepted word for word."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from burnish.cli import VERBS
from burnish.config import load

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("burnish ")]


def test_the_recipe_of_the_readme_is_a_recipe(tmp_path):
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "my_recipe.yaml").write_text(block)
    config = load(str(tmp_path / "my_recipe.yaml"), [])
    config.check()
    assert config.algorithm.name == "flow_grpo"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_readme_is_understood(command):
    _, verb, *arguments = shlex.split(command)
    assert verb in VERBS
    if verb == "train" and "--sweep" not in arguments:
        load(arguments[0], arguments[1:]).check()


def test_every_file_that_the_readme_links_to_is_there():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert len(links) > 5
    for link in links:
        assert (ROOT / link.partition("#")[0]).exists(), link
