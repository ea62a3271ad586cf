"""Configurations and scripts of other trainers become recipes, and nothing of them is lost in silence."""

import ast
import json
import re
from pathlib import Path

import pytest

import burnish
from burnish.config.foreign import read_entry, trainers
from burnish.config.yaml_text import parse
from burnish.utils.json_text import flattened
from tests.config.test_recipes import value_of
from tests.support.tiny_run import burnish as command

FOLDER = Path(__file__).parent / "foreign"
FILES = {name: own for path in sorted(FOLDER.iterdir()) for name, own in parse(path.read_text()).items()}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with all of them, in which commands are given."""
    monkeypatch.chdir(tmp_path)
    for name, own in FILES.items():
        Path(name.partition(":")[0]).write_text(own["text"])
    return tmp_path


def names_in(name, text):
    """The options of a YAML file, or of what the last command of a script gives itself."""
    if not name.endswith(".sh"):
        return {option.rpartition(".")[2] for option, _ in flattened(parse(text) if name.endswith(".yaml") else {})}
    command = re.sub(r"(?m)^\s*#.*", "", re.split(r" -m |--module | -- python3 ", text)[-1])
    names = r"(?<=[\s+])([a-z_]+\.[\w.]+)(?==)|(?<=\s--)(\w[\w.]+)"
    return {one or other for one, other in re.findall(names, command)} - {"config"}


@pytest.mark.parametrize("name", FILES)
def test_a_file_becomes_a_recipe_that_composes(files, name):
    own, before = FILES[name], sorted(files.iterdir())
    command("convert", name, "--output", "mine.yaml")
    assert sorted(files.iterdir()) == sorted([*before, files / "mine.yaml"]), "nothing else was written or run"
    text, config = (files / "mine.yaml").read_text(), burnish.load("mine.yaml", *own.get("words", []))
    assert {option: value_of(config, option) for option in own["options"]} == own["options"]
    assert f"burnish train mine.yaml {' '.join(own.get('words', []))}".strip() in text.split("\n#\n")[0]
    says = [f" of {own['project']} by Burnish ", *own["says"], *names_in(name, own["text"])]
    assert [one for one in says if one not in text] == []


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.stem)
def test_what_is_printed_is_what_is_written(files, path):
    name, own = next(iter(parse(path.read_text()).items()))
    command("convert", name, "--output", "mine.yaml")
    printed = command("convert", name, "--from", own["project"]).out.splitlines()
    assert printed[2:] == Path("mine.yaml").read_text().splitlines()[2:]


def test_the_table_can_be_computed():
    for project, trainer in trainers().items():
        for theirs, entry in trainer.names.items():
            for option, formula, _ in read_entry(entry)[0]:
                assert option
                ast.parse(formula or "this", mode="eval"), f"{project}: {theirs}"
        unknown = [name for name in trainer.defaults if trainer.look(name)[0] != "names"]
        assert unknown == [], project


REFUSED = parse(Path(__file__).with_name("not_converted.yaml").read_text())
REFUSED["deep.py"] = ["x = " + "(" * 500 + ")" * 500, ["deep.py"]]


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_converted_is_refused(tmp_path, name):
    text, says = REFUSED[name]
    (tmp_path / name).write_text(text)
    said = command("convert", tmp_path / name, status=2).err
    assert all(one in said for one in says), said


def test_wrong_words_are_refused(files):
    assert "verl-omni" in command("convert", "verl.sh", "--from", "verb", status=2).err
    assert "pickscore_flux" in command("convert", "grpo.py:pickscore", status=2).err
    assert "trl.yaml" in command("convert", "verl.sh", "--output", "trl.yaml", status=2).err
    assert "nowhere.sh" in command("convert", "nowhere.sh", status=2).err


def test_other_commands_of_a_script_are_counted(tmp_path, files):
    (tmp_path / "several.sh").write_text(f"ray start --head\n{Path('verl.sh').read_text()}\nmerge --local_dir x\n")
    assert "left out: 2" in command("convert", tmp_path / "several.sh").out


def test_names_and_values_of_others_stay_in_their_lines(tmp_path):
    """A recipe is composed when it is made, and what it names as a plugin would be run."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w').close()\n")
    line = f"\nplugins: [{tmp_path}/evil.py]\n#"
    own = FILES["base.yaml"]["text"]
    tree = parse(own) | {f"x{line}": f"y{line}", "plugins": [f"{tmp_path}/evil.py"]}
    tree["worker"]["reward"]["reward_function_kwargs"] = {f"z{line}": [f"z{line}"]}
    tree["data"]["format_prompt"] = f"a {line}\u2028b"
    tree["trainer"]["n_gpus_per_node"] = f"'8{line}'"
    (tmp_path / "theirs.yaml").write_text(json.dumps(tree))
    command("convert", tmp_path / "theirs.yaml", "-o", tmp_path / "mine.yaml", status=2)
    made = parse((tmp_path / "mine.yaml").read_text())
    assert "plugins" not in made
    assert made["data"]["template"] == f"a {line}\u2028b"
    assert not (tmp_path / "was-run").exists()


BOMB = "a: '" + "${b}" * 400 + "'\nb: '" + "${a}" * 400 + "'\ntrainer: {nnodes: 1, total_epochs: 2, test_freq: 3}\n"


def test_a_file_that_grows_without_end_is_read_in_time(tmp_path):
    (tmp_path / "bomb.yaml").write_text(BOMB)
    calls = "".join(f"def f{i}():\n    c = f{i + 1}()\n    c.x = f{i + 1}()\n    return c\n" for i in range(60))
    (tmp_path / "calls.py").write_text(calls + "def f60():\n    return base.get_config()\n")
    for name in ("bomb.yaml", "calls.py:f0"):
        command("convert", tmp_path / name, "--from", "verl", status=2)
