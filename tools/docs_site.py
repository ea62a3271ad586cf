"""Pages of the site that are made of other things than files in docs/, and links that lead out of docs/.

MkDocs calls this; see mkdocs.yml. The README, recipes, options and docstrings become pages, so that nothing is written
twice.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, get_args, get_type_hints

from markdown.extensions.toc import slugify
from mkdocs.structure.files import File, Files
from packaging.version import Version

from burnish import __version__
from burnish.config import load
from burnish.config.foreign import Trainer, projects, shown, trainers
from burnish.config.hardware import listed
from burnish.config.load import find_recipe, hardware_of, recipe_names
from burnish.config.run import RunConfig
from burnish.config.yaml_text import show

ROOT = Path(__file__).parents[1]
# documents beside docs/, and the pages that they become
BESIDE = {
    "README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "AGENTS.md": "assistants.md",
    "SECURITY.md": "reporting.md", "CHANGELOG.md": "changelog.md", "benchmarks/README.md": "benchmarks.md",
}  # fmt: skip
# what pages are made of, where links to it lead
DATA = {"burnish/recipes": "recipes.md", "burnish/assets/foreign_names.yaml": "reference/foreign_names.md"}
MATHEMATICS = (
    "rl.rules", "rl.advantages", "rl.objectives", "rl.surrogates", "rl.kl", "rl.importance",
    "rl.preference", "diffusion.steps", "diffusion.losses", "language.losses",
)  # fmt: skip
ALGORITHMS = ROOT / "docs" / "algorithms"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
# sections whose options depend on a name, and the pages about those
CHOSEN = {"algorithm": "../algorithms/README.md", "environment": "../environments.md", "rewards": "../rewards.md"}
# history and long tables, which would stand before the page that a reader looks for
NOT_SEARCHED = ("changelog.md", "generators.md", "language_models.md", "papers.md", "reference/mathematics.md")
CURVES = "images/recipes"  # below docs/; tools/recipe_curves.py draws them
FIRST_SCREEN = """\
---
hide: [navigation, toc]
---
{title}

{words}

[Quickstart](docs/quickstart.md){{ .md-button .md-button--primary }} [Recipes](burnish/recipes){{ .md-button }}

