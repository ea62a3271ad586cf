import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from burnish import __version__, cli
from burnish.utils.errors import UserError

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "diffusers", "transformers", "peft", "onnxruntime")


def after(code, *heavy):
    """Run Python; say which of some modules it imported."""
    program = f"import sys\n{code}\nprint([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    return done.stderr.strip().splitlines()[-1], done


@pytest.mark.parametrize("argv", [["--help"], ["--version"], *([verb, "--help"] for verb in cli.VERBS)])
def test_help_imports_nothing_that_takes_time(argv):
    code = f"from burnish.cli import main\ntry: main({argv!r})\nexcept SystemExit as end: assert end.code == 0"
    imported, done = after(code, *HEAVY, "pydantic", "numpy", "rich", "yaml")
    assert imported == "[]"
    assert done.stdout


def test_a_refused_configuration_never_imports_torch(recipe):
    code = f"from burnish.cli import main\nassert main(['train', {recipe!r}, 'lr=3', 'model.family=x']) == 2"
    imported, done = after(code, *HEAVY)
    assert imported == "[]"
    assert "did you mean optimizer.lr" in done.stderr


FIRST = """
import sys
class Watch:
    def __init__(self, stream): self.stream, self.first = stream, None
    def __getattr__(self, name): return getattr(self.stream, name)
    def write(self, text):
        global first
        if first is None: first = [name for name in HEAVY if name in sys.modules]
        return self.stream.write(text)
first = None
sys.stdout, sys.stderr = Watch(sys.stdout), Watch(sys.stderr)
from burnish.cli import main
main(ARGV)
print(first, "torch" in sys.modules, file=sys.__stderr__)
"""


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "nothing"], ["train", "nothing", "--sweep"], ["eval", "nothing"], ["sample", "nothing", "a cat"],
        ["export", "nothing", "-o", "x"], ["push", "nothing", "--to", "a/b"], ["pairs", "nothing", "-o", "x"],
        ["report", "nothing"], ["runs", "nothing"], ["compare", "a", "b"], ["board", "nothing"], ["data", "show", "x"],
        ["recipes", "nothing"], ["config", "nothing"], ["plan", "nothing"], ["plan", "quickstart", "rollout.m=1"],
        ["eval", "quickstart", "rollout.m=1"], ["tiny", "nothing", "x"], ["serve-reward", "nothing"],
        ["check-reward", "nothing"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_command_says_something_before_anything_slow_is_imported_and_refuses_without_torch(argv, tmp_path):
    """Seconds depend on the machine; what is imported doesn't."""
    program = f"ARGV, HEAVY = {argv!r}, {(*HEAVY, 'pydantic', 'numpy', 'yaml')!r}{FIRST}"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[] False"


def test_a_recipe_is_explained_without_torch(recipe):
    imported, done = after(f"from burnish.cli import main\nassert main(['config', {recipe!r}]) == 0", *HEAVY)
    assert imported == "[]"
    assert "steps: " in done.stdout


def test_refused_as_a_program():
    command = [sys.executable, "-m", "burnish.cli", "train", "quickstart", "rollout.n=x"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "burnish: error: " in done.stderr
    assert "rollout.n is x" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_teaches_by_example_and_documents_exit_codes(verb, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([verb, "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert f"  burnish {verb}" in text
    assert "75" in text


def test_the_version(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["trian"], ["'trian'", "did you mean 'train'"]),
        (["train"], ["RECIPE", "--help"]),
        (["train", "quickstart", "--seed", "3"], ["--seed", "burnish train --help"]),
        (["--verbose"], ["--verbose"]),
        (["sample", "runs/x"], ["no prompt is given", "--prompt-file"]),
        (["sample", "runs/x", "a", "--steps", "0"], ["--steps", "'0'", ">= 1"]),
        (["sample", "runs/x", "a", "--guidance", "0.5"], ["--guidance", "'0.5'", ">= 1"]),
        (["sample", "runs/x", "a", "--seed", "-1"], ["--seed", "'-1'", ">= 0"]),
        (["export", "runs/x"], ["--output"]),
        (["export", "runs/x", "-o", "y", "--format", "gguf"], ["gguf", "merged", "lora"]),
    ],
)
def test_a_bad_command_line_is_one_message(argv, words, capsys):
    assert cli.main(argv) == 2
    message = capsys.readouterr().err
    for word in words:
        assert word in message


def test_nothing_at_all_shows_the_help(capsys):
    assert cli.main([]) == 2
    assert "burnish train quickstart" in capsys.readouterr().out


@pytest.fixture
def called(monkeypatch):
    """Commands that only note how they were called."""
    calls = []
    for module, name in ({n: n for n in ("train", "evaluate", "sample", "export")} | {"show": "report"}).items():
        stub = types.ModuleType(f"burnish.commands.{module}")
        setattr(stub, name, lambda *args, **kwargs: calls.append((args, kwargs)) or 0)
        monkeypatch.setitem(sys.modules, f"burnish.commands.{module}", stub)
    for variable in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(variable, "restored by the fixture")
        monkeypatch.delenv(variable)
    return calls


def test_train_gets_a_configuration_and_quiet_threads(recipe, called):
    assert cli.main(["train", recipe, "threads=2"]) == 0
    ((config, _), _) = called[0]
    assert config.threads == 2
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


def test_the_other_commands_get_what_was_asked_for(called):
    assert cli.main(["eval", "runs/x", "-o", "out.json", "validation.n=2"]) == 0
    assert (
        cli.main(
            [
                "sample",
                "runs/x",
                "--steps",
                "3",
                "a b",
                "-n",
                "2",
                "c",
                "--guidance",
                "2.5",
                "--seed",
                "9",
                "--solver",
                "heun",
            ]
        )
        == 0
    )
    assert cli.main(["export", "runs/x", "-o", "y", "--format", "merged", "--dtype", "float32"]) == 0
    assert cli.main(["report", "runs/x"]) == 0
    none = {"suite": None, "shard": None, "merged": None, "compared": None, "list_all": False}
    assert called[0] == ((), {"source": "runs/x", "overrides": ["validation.n=2"], "output": "out.json"} | none)
    sizes = {
        "height": None,
        "width": None,
        "frames": None,
        "images": [],
        "videos": [],
        "audios": [],
        "prompt_file": None,
        "output": "samples",
    }
    asked = {
        "source": "runs/x",
        "prompts": ["a b", "c"],
        "n": 2,
        "steps": 3,
        "guidance": 2.5,
        "solver": "heun",
        "seed": 9,
    }
    assert called[1] == ((), sizes | asked)
    assert called[2] == ((), {"run": "runs/x", "output": "y", "what": "merged", "dtype": "float32"})
    assert called[3] == ((), {"run": "runs/x"})


@pytest.mark.parametrize(("error", "code"), [(UserError("x is 3; [use] 4"), 2), (KeyboardInterrupt(), 130)])
def test_what_ends_a_command_without_a_traceback(called, monkeypatch, capsys, error, code):
    def fail(run):
        raise error

    monkeypatch.setattr(sys.modules["burnish.commands.show"], "report", fail)
    assert cli.main(["report", "runs/x"]) == code
    assert ("x is 3; [use] 4" in capsys.readouterr().err) == (code == 2)


class OutOfMemoryError(RuntimeError):
    """As torch's, which is known by its name: no command line imports torch to be told that it failed."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:129] DefaultCPUAllocator: can't allocate memory: you tried 9"),
    ],
)
def test_memory_that_has_run_out_is_told_with_what_needs_less(called, monkeypatch, capsys, error):
    def fail(run):
        raise error

    monkeypatch.setattr(sys.modules["burnish.commands.show"], "report", fail)
    assert cli.main(["report", "runs/x"]) == 2
    said = capsys.readouterr().err
    assert "out of memory" in said
    assert "rollout.batch_size" in said


def test_our_own_mistakes_keep_their_traceback(called, monkeypatch):
    def fail(run):
        raise ValueError("ours")

    monkeypatch.setattr(sys.modules["burnish.commands.show"], "report", fail)
    with pytest.raises(ValueError, match="ours"):
        cli.main(["report", "runs/x"])


def test_recipes_lists_every_recipe_with_its_first_line(capsys):
    assert cli.main(["recipes"]) == 0
    shown = capsys.readouterr().out
    assert "quickstart" in shown
    assert "learns to write" in shown


def test_config_prints_a_recipe(recipe, tmp_path, capsys):
    from burnish.config import load

    assert cli.main(["config", recipe, "rollout.n=16"]) == 0
    saved = tmp_path / "saved.yaml"
    saved.write_text(capsys.readouterr().out)
    assert load(str(saved)) == load(recipe, ["rollout.n=16"])


def test_config_explains_what_is_not_here_yet_and_says_so(recipe, tmp_path, capsys):
    from burnish.config import load

    gone = "data.train_files=gone.txt"
    assert cli.main(["config", recipe, gone]) == 0
    shown = capsys.readouterr().out
    assert "# Before burnish train can start here:\n#   - data.train_files is gone.txt, which is not there" in shown
    saved = tmp_path / "saved.yaml"
    saved.write_text(shown)
    assert load(str(saved)) == load(recipe, [gone]), "it is a recipe nonetheless"
    assert cli.main(["train", recipe, gone]) == 2
    assert "gone.txt" in capsys.readouterr().err


def test_config_refuses_what_contradicts_itself(recipe, capsys):
    assert cli.main(["config", recipe, "rollout.n=many"]) == 2
    assert "rollout.n is many" in capsys.readouterr().err


def test_help_speaks_of_both_kinds_of_models(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "models that draw and models that see" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["train", "quickstart", "--seed", "3"], "seed=3"),
        (["train", "quickstart", "--optimizer.lr=1e-3"], "optimizer.lr=1e-3"),
        (["train", "quickstrat"], "did you mean quickstart"),
        (["train"], "required: RECIPE;"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(given, said, capsys):
    assert cli.main(given) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert said in told
    assert len(told) < 250


def test_recipes_are_filtered_by_a_word(capsys):
    assert cli.main(["recipes", "geometry3k"]) == 0
    printed = capsys.readouterr().out
    assert "qwen25_vl/grpo" in printed
    assert "sd35" not in printed
    assert cli.main(["recipes", "nothing like it"]) == 2


def test_a_tokenizer_that_panics_is_a_damaged_file(monkeypatch, capsys, tmp_path):
    from tokenizers import Tokenizer

    spec = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"version": "1.0", "added_tokens": [], "normalizer": spec, "model": model}))
    monkeypatch.setattr(cli, "_run", lambda arguments: Tokenizer.from_file(str(file)) and 0)
    assert cli.main(["doctor"]) == 2
    assert "fetch the model again" in capsys.readouterr().err
