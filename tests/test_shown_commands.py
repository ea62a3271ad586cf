"""Every command that trains and is shown in a page or an example is accepted word for word."""

from __future__ import annotations

import os

import pytest
import yaml

from burnish.cli import VERBS
from burnish.config import RunConfig, load
from burnish.config.load import recipe_names
from tests.support.shown import MINE, ROOT, commands, own_recipe, words

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples" / "slurm.sbatch"]
MANIFEST = yaml.safe_load((ROOT / "examples" / "kuberay.yaml").read_text())
SHOWN = [(page.name, command) for page in PAGES for command in commands(page.read_text())]
SHOWN.append(("kuberay.yaml", MANIFEST["spec"]["entrypoint"]))
KNOWN = {*recipe_names(), MINE}


def trains(command: str) -> bool:
    verb, *rest = words(command)
    return verb == "train" and os.path.basename(rest[0]) in KNOWN and not {"--sweep", "..."} & set(rest)


TRAINS = [(page, command) for page, command in SHOWN if trains(command)]


def loaded(command: str, folder) -> RunConfig:
    _, recipe, *overrides = words(command)
    recipe = str(own_recipe(folder)) if os.path.basename(recipe) == MINE else recipe
    return load(recipe, overrides)


def example(name: str) -> str:
    (command,) = [command for page, command in TRAINS if page == name]
    return command


@pytest.mark.parametrize(("page", "command"), SHOWN)
def test_its_verb_is_one(page, command):
    assert words(command)[0] in VERBS


@pytest.mark.parametrize(("page", "command"), TRAINS)
def test_its_options_are_accepted(page, command, tmp_path):
    given = {word.split("=", 1)[0] for word in words(command)[2:]}
    loaded(command, tmp_path).check(given)


def test_pages_about_clusters_show_commands():
    pages = [page for page, _ in TRAINS]
    assert {"scaling.md", "pools.md", "asynchronous.md", "slurm.sbatch", "kuberay.yaml"} <= set(pages)


@pytest.mark.parametrize(("name", "where"), [("slurm.sbatch", "slurm"), ("kuberay.yaml", "kubernetes")])
def test_the_pools_of_an_example_fit_its_machines(name, where, tmp_path):
    pytest.importorskip("ray")
    from burnish.runtime.capacity import Node, lacking, needs

    config = loaded(example(name), tmp_path)
    nodes = [Node(*machine) for machine in (slurm() if where == "slurm" else kubernetes())]
    assert lacking(needs(config.pools, gpus_there=True), nodes) == []
    assert lacking(needs(config.pools, gpus_there=True), nodes[1:]) != [], "a machine of the example does nothing"


def slurm() -> list[tuple[str, float, float]]:
    """The machines that the script asks Slurm for: address, CPUs, GPUs."""
    text = (ROOT / "examples" / "slurm.sbatch").read_text()
    asked = dict(
        line.removeprefix("#SBATCH --").split("#")[0].strip().partition("=")[::2]
        for line in text.splitlines()
        if line.startswith("#SBATCH")
    )
    cpus, gpus = float(asked["cpus-per-task"]), float(asked["gpus-per-node"])
    return [(f"10.0.0.{i}", cpus, gpus) for i in range(int(asked["nodes"]))]


def kubernetes() -> list[tuple[str, float, float]]:
    """The pods that the manifest asks Kubernetes for, without the head, which holds no workers."""
    nodes = []
    for group in MANIFEST["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        (container,) = group["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        for i in range(group["replicas"]):
            nodes.append((f"{group['groupName']} {i}", float(limits["cpu"]), float(limits["nvidia.com/gpu"])))
    return nodes
