"""Fixtures that more than one folder of tests uses."""

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from burnish.registry import KINDS
from tests.support.optional import NEED_RAY
from tests.support.tiny_run import write_files

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported: no test asks the real hub

HERE = Path(__file__).parent
TABLES = ("plan/test_real_sizes.py", "system/test_tables.py")  # an hour and half an hour, if made thoroughly
FORKING = ("faults/test_ray.py", "runtime/test_workers.py")


class WithoutRay(pytest.Module):
    """A module of tests that is not even imported where Ray is not installed."""

    def collect(self):
        pytest.skip("needs Ray: pip install 'burnish[ray]'", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    if find_spec("ray") is None and module_path.relative_to(HERE).as_posix().startswith(NEED_RAY):
        return WithoutRay.from_parent(parent, path=module_path)
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Files whose workers of Ray are forks go to one process, which prepares them once; rows of tables to any."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "forks" if file.endswith(FORKING) else nodeid if file.endswith(TABLES) else file

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items):
    """Long files go first, so that short ones fill up what is left of the processors at the end."""
    long = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("cluster")}
    tables = TABLES if os.environ.get("BURNISH_THOROUGH") else ()
    items.sort(key=lambda item: (not item.path.as_posix().endswith(tables), item.path not in long))
    if not tables:
        for item in items:
            if item.get_closest_marker("thorough"):
                item.add_marker(pytest.mark.skip(reason="make thorough runs it"))


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Rewards, images and records of tiny runs; their models join them as they are needed."""
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    return folder


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that this process asks with a token, from an empty folder."""
    from tests.support.fake_hub import TOKEN, fake_hub, use

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with fake_hub() as made:
        use(monkeypatch, made, str(tmp_path / "cache"))
        yield made


@pytest.fixture(scope="session")
def forks(tmp_path_factory):
    """A process that has imported what workers of Ray import, so that they start at once as forks of it."""
    from tests.support.ray_runs import Forks

    found = Forks(tmp_path_factory.mktemp("forks"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def new_process():
    """Call a function in a process that has imported and computed nothing before, as measurements of memory need."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        yield lambda function, *arguments, **named: process.submit(function, *arguments, **named).result(300)


@pytest.fixture(autouse=True)
def signals_arrive():
    """Also where the suite runs under nohup or in the background, which whatever it starts would inherit."""
    kept = {one: signal.getsignal(one) for one in (signal.SIGHUP, signal.SIGINT)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for one, before in kept.items():
        signal.signal(one, before)


@pytest.fixture(autouse=True)
def what_ships_is_registered():
    """What a test adds to the names of recipes goes with it: others ask for every algorithm that there is."""
    before = {kind: set(there.entries) for kind, there in KINDS.items()}
    yield
    for kind, there in KINDS.items():
        for name in there.entries.keys() - before[kind]:
            if not there.entries[name].__module__.startswith("burnish."):
                del there.entries[name]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe that passes every check, with files that only look like a model and prompts, in the current folder."""
    quickstart = tmp_path / "assets" / "quickstart"
    (quickstart / "model").mkdir(parents=True)
    index = {"_class_name": "StableDiffusion3Pipeline"}
    (quickstart / "model" / "model_index.json").write_text(json.dumps(index))
    for name in ("train", "heldout"):
        (quickstart / f"{name}.jsonl").write_text('{"prompt": "the word 472", "answer": "472"}\n')
    recipe = tmp_path / "small.yaml"
    recipe.write_text(
        f"""\
# A small run.
model: {{path: {quickstart / "model"}, lora: {{rank: 16}}}}
data: {{train_files: {quickstart / "train.jsonl"}, val_files: {quickstart / "heldout.jsonl"}}}
algorithm: {{name: diffusion_nft, beta: 0.5}}
rewards: {{ocr: {{weight: 1.0}}, border_darkness: {{weight: 0}}}}
rollout: {{n: 12, num_inference_steps: 8}}
steps: 30
output_dir: {tmp_path / "run"}
variants:
  flow_grpo: {{steps: 40, optimizer: {{lr: 2e-3}}, algorithm: {{clip: 1e-3}}}}
"""
    )
    monkeypatch.chdir(tmp_path)
    return str(recipe)


@pytest.fixture
def settings_of_torch() -> Iterator[None]:
    """Of a script that sets them for its whole process."""
    import torch

    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
