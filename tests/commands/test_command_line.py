"""The command line: what is said at once, what a slip is answered with, exit codes, and what completes in a shell."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from burnish import cli
from burnish.registry import register
from burnish.rewards.base import Reward, Score
from tests.support.tiny_run import burnish

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
HEAVY = ("torch", "diffusers", "transformers", "peft", "onnxruntime", "pydantic", "numpy", "yaml")

# each command line in a process that forks from one that has imported nothing
FORKED = """
import json, os, sys
from burnish.cli import main
HEAVY, LINES = json.loads(sys.argv[1])
SLOW = {"torch", "diffusers", "transformers", "peft", "ray", "vllm", "onnxruntime", "matplotlib"}
for line in LINES:
    if os.fork():
        assert os.wait()[1] == 0, line
        continue
    class Watch:
        first = None
        def __getattr__(self, name): return getattr(sys.__stdout__, name)
        def write(self, text):
            if Watch.first is None: Watch.first = [name for name in HEAVY if name in sys.modules]
            return len(text)
        def flush(self): pass
    sys.stdout = sys.stderr = Watch()
    try: code = main(line)
    except SystemExit as end: code = end.code
    print(json.dumps([line, code, Watch.first, sorted(SLOW & sys.modules.keys())]), file=sys.__stdout__, flush=True)
    os._exit(0)
"""


def in_fresh_processes(lines, folder):
    """Of each command line: its exit code, what was imported before it said anything, and what slow was at all."""
    done = subprocess.run([sys.executable, "-c", FORKED, json.dumps([HEAVY, lines])], capture_output=True, text=True,
                          env=ENVIRONMENT, cwd=folder, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


REFUSED = [
    ["train", "nothing"], ["train", "quickstart", "algorithm.no_such=1"],
    ["train", "qwen25_vl/grpo", "model.device=cpu"],
    ["plan", "quickstart", "rewards.mine={name: function, path: 'absent.py:f'}"],
]  # fmt: skip


def test_a_command_says_something_before_anything_slow_is_imported_and_refuses_without_torch(tmp_path):
    """Seconds depend on the machine; what is imported doesn't."""
    helps = [["--help"], ["train", "--help"]]
    completion = ["completion", "zsh", "--", "train", "quickstart", "seed"]
    *found, completed = in_fresh_processes([*REFUSED, *helps, completion], tmp_path)
    assert found == [[line, 2, [], []] for line in REFUSED] + [[line, 0, [], []] for line in helps]
    assert completed[1::2] == [0, []]
    values = {"data.shuffle": ["true", "false"], "checkpoint.copy_to": ["null"], "data.fit": ["exact", "centre_crop"]}
    for option, some in values.items():
        said = burnish("completion", "zsh", "--", "train", "quickstart", f"{option}=").out
        assert said.split() == [f"{option}={value}" for value in some]


@pytest.mark.parametrize("verb", ["", *cli.VERBS])
def test_help_teaches_by_example_within_80_columns(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        cli.main([*verb.split(), "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert f"  burnish {verb}" in text
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert verb or "75" in text  # exit codes


COMPLETED = yaml.safe_load(Path(__file__).with_name("completed.yaml").read_text())
SLIPS = yaml.safe_load((ROOT / "tests/refusals/slips.yaml").read_text())


@pytest.mark.parametrize("line", SLIPS)
def test_a_slip_is_answered_with_what_was_meant(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = burnish(*line.split(), status=2).message
    assert [word for word in SLIPS[line] if word not in said] == [], said
    assert not list(tmp_path.iterdir())


class PanicException(BaseException):
    """As that of tokenizers, which are written in Rust."""


class OutOfMemoryError(RuntimeError):
    """As torch's, which is known by its name: no command line imports torch to be told that it failed."""


ENDS = {
    "interrupted": (KeyboardInterrupt(), 130, "interrupted"), "no memory": (MemoryError(), 2, "rollout.batch_size"),
    "no memory of a GPU": (OutOfMemoryError("CUDA out of memory. Tried 20.00 GiB."), 2, "20.00 GiB"),
    "no memory of a CPU": (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9"), 2, "out of memory"),
    "a panic": (PanicException("no entry found"), 2, "(no entry found); one of its files is damaged"),
    "ours": (ValueError("ours"), None, ""),
}  # fmt: skip


@pytest.mark.parametrize(("error", "code", "words"), ENDS.values(), ids=list(ENDS))
def test_what_ends_a_command_without_a_traceback(tmp_path, error, code, words):
    @register("flow reward", "failing")
    class Failing(Reward):
        """Fails as it is told to."""

        def score(self, images, prompts):
            return [Score(1.0) for _ in images]

        def check(self, prompts):
            raise error

    words_ = ["check-reward", "failing"]
    if code is None:
        with pytest.raises(ValueError, match="ours"):
            burnish(*words_)
    else:
        assert words in burnish(*words_, status=code).message


# completion


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with runs, a recipe, and names that a shell would take for more."""
    monkeypatch.chdir(tmp_path)
    for name in ("runs/a", "runs/b", "$(touch x)", "a b"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("runs/a", "runs/b"):
        (tmp_path / name / "config.yaml").write_text("{}")
    (tmp_path / "mine.yaml").write_text("extends: quickstart\nplugins: [does_not_exist_and_would_fail.py]\n")
    return tmp_path


@pytest.mark.parametrize("line", COMPLETED)
def test_what_may_come_next(place, line):
    assert burnish("completion", "zsh", "--", *line.split(" ")).out.split() == COMPLETED[line].split()
