"""Pages of the site that are made of other things than files in docs/, and links that lead out of docs/.

MkDocs calls this; see mkdocs.yml. The README, recipes, options and docstrings become pages, so that nothing is written
twice.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

from mkdocs.structure.files import File, Files
from packaging.version import Version

from burnish import __version__

ROOT = Path(__file__).parents[1]
# documents beside docs/, and the pages that they become
BESIDE = {
    "README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "AGENTS.md": "assistants.md",
    "SECURITY.md": "reporting.md", "CHANGELOG.md": "changelog.md", "benchmarks/README.md": "benchmarks.md",
}  # fmt: skip
MATHEMATICS = ("losses", "advantages", "flow")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    made = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in BESIDE.items()}
    made |= {
        "recipes.md": recipes(), "papers.md": papers(),
        "reference/options.md": options(), "reference/mathematics.md": mathematics(),
        "reference/python.md": "# Python\n\n::: burnish.api\n    options: {show_root_heading: false}\n",
    }  # fmt: skip
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to documents beside docs/ lead to their pages; those to code become names."""
    page_uri = page.file.src_uri
    source = next((one for one, made in BESIDE.items() if made == page_uri), f"docs/{page_uri}")

    def moved(found: re.Match[str]) -> str:
        picture, text, link = found.groups()
        target, mark, section = link.partition("#")
        if "://" in link or not target:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside = BESIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if inside is None or not files.get_file_from_path(inside):
            return text if text.startswith("`") else f"{text} (`{path}`)"
        return f"{picture}[{text}]({os.path.relpath(inside, posixpath.dirname(page_uri) or '.')}{mark}{section})"

    pieces = re.split(r"(^```.*?^```[^\n]*$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(piece if piece.startswith("```") else LINK.sub(moved, piece) for piece in pieces)


def on_post_build(config: Any) -> None:
    """List the versions beside this one, for the site's selector, and have the folder above lead to the newest."""
    site = Path(config["site_dir"])
    if site.name != __version__:  # built elsewhere, to look at
        return
    built = (folder.name for folder in site.parent.iterdir() if (folder / "index.html").is_file())
    versions = sorted(built, key=Version, reverse=True)
    listed = [{"version": one, "title": one, "aliases": []} for one in versions]
    (site.parent / "versions.json").write_text(json.dumps(listed) + "\n", encoding="utf-8")
    newest = (
        f'<!doctype html><meta http-equiv="refresh" content="0; url={versions[0]}/index.html"><title>Burnish</title>\n'
    )
    (site.parent / "index.html").write_text(newest, encoding="utf-8")


def recipes() -> str:
    """Every recipe with what it says of itself and the hardware that it needs."""
    from burnish.config.load import find_recipe, hardware_of, recipe_names

    lines = [
        "# Recipes",
        "",
        "`burnish train NAME` runs one, `burnish config NAME` explains its options, `burnish plan NAME`",
    ]
    lines += ["says what it needs. [Hardware](hardware.md) is held by tests.", ""]
    lines += ["| recipe | what it is | hardware |", "| --- | --- | --- |"]
    for name in recipe_names():
        hardware = hardware_of(name)
        lines.append(f"| `{name}` | {_description(find_recipe(name))} | {'' if hardware is None else hardware} |")
    return "\n".join(lines) + "\n"


def papers() -> str:
    """Papers, the algorithms that are theirs, and the recipes with their settings."""
    from burnish.config.load import find_recipe, recipe_names

    texts = {name: find_recipe(name).read_text(encoding="utf-8") for name in recipe_names()}
    lines = ["# Papers", ""]
    lines += [
        "The page of an algorithm says what of it differs from the paper, and why;",
        "a recipe says where each setting is from.",
        "",
    ]
    lines += ["| paper | algorithm | recipes with its settings |", "| --- | --- | --- |"]
    for file in sorted((ROOT / "docs" / "algorithms").rglob("*.md")):
        page, text = file.relative_to(ROOT / "docs").as_posix(), file.read_text(encoding="utf-8")
        cited = list(dict.fromkeys(re.findall(r"arxiv\.org/abs/(\d{4}\.\d{4,5})", text.split("\n## ")[0])))
        if file.stem in ("README", "parts", "forward_process") or not cited:
            continue
        paper, name = cited[0], file.stem
        theirs = [f"`{one}`" for one, text in texts.items() if paper in text or one.endswith(f"/{name}")]
        lines.append(f"| [arXiv:{paper}](https://arxiv.org/abs/{paper}) | [{name}]({page}) | {', '.join(theirs)} |")
    return "\n".join(lines) + "\n"


def _description(path: Path) -> str:
    """The first comment of a recipe's file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((_cell(line.removeprefix("#").strip()) for line in lines if line.startswith("#")), "")


def options() -> str:
    """The sections of a run's options, of both halves."""
    from burnish.config.flow import FlowConfig
    from burnish.config.language import LanguageConfig

    lines = ["# Options", "", "Of every section of a recipe. `burnish config RECIPE` shows those of one run.", ""]
    for title, kind in (("Generators", FlowConfig), ("Language models", LanguageConfig)):
        lines += [f"## {title}", ""]
        lines += _section(kind, "")
    return "\n".join(lines) + "\n"


def _section(kind: Any, prefix: str) -> list[str]:
    import dataclasses

    from burnish.config.text import explanation, fields

    rows, inner = [], []
    hints = get_type_hints(kind)
    for name, field in fields(kind).items():
        sections = [one for one in (hints[name], *get_args(hints[name])) if dataclasses.is_dataclass(one)]
        if sections and name not in ("algorithm", "environment", "rewards"):
            inner.append((f"{prefix}{name}", sections[0]))
        default = "required" if field.is_required() else _code(field.get_default(call_default_factory=True))
        rows.append(f"| `{prefix}{name}` | {'' if sections else default} | {_cell(explanation(kind, name))} |")
    found = ["| option | default | |", "| --- | --- | --- |", *rows, ""]
    for path, section in inner:
        found += _section(section, f"{path}.")
    return found


def _code(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`" if text and len(text) < 60 else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def mathematics() -> str:
    """Functions of tensors, with their sources."""
    lines = ["# Mathematics", "", "Functions of tensors: shapes, units and sources are theirs.", ""]
    for folder in MATHEMATICS:
        for file in sorted((ROOT / "burnish" / folder).glob("*.py")):
            if file.stem != "__init__":
                lines += [f"::: burnish.{folder}.{file.stem}", ""]
    return "\n".join(lines)
