"""What can't be run ends with exit code 2 and a message that names it, before weights are read, and leaves nothing."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import transformers.utils.logging  # keeps the stderr of its import, which must not be that of a test
import yaml

from burnish.cli import main
from tests.refusals import places

transformers.utils.logging.get_logger()

TABLE = yaml.safe_load(Path(__file__).with_name("table.yaml").read_text())
READS_WEIGHTS = ("/wan", "model.device", "games:Shows")  # what a loaded model alone can tell, or a trial right before


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return places.generator(tmp_path_factory.mktemp("generator"))


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return places.language(tmp_path_factory.mktemp("language"))


def each(name: str) -> pytest.MarkDecorator:
    rows = [(row["options"], row["says"]) for row in TABLE[name].values()]
    return pytest.mark.parametrize(("options", "names"), rows, ids=list(TABLE[name]))


def refused(
    recipe: str, options: Sequence[str], names: Sequence[str], folder: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    Path("small.yaml").touch()
    given = [option.replace("{place}", str(Path(recipe).parent)) for option in options]
    elsewhere = any(option.startswith("output_dir") for option in given)
    assert main(["train", recipe, *given, *([] if elsewhere else ["output_dir=run"])]) == 2
    told = capsys.readouterr()
    assert "Traceback" not in told.err + told.out
    assert "burnish: error: " in told.err
    message = " ".join(told.err.split())
    assert "pydantic" not in message
    assert [name for name in names if name not in message] == [], message
    if not any(part in option for part in READS_WEIGHTS for option in options):
        assert "Loading the model" not in told.err
    assert not Path("run/metrics.jsonl").exists()


@each("quickstart")
def test_options_of_the_quickstart(options, names, tmp_path, capsys, monkeypatch):
    refused("quickstart", options, names, tmp_path, capsys, monkeypatch)


@each("vlm_quickstart")
def test_options_of_the_language_quickstart(options, names, tmp_path, capsys, monkeypatch):
    refused("vlm_quickstart", options, names, tmp_path, capsys, monkeypatch)


@each("generator")
def test_a_generator(options, names, generator, tmp_path, capsys, monkeypatch):
    if "model.device=cuda" in options and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    refused(str(generator), options, names, tmp_path, capsys, monkeypatch)


@each("language")
def test_a_language_model(options, names, language, tmp_path, capsys, monkeypatch):
    refused(str(language), options, names, tmp_path, capsys, monkeypatch)


NESTED = [("[" * 100_000, ["nest"]), ("{a: " * 10_000, ["nest"])]


@pytest.mark.parametrize(
    ("text", "names"), [*((row["text"], row["says"]) for row in TABLE["recipe"].values()), *NESTED],
    ids=[*TABLE["recipe"], "brackets", "braces"],
)  # fmt: skip
def test_recipes(text, names, tmp_path, capsys, monkeypatch):
    recipe = tmp_path / "broken.yaml"
    recipe.write_text(text)
    refused(str(recipe), [], names, tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize(("recipe", "names"), [
    ("quikstart", ["recipe is quikstart", "quickstart", ".yaml"]), ("nothing.yaml", ["nothing.yaml", "quickstart"]),
    ("seed=1", ["recipe is seed=1"]), (".", ["recipe is .", "quickstart"]),
])  # fmt: skip
def test_recipes_that_are_none(recipe, names, tmp_path, capsys, monkeypatch):
    refused(recipe, [], names, tmp_path, capsys, monkeypatch)
