"""Commands of the examples for clusters are accepted word for word, and their pools fit the machines asked for."""

from __future__ import annotations

import pytest
import yaml

from burnish.config import RunConfig, load
from tests.support.command_lines import accept
from tests.support.shown import ROOT, blocks, commands, own_recipe, words

MANIFEST = yaml.safe_load((ROOT / "examples" / "kuberay.yaml").read_text())
TRAINS = {
    "slurm.sbatch": commands((ROOT / "examples" / "slurm.sbatch").read_text())[0],
    "kuberay.yaml": MANIFEST["spec"]["entrypoint"],
}


def loaded(command: str, folder) -> RunConfig:
    _, _, *overrides = words(command)
    return load(str(own_recipe(folder)), overrides)


@pytest.mark.parametrize("name", TRAINS)
def test_its_options_are_accepted(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own_recipe(tmp_path)
    accept(TRAINS[name].replace("/shared/my_recipe", "my_recipe"))  # a folder that all machines share


@pytest.mark.parametrize("page", ["scaling", "pools", "asynchronous"])
def test_pages_about_clusters_show_commands(page):
    assert [one for block in blocks(ROOT / "docs" / f"{page}.md") for one in commands(block.text)]


@pytest.mark.parametrize(("name", "where"), [("slurm.sbatch", "slurm"), ("kuberay.yaml", "kubernetes")])
def test_the_pools_of_an_example_fit_its_machines(name, where, tmp_path):
    pytest.importorskip("ray")
    from burnish.runtime.capacity import Node, lacking, needs

    config = loaded(TRAINS[name], tmp_path)
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
