"""Links of documents to files and to sections lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

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


def found(page: Path, link: str) -> bool:
    """Whether a link leads to a file, and to a section of it if it names one."""
    path, _, section = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not section or target.suffix != ".md" or section in sections(target))


def test_links_lead_somewhere():
    links = [
        (page, link)
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
        if "://" not in link
    ]
    assert len(links) > 500
    assert not [f"{page.name}: {link}" for page, link in links if not found(page, link)]


def test_files_and_folders_that_are_named_exist():
    """Files and folders of ours; metrics and parts of a run's folder, whose names end alike, are in the source."""
    sources = "".join(file.read_text() for file in (ROOT / "burnish").rglob("*.py"))
    for page in PAGES:
        for name in re.findall(r"`([\w./-]+/(?:[\w-]+\.py)?)`", page.read_text()):
            places = (ROOT, ROOT / "burnish", ROOT / "burnish" / "algorithms", page.parent)
            named = name.endswith("/") and re.search(rf'["\']{re.escape(name.rstrip("/"))}["\'/]', sources)
            assert named or any((place / name).exists() for place in places), f"{page.name} names {name}"