<div class="first-screen" markdown>
<figure markdown>
{samples}
<figcaption markdown>{caption}</figcaption>
</figure>
<figure markdown>
![Reward of the quickstart by update](docs/images/recipes/quickstart.svg)
<figcaption markdown>The reward of that run by update.</figcaption>
</figure>
<figure markdown>
{board}
<figcaption markdown>The same run [on the board](docs/monitoring.md#the-board): what was gained and lost.</figcaption>
</figure>
</div>

{rest}"""
INTRODUCTION = """\
# Recipes

`burnish train NAME` runs one, `burnish config NAME` explains its options, `burnish plan NAME` forecasts its memory, and
`extends: NAME` in a file of yours begins with it.

Curves are measured: the small models that ship were trained on a CPU by `burnish train NAME`, seed 0. **Recipes of real
models have none**: their settings are those of published runs, and their [hardware](hardware.md) is what a forecast
says; whole runs of them were not made where this is written.
"""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    made = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in BESIDE.items()}
    made |= {
        "index.md": landing(made["index.md"]), "recipes.md": gallery(), "papers.md": papers(),
        "reference/options.md": options(), "reference/mathematics.md": mathematics(),
        "reference/foreign_names.md": foreign_names(),
        "reference/python.md": python(),
    }  # fmt: skip
    sources = {page: f"../{source}" for source, page in BESIDE.items()}
    for page, text in made.items():
        file = File.generated(config, page, content=text)
        file.edit_uri = sources.get(page)  # what is made of code has none
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to documents beside docs/ lead to their pages; those to code become names."""
    page_uri = page.file.src_uri
    if page_uri in NOT_SEARCHED:
        page.meta["search"] = {"exclude": True}
    source = next((one for one, made in BESIDE.items() if made == page_uri), f"docs/{page_uri}")

    def moved(found: re.Match[str]) -> str:
        image, text, link = found.groups()
        target, mark, section = link.partition("#")
        if "://" in link or not target:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside = (BESIDE | DATA).get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if inside is None or not files.get_file_from_path(inside):
            return text if text.startswith("`") else f"{text} (`{path}`)"
        return f"{image}[{text}]({os.path.relpath(inside, posixpath.dirname(page_uri) or '.')}{mark}{section})"

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


def landing(readme: str) -> str:
    """The README, which opens with what Burnish does, seen: samples before and after, a curve, the board."""
    board = re.search(r"^!\[.*board\.png\)$\n\n", readme, re.MULTILINE)
    if board is None:
        raise ValueError("README.md shows no image of the board")
    title, words, samples, caption, rest = readme.replace(board[0], "").split("\n\n", 4)
    first, _, further = words.partition(". ")
    return FIRST_SCREEN.format(
        title=title, words=f"{first}.", samples=samples, caption=caption.strip("*"), board=board[0].strip(),
        rest=f"{further}\n\n{rest}",
    )  # fmt: skip


def gallery() -> str:
    """Every recipe with what it trains, on what, by which method, with what hardware."""
    small = [name for name in recipe_names() if not hardware_of(name)]
    real = [name for name in recipe_names() if hardware_of(name)]
    lines = [INTRODUCTION, "## On a CPU, in minutes", ""]
    for name in small:
        lines += _entry(name)
    lines += ["## Real models", ""]
    for folder, group in groupby(real, key=lambda name: name.partition("/")[0]):
        lines += _table(folder, list(group))
    return "\n".join(lines) + "\n"


def _sections_of_algorithms() -> Iterator[tuple[str, str, str]]:
    """Name, place and text of every section about an algorithm, in all pages about them."""
    for file in sorted(ALGORITHMS.glob("*.md")):
        for name, text in re.findall(r"^## ([a-z]\w*)$(.*?)(?=^## |\Z)", file.read_text(encoding="utf-8"), re.M | re.S):
            yield name, f"algorithms/{file.name}#{name}", text


def _papers_of(text: str) -> list[str]:
    """The numbers of the papers that the section of an algorithm names."""
    return list(dict.fromkeys(re.findall(r"arxiv\.org/abs/(\d{4}\.\d{4,5})", text)))


def _entry(name: str) -> list[str]:
    """Of a recipe whose model ships."""
    config = load(name)
    lines = [f"### `{name}`", "", _description(name), ""]
    place, text = _page(config)
    (paper, *_) = _papers_of(text)
    method = f"[{config.algorithm.name}]({place}), [arXiv:{paper}](https://arxiv.org/abs/{paper})"
    lines += [f"{method} · rewards: {_rewards(config)} · data: `{_files(config)}`", ""]
    image = f"{CURVES}/{name.replace('/', '_')}.svg"
    if (ROOT / "docs" / image).exists():
        lines += [f"![Rewards of {name} by update: training samples, and held-out prompts]({image})", ""]
    return lines


def _table(folder: str, names: list[str]) -> list[str]:
    """Of the recipes of a real model: what all of them share is said once."""
    rows = []
    for name in names:
        config = load(name)
        rows.append({
            "recipe": f"[`{name.partition('/')[2]}`]({_page(config)[0]})",
            "what it is": ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", _description(name)),
            "model": config.model.path,
            "trained": "adapters" if config.model.lora is not None else "all weights",
            "data": re.sub(r"^data/|/train\.jsonl$", "", _files(config)),
            "rewards": _rewards(config),
            "hardware": listed(hardware_of(name)),
        })  # fmt: skip
    columns = [one for one in rows[0] if one in ("recipe", "what it is") or len({row[one] for row in rows}) > 1]
    said = " · ".join(f"{name}: {value}" for name, value in rows[0].items() if name not in columns)
    lines = [
        f"### `{folder}/*`",
        "",
        said,
        "",
        f"| {' | '.join(columns)} |",
        f"| {' | '.join('---' for _ in columns)} |",
    ]
    return [*lines, *(f"| {' | '.join(row[one] for one in columns)} |" for row in rows), ""]


def _page(config: RunConfig) -> tuple[str, str]:
    """Place and text of the section about its algorithm."""
    sees = config.task == "image-text-to-text"
    return next(
        (place, text)
        for name, place, text in _sections_of_algorithms()
        if name == config.algorithm.name and place.startswith("algorithms/language") == sees
    )


def _rewards(config: RunConfig) -> str:
    """Those that count."""
    return ", ".join(label for label, reward in config.rewards.items() if reward.weight) or "none"


def _files(config: RunConfig) -> str:
    files = config.data.train_files
    return files if isinstance(files, str) else ", ".join(files)


def _description(name: str) -> str:
    """The first comment of a recipe's file."""
    lines = find_recipe(name).read_text(encoding="utf-8").splitlines()
    first = next((line.removeprefix("#").strip() for line in lines if line.startswith("#")), "")
    return first.replace("|", "\\|").replace("<", "&lt;")


def papers() -> str:
    """Papers, the algorithms that are theirs, and the recipes with their settings."""
    texts = {name: find_recipe(name).read_text(encoding="utf-8") for name in recipe_names()}
    lines = ["# Papers", ""]
    lines += [
        "The section about an algorithm says what differs from the paper, and why.",
        "A recipe says where each setting is from.",
        "",
    ]
    lines += ["| paper | algorithm | recipes with its settings |", "| --- | --- | --- |"]
    for name, place, section in _sections_of_algorithms():
        for paper in _papers_of(section)[:1]:
            theirs = [f"`{one}`" for one, text in texts.items() if paper in text or one.endswith(f"/{name}")]
            source = f"[arXiv:{paper}](https://arxiv.org/abs/{paper})"
            lines.append(f"| {source} | [{name}]({place}) | {', '.join(theirs)} |")
    return "\n".join(lines) + "\n"


def options() -> str:
    """The sections of a run's options, of both halves."""
    from burnish.diffusion.config import FlowConfig
    from burnish.language.config import LanguageConfig

    lines = ["# Options", "", "Of every section of a recipe. `burnish config RECIPE` shows those of one run.", ""]
    before: set[str] = set()
    for title, kind in (("Generators", FlowConfig), ("Language models", LanguageConfig)):
        sections = list(_sections(kind, ""))
        # headings of the second half that the first one has get another anchor
        anchors = {path: slugify(path, "-") + ("_1" if path in before else "") for path, _ in sections}
        lines += [f"## {title}", ""]
        for path, section in sections:
            lines += [*([f"### `{path}`", ""] if path else []), *_rows(section, path, anchors)]
        before |= anchors.keys()
    return "\n".join(lines) + "\n"


def _sections(kind: Any, path: str) -> Iterator[tuple[str, Any]]:
    """A class of options and those inside of it, each with its name; ``path`` is that of the first."""
    yield path, kind
    for name, inner in _inner(kind).items():
        yield from _sections(inner, f"{path}.{name}" if path else name)


def _inner(kind: Any) -> dict[str, Any]:
    """The sections of a class of options, but for those that a name chooses."""
    import dataclasses

    from burnish.registry import fields

    hints, found = get_type_hints(kind), {}
    for name in fields(kind).keys() - CHOSEN.keys():
        sections = [one for one in (hints[name], *get_args(hints[name])) if dataclasses.is_dataclass(one)]
        if sections:
            found[name] = sections[0]
    return {name: found[name] for name in fields(kind) if name in found}


def _rows(kind: Any, path: str, anchors: dict[str, str]) -> list[str]:
    from burnish.registry import explanation, fields

    rows = []
    for name, field in fields(kind).items():
        whole = f"{path}.{name}" if path else name
        default = "required" if field.is_required() else _code(field.get_default(call_default_factory=True))
        shown = f"`{whole}`"
        if whole in anchors:
            shown, default = f"[{shown}](#{anchors[whole]})", ""
        elif not path and name in CHOSEN:
            shown, default = f"[{shown}]({CHOSEN[name]})", ""
        rows.append(f"| {shown} | {default} | {_cell(explanation(kind, name))} |")
    return ["| option | default | |", "| --- | --- | --- |", *rows, ""]


def _code(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`" if text and len(text) < 60 else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def python() -> str:
    """Burnish from Python, and what extensions derive from or return: the classes that the table of them names."""
    table = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    classes = dict.fromkeys(re.findall(r"`(burnish(?:\.[a-z_]+)+\.[A-Z]\w+)`", table))
    lines = ["# Python", "", "::: burnish.api", "    options: {show_root_heading: false}", ""]
    lines += ["## Bases of extensions", "", "[Extending](../extending.md) shows one of each.", ""]
    for name in (*classes, "burnish.testing"):
        if name.rpartition(".")[0].removeprefix("burnish.") in MATHEMATICS:  # which describes it
            lines += [f"[`{name}`](mathematics.md#{name})", ""]
        else:
            lines += [f"::: {name}", "    options: {heading_level: 3}", ""]
    return "\n".join(lines)


def mathematics() -> str:
    """Functions of tensors, with their sources."""
    lines = ["# Mathematics", "", "Functions of tensors: shapes, units and sources are theirs.", ""]
    for module in MATHEMATICS:
        lines += [f"::: burnish.{module}", ""]
    return "\n".join(lines)


def foreign_names() -> str:
    """What options, rewards and defaults of other trainers are here."""
    lines = ["# Options of other trainers", ""]
    lines += ["`burnish convert` makes [recipes](../coming_from.md) by these tables.", ""]
    for project in projects():
        lines += [f"## {project}", "", *_names_of(project, trainers()[project])]
    return "\n".join(lines) + "\n"


def _names_of(project: str, trainer: Trainer) -> Iterator[str]:
    for other in projects():
        if trainers()[other] is trainer.like:
            yield from (f"Names of [{other}](#{slugify(other, '-')}) are read, too.", "")
    yield from (f"| {project} | here |", "| --- | --- |")
    for theirs, entry in trainer.names.items():
        ours, remark = shown(entry)
        options = " and ".join(f"`{option}`" for option in ours)
        yield f"| `{theirs}` | {options}{f' ({remark})' if remark else ''} |"
    for name in trainer.same:
        yield f"| `{name}` | the same |"
    for name, theirs in trainer.also.items():
        yield f"| `{name}` | as `{theirs}` |"
    for name, reward in trainer.rewards.items():
        yield f"| reward `{name}` | `{show(reward)}` |"
    for title, groups in (("nothing to set", trainer.needless), ("without a counterpart", trainer.lost)):
        for why, names in groups.items():
            yield f"| {', '.join(f'`{name}`' for name in names)} | {title}: {why} |"
    yield ""
    if trainer.defaults:
        stated = ", ".join(f"`{name}={json.dumps(value)}`" for name, value in trainer.defaults.items())
        yield from (f"{project}'s defaults, set where a file leaves these out: {stated}.", "")
