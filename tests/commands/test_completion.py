"""``burnish completion``: what may come next in a command line, and the scripts that shells ask with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli import VERBS
from burnish.commands.completion import SCRIPTS, candidates, completion
from burnish.commands.sharing_arguments import SHELLS

COMMANDS = {name: verb.arguments for name, verb in VERBS.items()}


def after(*words: str) -> list[str]:
    return candidates(words, COMMANDS)


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


CASES = {
    "commands": (["tra"], ["train"]),
    "recipes": (["train", "quick"], ["quickstart"]),
    "recipes in folders": (["train", "sd35/flow_grpo_"], ["sd35/flow_grpo_fast"]),
    "files that are recipes": (["config", "mi"], ["mine.yaml"]),
    "sections": (["train", "quickstart", "valid"], ["validation."]),
    "options": (["train", "quickstart", "optimizer.sch"], ["optimizer.schedule=", "optimizer.schedule_updates="]),
    "options of a reward": (["train", "quickstart", "rewards.ocr.weight_"], ["rewards.ocr.weight_by="]),
    "algorithms": (["train", "quickstart", "algorithm=diffusion_n"], ["algorithm=diffusion_nft"]),
    "the chosen algorithm's": (["train", "quickstart", "algorithm=flow_grpo", "algorithm.wi"], ["algorithm.window."]),
    "values": (["train", "quickstart", "runtime=r"], ["runtime=ray"]),
    "options behind a flag": (["train", "--sweep", "quickstart", "thr"], ["threads="]),
    "a recipe with plugins": (["train", "mine.yaml", "thr"], ["threads="]),
    "flags": (["export", "runs/a", "--f"], ["--format"]),
    "choices": (["export", "runs/a", "--format", "l"], ["lora"]),
    "suites": (["eval", "runs/a", "--suite", "geneval2"], ["geneval2"]),
    "shells": (["completion", "f"], ["fish"]),
    "runs": (["export", "runs/"], ["runs/a", "runs/b"]),
    "folders that may hold runs": (["export", ""], ["runs/"]),
    "a file, which shells complete": (["export", "runs/a", "-o", ""], []),
    "too much": (["export", "runs/a", "runs/"], []),
    "an unknown command": (["trian", ""], []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_may_come_next(place, case):
    words, expected = CASES[case]
    assert after(*words) == expected


def test_there_is_a_script_for_every_shell(capsys):
    assert set(SCRIPTS) == set(SHELLS)
    for shell in SHELLS:
        assert completion(shell, [], COMMANDS) == 0
        assert f"burnish completion {shell} -- " in capsys.readouterr().out


@pytest.mark.parametrize(("line", "expected"), [
    ("burnish tr", "train"), ("burnish export ", "runs/"),
    ("burnish train quickstart algorithm=diffusion_n", "diffusion_nft"),
    ("burnish", "train"), ("burnish train 'quick", ""),
])  # fmt: skip
def test_bash_gives_its_line_and_gets_what_follows_its_word_breaks(place, capsys, line, expected):
    assert completion("bash", [line], COMMANDS) == 0
    assert capsys.readouterr().out.split("\n")[0] == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes(place):
    """The script in a real bash, which asks the real command."""
    (place / "bin").mkdir()
    (place / "bin" / "burnish").write_text(f'#!/bin/sh\nexec {sys.executable} -m burnish "$@"\n')
    (place / "bin" / "burnish").chmod(0o755)
    asked = (
        "source <(burnish completion bash); complete -p burnish >/dev/null || exit 1\n"
        'ask() { COMP_LINE="$1"; COMP_POINT=${#COMP_LINE}; _burnish_complete; echo "${COMPREPLY[@]}"; }\n'
        'ask "burnish export runs/"; ask "burnish train vlm_quickstart_t"\n'
    )
    env = os.environ | {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=60, cwd=place, env=env)
    assert done.stdout == "runs/a runs/b\nvlm_quickstart_turned\n", done.stderr


def test_a_key_press_imports_nothing_that_takes_time():
    code = (
        "import sys\nfrom burnish.cli import main\nmain(['completion', 'zsh', '--', 'train', 'qui'])\n"
        "main(['completion', 'zsh', '--', 'train', 'quickstart', 'rollout.n'])\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'peft', 'numpy', 'ray', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == ["quickstart", "rollout.n="]
