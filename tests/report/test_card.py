"""What a model card says: texts of others are shown as text, and licences are those that a base's own card states."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from burnish.report.card import Weights, card, head, shown, table
from burnish.report.licence import OURS, Licence, licence_of, read_licence
from tests.support.reports import Story, run_folder

HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[here](javascript:alert(1))", "![x](http://a/b.png)",
    "</td></table>\n\n# heading", "`code` **bold** ~~gone~~ | cell", "http://evil.example www.evil.example a@b.example",
    "\x1b[31mred\x07", "&lt;b&gt;", "---\nlicense: mit\n---", "a\u202eb", "$x^2$", "<!--", "\\<b>",
]  # fmt: skip


def rendered(text: str) -> str:
    html: str = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    return html


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("place", ["paragraph", "list", "table"])
def test_texts_of_others_are_text(text, place):
    safe = shown(text, 1000)
    page = {"paragraph": f"before {safe} after", "list": f"- one: {safe}",
            "table": "\n".join(table(["a"], [[safe]]))}[place]  # fmt: skip
    html = rendered(page)
    for mark in ("<script", "<img", "<a ", "<h1", "<code", "<strong", "<hr", "<!--", "\x1b", "\u202e", "<s>"):
        assert mark not in html.lower()
    assert html.count("</table>") == (place == "table")


def test_long_texts_are_cut_and_say_so():
    assert shown("a" * 100_000, 20) == "a" * 20 + "… (99980 more characters)"
    assert shown("the number 4.5, at 10 %", 100) == "the number 4.5, at 10 %"


STATED = {
    "a plain one": ({"license": "apache-2.0"}, Licence("apache-2.0")),
    "another, with a file": (
        {"license": "other", "license_name": "stabilityai-ai-community", "license_link": "LICENSE.md"},
        Licence("other", "stabilityai-ai-community", "https://huggingface.co/a/b/blob/main/LICENSE.md"),
    ),
    "an address": (
        {"license": "other", "license_link": "https://example.org/terms"},
        Licence("other", None, "https://example.org/terms"),
    ),
    "markup": ({"license": "<script>", "license_name": "x"}, None),
    "a list": ({"license": ["mit"]}, None),
    "a dangerous address": ({"license": "mit", "license_link": "javascript:alert(1)"}, Licence("mit")),
    "nothing": ({}, None),
    "no mapping": (["mit"], None),
}


@pytest.mark.parametrize("case", STATED)
def test_a_licence_is_what_a_card_states(case):
    content, expected = STATED[case]
    assert read_licence(content, "a/b") == expected


def test_the_licence_of_a_folder_is_in_its_card(tmp_path):
    assert licence_of("burnish:quickstart/model", None, ask=False) == OURS
    assert licence_of(str(tmp_path), None, ask=False) is None
    (tmp_path / "README.md").write_text("---\nlicense: mit\ntags: [a]\n---\nlicense: apache-2.0\n")
    assert licence_of(str(tmp_path), None, ask=False) == Licence("mit")
    (tmp_path / "README.md").write_text("---\nlicense: [&a *a]\n---\n")
    assert licence_of(str(tmp_path), None, ask=False) is None
    (tmp_path / "README.md").write_text("# no head\nlicense: mit\n")
    assert licence_of(str(tmp_path), None, ask=False) is None


def weights(update: int, **more) -> Weights:
    given = {"repo": "me/numbers", "what": "merged", "library": "diffusers", "code": [], "serving": [], "licence": None}
    return Weights(**{**given, "update": update, **more})


def test_numbers_are_those_of_the_weights_that_are_pushed(tmp_path):
    folder = run_folder(tmp_path / "run", Story())
    whole, _ = card(folder, weights(30))
    earlier, files = card(folder, weights(14))
    assert "after 30 updates" in whole
    assert "after 10 updates" in earlier
    assert "after 30 updates" not in earlier
    assert "These weights are of update 14; the newest validation before it was after 10." in earlier
    assert set(files) == {"card/curves.png", "card/before_after.jpg"}


def test_what_is_not_known_is_said(tmp_path):
    folder = run_folder(tmp_path / "run", Story(updates=0, pictures=False, guided=False))
    text, files = card(folder, weights(0))
    assert "unknown: read the page of the base" in text
    assert "license:" not in text
    assert "Before and after" not in text
    assert not files


def test_the_head_quotes_what_yaml_would_read_otherwise():
    assert "'no'" in head("diffusers", "no", "merged", None, {})
