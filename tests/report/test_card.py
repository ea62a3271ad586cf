"""What a model card says: texts of others are shown as text, and licences are those that a base's own card states."""

import pytest

from burnish.report.card import licence_of, read_licence

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


def test_the_licence_of_a_folder_is_in_its_card(tmp_path):
    assert licence_of("burnish:quickstart/model", ask=False) == {"license": "apache-2.0"}
    assert licence_of(str(tmp_path), ask=False) == {}
    (tmp_path / "README.md").write_text("---\nlicense: mit\ntags: [a]\n---\nlicense: apache-2.0\n")
    assert licence_of(str(tmp_path), ask=False) == {"license": "mit"}
    (tmp_path / "README.md").write_text("---\nlicense: [&a *a]\n---\n")
    assert licence_of(str(tmp_path), ask=False) == {}
    (tmp_path / "README.md").write_text("# no head\nlicense: mit\n")
    assert licence_of(str(tmp_path), ask=False) == {}
