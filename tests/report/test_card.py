"""What a model card says: texts of others are shown as text, and licences are those that a base's own card states."""

import io
from html import unescape
from pathlib import Path

import pytest
import yaml
from PIL import Image

from burnish.report.card import card, licence_of, read_licence
from tests.support.reports import Story, run_folder

TABLE = yaml.safe_load(Path(__file__).with_name("card.yaml").read_text())


@pytest.mark.parametrize(("content", "expected"), TABLE["stated"].values(), ids=TABLE["stated"])
def test_a_licence_is_what_a_card_states(content, expected):
    assert read_licence(content, "a/b") == expected
    assert "blob" not in str(read_licence(content))


def test_a_card_says_what_was_trained_of_what_on_what(tmp_path):
    base, revision = "me/base", "0123456789abcdef0123456789abcdef01234567"
    options = (f"model.path={base}@{revision}", "data.train_files=[a/b@train,sets/c.txt]", "model.lora=null")
    folder = run_folder(tmp_path / "run", Story(images=False, overrides=options))
    told, files = card(
        folder, repo="me/numbers", what="merged", update=25, library="diffusers", code=["x = 1"], serving=["serve it"],
        licence={"license": "other", "license_name": "own", "license_link": "https://example.org/terms"},
    )  # fmt: skip
    told = unescape(told)
    assert [words for words in TABLE["card"] if words not in told] == []
    assert [word for word in ("lora", "adapter", "pipeline_tag", "sets/") if word in told] == []
    (curves,) = files.values()
    assert Image.open(io.BytesIO(curves)).size == (1196, 754), "four charts, two by two"


def test_the_licence_of_a_folder_is_in_its_card(tmp_path):
    assert licence_of("burnish:quickstart/model", ask=False) == {"license": "apache-2.0"}
    assert licence_of(str(tmp_path), ask=False) == {}
    (tmp_path / "README.md").write_text("---\nlicense: mit\ntags: [a]\n---\nlicense: apache-2.0\n")
    assert licence_of(str(tmp_path), ask=False) == {"license": "mit"}
    (tmp_path / "README.md").write_text("---\nlicense: [&a *a]\n---\n")
    assert licence_of(str(tmp_path), ask=False) == {}
    (tmp_path / "README.md").write_text("# no head\nlicense: mit\n")
    assert licence_of(str(tmp_path), ask=False) == {}
