"""What a model card says: texts of others are shown as text, and licences are those that a base's own card states."""

import io
from html import unescape

import pytest
from PIL import Image

from burnish.report.card import card, licence_of, read_licence
from tests.support.reports import Story, run_folder

OTHER = {"license": "other", "license_name": "own"}
STATED = {
    "a plain one": ({"license": "apache-2.0"}, {"license": "apache-2.0"}),
    "another, with a file": (
        OTHER | {"license_link": "LICENSE.md"}, OTHER | {"license_link": "https://huggingface.co/a/b/blob/main/LICENSE.md"},
    ),
    "an address": (OTHER | {"license_link": "https://example.org/terms"},) * 2,
    "markup": ({"license": "<script>", "license_name": "x"}, {}),
    "a list": ({"license": ["mit"]}, {}),
    "a dangerous address": ({"license": "mit", "license_link": "javascript:alert(1)"}, {"license": "mit"}),
    "nothing": ({}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", STATED)
def test_a_licence_is_what_a_card_states(case):
    content, expected = STATED[case]
    assert read_licence(content, "a/b") == expected
    assert "blob" not in str(read_licence(content))


CARD = (
    "base_model: me/base", "base_model_relation: finetune", "- a/b\n", "license_link: https://example.org/terms",
    ">me/base</a> after 25 policy updates of DiffusionNFT. It learned", "</a>, commit 01234567</td>",
    '<a href="https://example.org/terms">own</a>', "<td>a/b@train, c.txt</td>", "<td>heldout.jsonl</td>",
    "; ocr, weight 1; border_darkness, only logged</td>", "<td>all weights of the transformer</td>",
    "DiffusionNFT, 8 prompts × 12 images per update", "<td>0.0017</td>", "<td>seed</td><td>0</td>",
    "These weights are of update 25; the newest validation before it was after 20.", "```python\nx = 1\n```",
    "serve it", "<td>0.772</td><td>0.952</td><td>+0.180", "](card/curves.png)",
)  # fmt: skip


def test_a_card_says_what_was_trained_of_what_on_what(tmp_path):
    base, revision = "me/base", "0123456789abcdef0123456789abcdef01234567"
    options = (f"model.path={base}@{revision}", "data.train_files=[a/b@train,sets/c.txt]", "model.lora=null")
    folder = run_folder(tmp_path / "run", Story(images=False, overrides=options))
    told, files = card(
        folder, repo="me/numbers", what="merged", update=25, library="diffusers", code=["x = 1"], serving=["serve it"],
        licence={"license": "other", "license_name": "own", "license_link": "https://example.org/terms"},
    )  # fmt: skip
    told = unescape(told)
    assert [words for words in CARD if words not in told] == []
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
