"""Every option of every section of a language model's run is read by something that does not only check it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

import burnish.commands.train
from burnish.config import load
from burnish.config.language import LanguageConfig
from burnish.config.text import fields
from burnish.options import EmaOptions
from burnish.training.ema import decay_at
from burnish.utils.errors import ConfigError
from tests.support.options import options_of
from tests.support.tiny_language import tiny_language
from tests.support.tiny_recipes import reward, write_lines, write_recipe, write_rewards

# whoever reads these checks options, copies them or writes them down, and does nothing by them
CHECKS = ("/burnish/config/", "/burnish/options/", "/pydantic/", "dataclasses.py")
# what these runs don't read, and the test that shows what it does
ELSEWHERE = {
    "profiler.roles": "tests/training/test_profiling.py",  # of several processes
    "profiler.ranks": "tests/training/test_profiling.py",
    "profiler.worker": "tests/training/test_profiling.py",
    "profiler.controller": "tests/training/test_profiling.py",  # of Nsight Systems
    "profiler.max_entries": "tests/training/test_profiling.py",  # of a GPU
    "model.lora.revision": "tests/config/test_hub.py",  # of an adapter to go on from
    "model.tokenizer_revision": "tests/config/test_hub.py",  # of a tokenizer of the user's own
    "checkpoint.copy_keep": "tests/checkpoint/test_remote.py",  # of copies
    "checkpoint.wait": "tests/hooks/test_beside.py",
    "optimizer.warmup_steps": "tests/training/test_optimizer.py",  # read where options count updates of a warm-up
    "optimizer.warmup_ratio": "tests/training/test_optimizer.py",
    "critic.optimizer.warmup_steps": "tests/training/test_optimizer.py",
    "critic.optimizer.warmup_ratio": "tests/training/test_optimizer.py",
    "rollout.engine": "tests/system/test_language_options.py",  # read when options are checked
    "optimizer.schedule_updates": "tests/system/test_stopping.py",  # read where the configuration counts steps
    "critic.optimizer.schedule_updates": "tests/system/test_stopping.py",
    "rollout.n": "tests/commands/test_messages.py",  # read where the configuration counts samples
    "trainer.rollouts_per_update": "tests/commands/test_messages.py",
    "scoring.merge": "tests/rewards/test_failures.py",  # of processes
    "scoring.max_failures": "tests/rewards/test_failures.py",  # of rewards that fail
    "scoring.max_failure_share": "tests/rewards/test_failures.py",
    "plugins": "tests/system/test_plugins.py",  # opened before a configuration is read
    "trainer.max_skipped_updates": "tests/runs/test_language_traps.py",  # of losses that are not finite
    "validation.suite_prompts": "tests/runs/test_evaluation.py",  # read where there are suites
}
BASE = [
    "rollout.n=2", "rollout.max_new_tokens=3", "steps=2", "checkpoint.every=1", "checkpoint.keep_last=1",
    "scoring.processes=0", "validation.max_prompts=2", "optimizer.warmup_steps=1",
]  # fmt: skip
RUNS = {
    "own": [
        "algorithm=ppo", "trainer.mini_batch_size=2", "mixing.normalise.floor=0.1", "data.max_prompt_length=60",
        "data.overlong=filter", "ema.decay=0.5", "ptx.batch_size=1", "rollout.save.prompts=1",
        "profiler.steps=[1]", "trackers.tensorboard=true",
        "validation.save.prompts=1",
        *(f"{section}.{option}" for section in ("optimizer", "critic.optimizer") for option in
          ("name=muon", "schedule=cosine", "min_lr=1e-6")),
    ],
    "shared": [
        "algorithm=ppo", "critic.trunk=shared", "model.lora.rank=2", "data.val_files=null",
        "rollout.filter_groups.max_num_gen_batches=2", "model.quantization.weights=fp8_cast",
    ],
}  # fmt: skip
OPTIONS = options_of(LanguageConfig)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("options")
    tiny_language(folder / "llama", "llama")
    write_rewards(folder)
    asked = ("What?", [{"role": "user", "content": "Which?"}], "Why? " * 20, "Who?")
    questions = [{"prompt": prompt, "response": "y"} for prompt in asked]
    write_lines(folder / "questions.jsonl", questions)
    tree = {
        "task": "image-text-to-text",
        "model": {"path": str(folder / "llama"), "device": "cpu"},
        "data": {"train_files": str(folder / "questions.jsonl"), "val_files": str(folder / "questions.jsonl")},
        "rewards": {"odd": reward(folder, "odd")},
    }
    write_recipe(folder / "recipe.yaml", tree)
    return folder


def recording(kind: type, seen: set[tuple[type, str]]) -> Any:
    """``__getattribute__`` that notes who reads which option."""
    names = set(fields(kind))

    def read(self: Any, name: str) -> Any:
        if name in names and type(self) is kind:
            file = sys._getframe(1).f_code.co_filename.replace("\\", "/")
            if not any(part in file for part in CHECKS):
                seen.add((kind, name))
        return object.__getattribute__(self, name)

    return read


VLLM = {path for path in OPTIONS if path.startswith("rollout.vllm.")}  # tests/runs/test_vllm.py needs vLLM


def test_the_options_of_vllm_are_read_by_its_engine():
    source = (Path(__file__).parents[2] / "burnish" / "tasks" / "language" / "vllm" / "engine.py").read_text()
    assert VLLM
    for path in VLLM:
        assert f"options.{path.rpartition('.')[2]}" in source, path


TRACKED = {path for path in OPTIONS if path.startswith("trackers.") and path.count(".") == 2}


def test_the_options_of_trackers_are_read_by_them():
    package = Path(__file__).parents[2] / "burnish"
    assert TRACKED
    for path in TRACKED:
        _, tracker, option = path.split(".")
        reader = package / "hooks" / "trackers.py" if option == "name" else package / "trackers" / f"{tracker}.py"
        assert f'["{option}"]' in reader.read_text() or f'own.get("{option}")' in reader.read_text(), path


SEVERAL = {path for path in OPTIONS if path.startswith(("pipeline.", "sharding.", "pools.", "ray."))}


def test_the_options_of_several_processes_are_read_by_them():
    package = Path(__file__).parents[2] / "burnish"
    files = [*package.glob("runtime/*.py"), *package.glob("training/*.py"), package / "rollout" / "pipelined.py"]
    source = "".join(file.read_text() for file in files)
    for path in SEVERAL:
        assert f".{path.rpartition('.')[2]}" in source, path


def test_every_option_is_read(recipe, monkeypatch):
    seen: set[tuple[type, str]] = set()
    for kind in {kind for kind, _ in OPTIONS.values()}:
        monkeypatch.setattr(kind, "__getattribute__", recording(kind, seen), raising=False)
    for name, overrides in RUNS.items():
        output = recipe / name
        given = [*BASE, *overrides, f"output_dir={output}", "data.train_batch_size=2"]
        if name == "own":
            given.append(f"ptx.train_files={recipe / 'questions.jsonl'}")
        assert burnish.commands.train.train(load(str(recipe / "recipe.yaml"), given)) == 0
    unread = {path for path, option in OPTIONS.items() if option not in seen}
    growth = {path for path in OPTIONS if path.startswith("ema.")}
    assert unread - growth - VLLM - SEVERAL - TRACKED == set(ELSEWHERE)


def test_the_others_are_tested_elsewhere(recipe):
    for option, file in ELSEWHERE.items():
        assert option.rpartition(".")[2] in (Path(__file__).parents[2] / file).read_text()
    with pytest.raises(ConfigError, match=r"rollout\.engine is vllm and rollout\.vllm is null"):
        load(str(recipe / "recipe.yaml"), ["algorithm=grpo", "rollout.engine=vllm"])


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("constant", "decay", 0.5),
        ("power", "kind", "constant"),
        ("power", "warm_up", 3),
        ("linear", "initial", 0.5),
        ("cosine", "steps", 9),
        ("piecewise_linear", "flat", 2),
        ("piecewise_linear", "ramp", 0.1),
    ],
)
def test_every_option_of_the_average_changes_it(kind, name, value):
    assert {path.removeprefix("ema.") for path in OPTIONS if path.startswith("ema.")} == set(fields(EmaOptions))

    def growing(given):
        options = dataclasses.asdict(EmaOptions(**given))
        del options["offload"]  # where it lies; tests/pretend_gpu
        return [decay_at(step, **options) for step in range(5)]

    before = {"kind": kind}
    growth = [growing(given) for given in (before, before | {name: value})]
    assert growth[0] != growth[1]
