"""Records and files that can't be read: each is named with its file and its place, and with what is wrong in it."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.records import GENERATOR, LANGUAGE, image_file, prompts, refused, write
from tests.support.tiny_run import burnish

MOST = 7  # that are told in words at once
# of each kind: recipe and options that read it, a good record, and wrong ones with a word that the message must have
KINDS = json.loads(Path(__file__).with_name("wrong_records.json").read_text())
TABLES, TEMPLATES, FILES, CODES, CODE, LIBRARIES = (
    KINDS.pop(name) for name in ("tables", "templates", "files", "codes", "code", "libraries")
)
del KINDS["samplers"]
KINDS["prompts"]["wrong"] += [
    ("[" * 200_000, "nested"), ("{" + '"n":1,' * 100_000 + '"n":2}', "'n'"), (b"caf\xe9", "byte 3 is not UTF-8"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for name, content in (
        ("grey.png", image_file(100)), ("light.png", image_file(200)), ("small.png", image_file(1, 4, 4)),
        ("broken.png", image_file()[:40]), ("film.gif", image_file(form="GIF")),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_record_is_named_with_its_file_and_line(folder, kind):
    recipe, options, good, wrong = (KINDS[kind][name] for name in ("recipe", "options", "good", "wrong"))
    for first in range(0, len(wrong), MOST):
        some = wrong[first : first + MOST]
        path = write(folder / "data.jsonl", good, *(record for record, _ in some), "", good)
        messages = refused(recipe, path, *options)
        assert len(messages) == len(some), messages
        for line, (message, (_, word)) in enumerate(zip(messages, some, strict=True), 2):
            assert message.startswith(f"{path}:{line}: "), message
            assert word in message


@pytest.mark.parametrize(("library", "words"), LIBRARIES)
def test_a_library_that_is_not_there_is_named_with_the_way_to_install_it(folder, monkeypatch, library, words):
    monkeypatch.chdir(folder)
    (folder / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, library, None)
    said = burnish(*(word.format(folder=folder) if "{folder}" in word else word for word in words), status=2).message
    assert f"needs {library}, which is not installed: pip install 'burnish[" in said


def test_what_is_wrong_is_told_at_once_in_an_error_of_the_command(tmp_path):
    path = write(tmp_path / "data.jsonl", *[{}] * 10, {"prompt": "a"}, "?")
    for recipe in (GENERATOR, LANGUAGE):
        said = burnish("data", "show", path, "--recipe", recipe, status=2)
        named = re.findall(rf"{re.escape(path)}:(\d+): ", said.message)
        assert (named, said.out) == ([str(line) for line in range(1, 9)], "")
        assert "and 3 more" in said.message


@pytest.mark.parametrize(("text", "word"), TABLES)
def test_a_wrong_table_is_named_with_its_line(tmp_path, text, word):
    (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
    said = shown(tmp_path / "a.csv")
    assert str(tmp_path / "a.csv") in said
    assert word in said


def shown(path, *options):
    return burnish("data", "show", path, "--recipe", LANGUAGE, *options, status=2).message


def test_files_that_are_none_are_named(folder):
    (folder / "state").mkdir()
    for name, content, word in FILES:
        (folder / name).write_text(content)
        path = folder / name.partition("/")[0]
        said = shown(path)
        assert path.name in said
        assert word in said
    assert "no such file" in shown(folder / "none.jsonl")
    assert "but there is no mine.py; write it" in burnish("config", LANGUAGE, "data.train_files=mine.py:rows").out
    import pyarrow
    import pyarrow.parquet

    dates = pyarrow.array([2**62], pyarrow.timestamp("us"))  # which no calendar has
    pyarrow.parquet.write_table(pyarrow.table({"prompt": dates}), folder / "dates.parquet")
    assert "dates.parquet, after row 0: a value can't be read" in shown(folder / "dates.parquet")
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_list([{"prompt": "a"}])}).save_to_disk(folder / "splits")
    assert f"{folder}/splits/train" in shown(folder / "splits")


@pytest.mark.parametrize(("name", "words"), CODES)
def test_code_of_the_user_is_named_with_the_record_and_the_line(tmp_path, name, words):
    (tmp_path / "mine.py").write_text(CODE)
    said = shown(f"{tmp_path / 'mine.py'}:{name}")
    assert [word for word in [f"mine.py:{name}", *words] if word not in said] == [], said


@pytest.mark.parametrize(("template", "word"), TEMPLATES)
def test_a_record_that_does_not_fit_its_template_is_named(tmp_path, template, word):
    path = write(tmp_path / "data.jsonl", {"question": "Which?", "choices": ["cat", "dog"]})
    said = shown(path, f"data.template={json.dumps(template)}")
    assert f"{path}:1: " in said or "data.template" in said
    assert word in said


def test_a_key_that_an_option_names_and_no_record_has_is_refused(folder, caplog):
    """One record that has it is enough, and usual keys may be absent."""
    bare = {"prompt": "a fox"}
    full = bare | {"solution": "4", "kind": "sums", "shots": ["grey.png"], "depth_image": "grey.png"}
    asked = {"answer_key": "solution", "label_key": "kind", "images_key": "shots", "input_keys": "[depth_image]"}
    options = [f"output_dir={folder / 'run'}", "rewards.ocr=null", "rewards.border_darkness.weight=1"]
    path = write(folder / "data.jsonl", bare, bare)
    given = [f"data.{option}={name}" for option, name in asked.items()]
    said = burnish("train", "quickstart", f"data.train_files={path}", *given, *options, status=2).message
    named = [f"data.{option} is {name.strip('[]')}, " for option, name in asked.items()]
    assert [words for words in [*named, "2 records"] if words not in said] == [], said
    assert prompts(write(folder / "data.jsonl", bare, full), *given)[1].answer == "4"
    media = ["data.videos_key=v", "data.audios_key=a", "data.video_fps=2", "data.max_pixels=9"]
    said = burnish("train", "vlm_quickstart", f"data.train_files={path}", *media, "rewards.exact=null",
                   f"output_dir={folder / 'run'}", status=2).message  # fmt: skip
    assert all(name in said for name in ("data.videos_key is v", "data.audios_key is a"))
    told = [one.getMessage().partition(", ")[0] for one in caplog.records if one.name == "burnish.data.values"]
    assert told == ["data.max_pixels is 9", "data.video_fps is 2.0"]
