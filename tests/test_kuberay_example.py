"""The manifest for Kubernetes has the fields that KubeRay's RayJob knows, and they fit together."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
JOB = yaml.safe_load((ROOT / "examples" / "kuberay.yaml").read_text())
# of ray.io/v1 since KubeRay 1.5.1, for containers those that a manifest like this may need
KNOWN = {
    "RayJob": {"apiVersion", "kind", "metadata", "spec"},
    "RayJobSpec": {
        "activeDeadlineSeconds", "backoffLimit", "clusterSelector", "entrypoint", "entrypointNumCpus",
        "entrypointNumGpus", "entrypointResources", "jobId", "managedBy", "metadata", "rayClusterSpec",
        "runtimeEnvYAML", "shutdownAfterJobFinishes", "submissionMode", "submitterConfig", "submitterPodTemplate",
        "suspend",
        "ttlSecondsAfterFinished",
    },
    "RayClusterSpec": {
        "authOptions", "autoscalerOptions", "enableInTreeAutoscaling", "headGroupSpec", "headServiceAnnotations",
        "rayVersion", "suspend", "workerGroupSpecs",
    },
    "HeadGroupSpec": {"enableIngress", "headService", "rayStartParams", "serviceType", "template"},
    "WorkerGroupSpec": {
        "groupName", "maxReplicas", "minReplicas", "numOfHosts", "rayStartParams", "replicas", "scaleStrategy",
        "template",
    },
    "Container": {"args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "name", "ports",
                  "resources", "securityContext", "volumeMounts", "workingDir"},
}  # fmt: skip
QUANTITY = re.compile(r"\d+(\.\d+)?(m|[KMGT]i?)?")
CLUSTER = JOB["spec"]["rayClusterSpec"]
GROUPS = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]
PODS = [group["template"]["spec"] for group in GROUPS]


def test_it_is_a_ray_job():
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", JOB["metadata"]["name"])


def test_every_field_is_known():
    assert JOB.keys() == KNOWN["RayJob"]
    assert JOB["spec"].keys() <= KNOWN["RayJobSpec"]
    assert CLUSTER.keys() <= KNOWN["RayClusterSpec"]
    assert CLUSTER["headGroupSpec"].keys() <= KNOWN["HeadGroupSpec"]
    for group in CLUSTER["workerGroupSpecs"]:
        assert group.keys() <= KNOWN["WorkerGroupSpec"]
    for pod in PODS:
        for container in pod["containers"]:
            assert container.keys() <= KNOWN["Container"]


def test_every_group_is_complete():
    for group in CLUSTER["workerGroupSpecs"]:
        assert group["groupName"]
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in GROUPS:  # `ray start` takes texts only
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    for pod in PODS:
        (container,) = pod["containers"]
        assert container["image"]
        requested, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert all(QUANTITY.fullmatch(str(value)) for value in [*requested.values(), *limits.values()])
        assert requested == limits  # Kubernetes wants it so of GPUs; and no pod is ended for using what it asked for
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_no_worker_is_put_on_the_head():
    assert CLUSTER["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_paths_are_on_a_volume_that_every_pod_has():
    paths = [word.partition("=")[2] or word for word in JOB["spec"]["entrypoint"].split() if "/" in word]
    assert len(paths) == 2  # the recipe and output_dir
    for pod in PODS:
        (container,) = pod["containers"]
        mounts = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "shared"]
        assert mounts
        assert all(path.startswith(tuple(f"{mount}/" for mount in mounts)) for path in paths)


def test_the_entrypoint_needs_no_shell():
    # the job that submits it hands it to a shell of its own, in a pod without the volume
    assert not set(JOB["spec"]["entrypoint"]) & set("&|;<>$`\"'\n")


def test_its_version_of_ray_is_one_that_burnish_takes():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = [requirement for requirement in extras["ray"] if requirement.startswith("ray")]
    lowest, below = re.fullmatch(r"ray>=([\d.]+),<([\d.]+)", wanted).groups()
    assert parts(lowest) <= parts(CLUSTER["rayVersion"]) < parts(below)


def parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
