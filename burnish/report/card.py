"""The model card of a run: what was trained on what, how it went, and how to load it. Prompts are shown as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from burnish import __version__
from burnish.config.run_folder import STEP, RunFolder
from burnish.report.card_pictures import asked, curves, sheet
from burnish.report.gallery import CHOSEN
from burnish.report.licence import Licence
from burnish.report.overview import numbers
from burnish.report.samples import Sample, Samples, read_samples
from burnish.report.summary import Summary, algorithm_title
from burnish.report.verdict import headline, verdict
from burnish.utils.hub import is_commit, is_hub_id
from burnish.utils.hub_data import hub_data
from burnish.utils.paths import PREFIX
from burnish.utils.terminal import printable

CURVES, SHEET = "card/curves.png", "card/before_after.jpg"
QUESTIONS, ANSWERS = 4, 2  # questions that are shown, and responses of each side
LONGEST, LABEL = 600, 120  # characters of a prompt or a response, of a name
Files = dict[str, bytes]  # by their path in the folder
# what has a meaning in Markdown, HTML or an address; a numeric reference never has one
_MEANING = re.compile(r"[\\`*_{}\[\]<>#&|~^$@\"']|:(?=\S)|\.(?=[^\W\d])|/(?=/)")


@dataclass(frozen=True)
class Weights:
    """What is pushed, and how it is loaded."""

    repo: str  # org/name
    what: Literal["lora", "merged"]
    update: int
    library: str
    code: Sequence[str]  # Python that loads it
    serving: Sequence[str]  # a command that serves it
    licence: Licence | None  # of the base


def head(library: str, algorithm: str, what: Literal["lora", "merged"], base: str | None, more: dict[str, Any]) -> str:
    """What a card says for programs, as the hub reads it.

    Args:
        library: that loads it.
        algorithm: by its name.
        what: an adapter, or the full model.
        base: the model of the hub that was trained; None for a folder.
        more: further entries.
    """
    tags = ["burnish", "reinforcement-learning", algorithm, *(["lora"] if what == "lora" else [])]
    entries: dict[str, Any] = {"library_name": library, "tags": tags}
    if base is not None:
        entries |= {"base_model": base, "base_model_relation": "adapter" if what == "lora" else "finetune"}
    return f"---\n{yaml.safe_dump(entries | more, sort_keys=False, allow_unicode=True)}---\n"


def card(folder: RunFolder, weights: Weights, *, samples: bool = True) -> tuple[str, Files]:
    """The text of README.md and the pictures that it shows.

    Args:
        folder: of the run.
        weights: that are pushed.
        samples: whether prompts and samples of validations are shown.
    """
    run = Summary.read(folder, until=weights.update)
    files: Files = {}
    parts = [
        f"# {weights.repo.partition('/')[2]}",
        _sentence(run, weights),
        *_facts(run, weights),
        *_results(folder, run, weights, files),
        *(_samples(folder, run, files) if samples else ()),
        *_loading(weights),
        f"Made by `burnish push` of Burnish {__version__}.",
    ]
    base = run.config["model"]["path"]
    more: dict[str, Any] = dict(weights.licence.entries) if weights.licence is not None else {}
    if (kind := _pipeline_tag(folder, run)) is not None:
        more["pipeline_tag"] = kind
    if found := [one.name for path in _files(run, "train_files") if (one := hub_data(path)) is not None]:
        more["datasets"] = sorted(set(found))
    known = head(
        weights.library, run.config["algorithm"]["name"], weights.what, base if is_hub_id(base) else None, more
    )
    return f"{known}\n" + "\n\n".join(parts) + "\n", files


def _sentence(run: Summary, weights: Weights) -> str:
    """What it is, and in a sentence how it went."""
    what = f"{'A LoRA adapter of' if weights.what == 'lora' else 'This is'} {_base(run)}"
    return (
        f"{what} after {weights.update} policy updates of {_algorithm(run)}. {shown(headline(run), LONGEST)}".rstrip()
    )


def _base(run: Summary) -> str:
    """The base model; of one in a folder its name alone, since the rest says something about a machine."""
    path = run.config["model"]["path"]
    if is_hub_id(path):
        return f'<a href="https://huggingface.co/{path}">{path}</a>'
    if path.startswith(PREFIX):
        return f"the model {shown(path.removeprefix(PREFIX), LABEL)}, which ships with Burnish,"
    return f"a model from a folder ({shown(Path(path).name, LABEL)})"


def _facts(run: Summary, weights: Weights) -> Iterator[str]:
    config = run.config
    revision = config["model"].get("revision")
    lora, optimizer = config["model"].get("lora"), config.get("optimizer") or {}
    guidance = config["rollout"].get("guidance_scale")
    words = run.words
    pace = f"{config['data']['train_batch_size']} prompts × {config['rollout']['n']} {words.samples} per update"
    rate = shown(str(optimizer["lr"]), LABEL) if "lr" in optimizer else "–"
    rows = [
        ("base", _base(run).rstrip(",") + (f", commit {revision[:8]}" if is_commit(revision) else "")),
        ("licence of the base", _licence(weights.licence)),
        ("data", ", ".join(_data(run, "train_files")) or "made by the run itself"),
        ("validated on", ", ".join(_data(run, "val_files")) or "the same prompts"),
        ("rewards", "; ".join(_rewards(config)) or "none"),
        ("algorithm", f"{_algorithm(run)}, {pace}"),
        ("trained", f"LoRA of rank {shown(str(lora['rank']), LABEL)}" if lora else f"all weights of {words.trained}"),
        ("learning rate", rate),
        *([("guidance while sampling", f"{guidance:g}")] if guidance is not None else []),
        *([("seed", shown(str(config["seed"]), LABEL))] if "seed" in config else []),
    ]
    yield "\n".join(table((), rows))


def _algorithm(run: Summary) -> str:
    return shown(algorithm_title(run.config["algorithm"]["name"]), LABEL)


def _licence(licence: Licence | None) -> str:
    if licence is None:
        return "unknown: read the page of the base before you share or use this"
    name = shown(licence.title or licence.name, LABEL)
    return f'<a href="{licence.link}">{name}</a>' if licence.link else name


def _files(run: Summary, option: str) -> list[str]:
    files = run.config["data"].get(option)
    named = [files] if isinstance(files, str) else files if isinstance(files, list) else []
    return [one for one in named if isinstance(one, str)]


def _data(run: Summary, option: str) -> list[str]:
    """Data sets of the hub, and names of files without the folders of a machine."""
    return [shown(path if hub_data(path) else Path(path).name, LABEL) for path in _files(run, option)]


def _rewards(config: dict[str, Any]) -> Iterator[str]:
    """Rewards with their weights, and at last those that were only watched."""
    watched = []
    for label, options in (config.get("rewards") or {}).items():
        given = options or {}
        weight, kind = given.get("weight", 1), given.get("name", label)
        named = shown(label, LABEL) + (f" ({shown(str(kind), LABEL)})" if kind != label else "")
        if weight or given.get("weight_by"):
            yield f"{named}, weight {weight:g}"
        else:
            watched.append(named)
    if watched:
        yield f"only watched: {', '.join(watched)}"


def _results(folder: RunFolder, run: Summary, weights: Weights, files: Files) -> Iterator[str]:
    """Numbers with their intervals, what was gained and lost, and curves."""
    found = numbers(run)
    yield "## What came of it"
    if "why" in found:
        yield shown(found["why"], LONGEST)
        return
    rows = [
        [_titled(row["title"], row["note"]), *(_titled(cell["text"], cell.get("note", "")) for cell in row["cells"])]
        for row in found["rows"] + found["watched"]
    ]
    yield "\n".join(table(["", *(shown(one, LABEL) for one in found["heads"])], rows))
    last = run.after or run.before
    if last is not None and last[STEP] != weights.update:
        yield f"These weights are of update {weights.update}; the newest validation before it was after {last[STEP]}."
    points = [f"- {one.kind}: {shown(one.text, LONGEST)}" for one in verdict(run)]
    points += [f"- warning: {shown(text, LONGEST)}" for text in run.warnings()]
    if points:
        yield "\n".join(points)
    if (picture := curves(folder, run)) is not None:
        files[CURVES] = picture
        yield f"![Reward and other measures over the policy updates]({CURVES})"
        yield "Bands: 95 % interval over prompts."


def _titled(text: str, note: str) -> str:
    return shown(text, LABEL) + (f"<br><sub>{shown(note, LABEL)}</sub>" if note else "")


def _samples(folder: RunFolder, run: Summary, files: Files) -> Iterator[str]:
    """The first prompts before and after."""
    if run.before is None or run.after is None:
        return
    before, after = (read_samples(folder.validation(row[STEP])) for row in (run.before, run.after))
    if not after:
        return
    title = "## Before and after"
    why = f"{CHOSEN} {run.words.same}"
    if next(iter(after.values())).response is not None:
        yield title
        yield why
        yield "\n".join(_answers(before, after, files))
    elif (picture := sheet(before, after)) is not None:
        files[SHEET] = picture
        yield title
        marked = any(one.exact is not None for one in after.values())
        blue = " Blue: exactly right; red: not." if marked else ""
        yield f"Left: before training; right: after {run.after[STEP]} updates. {why}{blue}"
        yield f"![{run.words.samples.capitalize()} before and after training]({SHEET})"


def _answers(before: Samples, after: Samples, files: Files) -> list[str]:
    rows = []
    for index in sorted({index for index, _ in after})[:QUESTIONS]:
        was, now = ([one for (number, _), one in sorted(side.items()) if number == index] for side in (before, after))
        pictures = []
        for number, picture in enumerate(asked(now[0])):
            name = f"card/question-{index:03d}-{number}.png"
            files[name] = picture
            pictures.append(f'<img src="{name}" alt="picture {number + 1} of the question">')
        right = f"<br><sub>right answer: {shown(now[0].answer, LABEL)}</sub>" if now[0].answer is not None else ""
        question = f"{shown(now[0].prompt, LONGEST)}{right}"
        rows.append(["".join(pictures) + ("<br>" if pictures else "") + question, _said(was), _said(now)])
    return table(["question", "before", "after"], rows)


def _said(side: Sequence[Sample]) -> str:
    marks = {None: "", True: "✓ ", False: "× "}
    return "<hr>".join(f"{marks[one.exact]}{shown(one.response or '', LONGEST)}" for one in side[:ANSWERS]) or "–"


def _loading(weights: Weights) -> Iterator[str]:
    yield "## How to load it"
    yield "\n".join(["```python", *weights.code, "```"])
    if weights.serving:
        yield "With vLLM, where it has this architecture:"
        yield "\n".join(["```bash", *weights.serving, "```"])


def _pipeline_tag(folder: RunFolder, run: Summary) -> str | None:
    """What the model makes of what, as the hub names it; None where that isn't known."""
    samples = read_samples(folder.validation(max(folder.validations(), default=0)))
    one = next(iter(samples.values()), None)
    if one is None or run.judges:
        return None
    if one.response is not None:
        return "image-text-to-text" if one.shown else "text-generation"
    drawn = {".png": "image", ".mp4": "video", ".webp": "video", ".wav": "audio"}.get(one.picture.suffix)
    if drawn is None:
        return None
    return f"{'image' if one.shown else 'text'}-to-{drawn}"


def shown(text: str, most: int) -> str:
    """A text of others as part of a paragraph or a table, cut to ``most`` characters."""
    if len(text) > most:
        text = f"{text[:most]}… ({len(text) - most} more characters)"
    lines = printable(text).replace("\t", " ").split("\n")
    return "<br>".join(_MEANING.sub(lambda found: f"&#{ord(found[0])};", line) for line in lines)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of an HTML table of cells that are HTML. One line per row, so that no blank one ends it."""
    top = "".join(f"<th>{head}</th>" for head in heads)
    body = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows]
    return ["<table>", *([f"<tr>{top}</tr>"] if any(heads) else []), *body, "</table>"]
