"""Links of documents to files and to sections lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "AGENTS.md",
    ROOT / "SECURITY.md",
    ROOT / "benchmarks" / "README.md",
    *(ROOT / "docs").rglob("*.md"),
]


def sections(page: Path) -> set[str]:
    """The names by which a page's headings can be linked to."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
    for link in links:
        if "://" in link:
            continue
        path, _, section = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if section and target.suffix == ".md":
            assert section in sections(target), f"{page.name} links to {link}"


SOURCES = "".join(file.read_text() for file in (ROOT / "burnish").rglob("*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_folders_that_are_named_exist(page):
    """Files and folders of ours; metrics and parts of a run's folder, whose names end alike, are in the source."""
    for name in re.findall(r"`([\w./-]+/(?:[\w-]+\.py)?)`", page.read_text()):
        places = (ROOT, ROOT / "burnish", ROOT / "burnish" / "algorithms", page.parent)
        named = name.endswith("/") and re.search(rf'["\']{re.escape(name.rstrip("/"))}["\'/]', SOURCES)
        assert named or any((place / name).exists() for place in places), f"{page.name} names {name}"
