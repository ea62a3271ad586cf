"""Texts about a run by one template: report.md in its folder, and the model card of its weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from jinja2 import Environment, Template
from markupsafe import Markup

from burnish import __version__
from burnish.config.run_folder import STEP, RunFolder
from burnish.report.curves import curves_image
from burnish.report.media import png
from burnish.report.overview import CHOSEN, glimpse, numbers
from burnish.report.samples import cut, newest, read_samples
from burnish.report.summary import Summary, algorithm_title
from burnish.report.verdict import headline, verdict
from burnish.utils.errors import UserError
from burnish.utils.hub import hub_data, hub_name, is_commit
from burnish.utils.paths import PREFIX, resolve
from burnish.utils.terminal import printable

CURVES = "card/curves.png"
LONGEST = 600  # characters of a text
UNKNOWN = "unknown: read the page of the base before you share or use this"
Files = dict[str, bytes]  # by their path in the folder
# what has a meaning in Markdown, HTML or an address; a numeric reference never has one
_MEANING = re.compile(r"[\\`*_{}\[\]<>#&|~^$@\"']|:(?=\S)|\.(?=[^\W\d])|/(?=/)")
_NAME = re.compile(r"[A-Za-z0-9][\w.+ -]{0,99}")
_LINK = re.compile(r"https://[\w./%#~+-]{1,300}")
_FILE = re.compile(r"[\w./-]{1,100}")
_LICENCE = {"license": _NAME, "license_name": _NAME, "license_link": _LINK}  # keys of a card's head


def text(value: Any) -> Markup:
    """A text of others as part of a paragraph or a table."""
    if isinstance(value, Markup):
        return value
    lines = printable(cut("" if value is None else str(value), LONGEST) or "").replace("\t", " ").split("\n")
    return Markup("<br>".join(_MEANING.sub(lambda sign: f"&#{ord(sign[0])};", line) for line in lines))


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, finalize=text, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(Path(__file__).with_name("report.md.jinja").read_text(encoding="utf-8"))


def markdown(about: dict[str, Any]) -> str:
    """The text of report.md, or with ``card`` that of a model card.

    Args:
        about: what ``overview`` says of a run, or a part of it with what a card has beside that.
    """
    footer = f"Written by Burnish {__version__} from the files in this folder; `burnish report` writes it anew."
    rendered = _template().render({"footer": Markup(footer)} | about)
    return re.sub(r"\n{3,}", "\n\n", rendered.lstrip("\n")).rstrip() + "\n"


def licence_of(path: str, *, ask: bool) -> dict[str, str]:
    """The licence of the model that a run began with, as its card states it; {} where that isn't known.

    Args:
        path: value of ``model.path``.
        ask: whether the hub is asked where its card is not in the cache.
    """
    if path.startswith(PREFIX):
        return {"license": "apache-2.0"}
    from huggingface_hub import HfApi, ModelCard, errors, try_to_load_from_cache

    client: type[Exception] = errors.HfHubHTTPError.__bases__[0]
    hub, revision = hub_name(path), path.partition("@")[2] or None
    try:
        file = try_to_load_from_cache(hub, "README.md", revision=revision) if hub else resolve(path) / "README.md"
        if isinstance(file, str | Path) and Path(file).is_file():
            return read_licence(ModelCard.load(file, ignore_metadata_errors=True).data.to_dict(), hub)
        data = HfApi().model_info(hub, revision=revision).card_data if hub and ask else None
        return {} if data is None else read_licence(vars(data), hub)
    except (OSError, ValueError, yaml.YAMLError, UserError, client):  # removed since, or not for this account
        return {}


def read_licence(content: Mapping[str, Any], hub: str | None = None) -> dict[str, str]:
    """What a card's head states of its licence, as far as it is in plain words; somebody else wrote it.

    Args:
        content: the head, parsed.
        hub: the model's name there, to which files are relative.
    """
    stated = {key: value for key in _LICENCE if isinstance(value := content.get(key), str)}
    if hub and _FILE.fullmatch(stated.get("license_link", "")):
        stated["license_link"] = f"https://huggingface.co/{hub}/blob/main/{stated['license_link']}"
    licence = {key: value for key, value in stated.items() if value and _LICENCE[key].fullmatch(value)}
    return licence if "license" in licence else {}


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


def card(
    folder: RunFolder, *, repo: str, what: Literal["lora", "merged"], update: int, library: str, code: Sequence[str],
    serving: Sequence[str], licence: dict[str, str], samples: bool = True,
) -> tuple[str, Files]:  # fmt: skip
    """The text of README.md and the images that it shows.

    Args:
        folder: of the run.
        repo: org/name.
        what: is pushed.
        update: of the weights.
        library: that loads them.
        code: Python that does so.
        serving: a command that serves them.
        licence: of the base, see ``licence_of``.
        samples: whether prompts and samples of validations are shown.
    """
    run = Summary.read(folder, until=update)
    files: Files = {}
    last = run.after or run.before
    if last is not None and (image := curves_image(folder, run)) is not None:
        files[CURVES] = image
    algorithm, more = run.config["algorithm"]["name"], dict[str, Any](licence)
    if (kind := _pipeline_tag(folder, run)) is not None:
        more["pipeline_tag"] = kind
    if sets := {one.name for path in _files(run, "train_files") if (one := hub_data(path)) is not None}:
        more["datasets"] = sorted(sets)
    stale = last is not None and last[STEP] != update
    about = {
        "card": True, "title": repo.partition("/")[2],
        "head": Markup(head(library, algorithm, what, hub_name(run.config["model"]["path"]), more) + "\n"),
        "lead": Markup("{} {} after {} policy updates of {}. {}").format(
            "A LoRA adapter of" if what == "lora" else "This is", _base(run), update, text(algorithm_title(algorithm)),
            text(headline(run)),
        ),
        "facts": list(_facts(run, licence)), "numbers": numbers(run),
        "verdict": [{"word": kind, "text": text} for kind, text in verdict(run)], "warnings": run.warnings(),
        "remark": f"These weights are of update {update}; the newest validation before it was after "
                  f"{last[STEP]}." if last is not None and stale else "",
        "curves": next(iter(files), ""), "code": Markup("\n".join(code)), "serving": Markup("\n".join(serving)),
        "footer": Markup(f"Made by `burnish push` of Burnish {__version__}."),
    }  # fmt: skip
    return markdown(about | (_samples(folder, run, files) if samples else {})), files


def _pipeline_tag(folder: RunFolder, run: Summary) -> str | None:
    """What the model makes of what, as the hub names it; None where that isn't known."""
    sample = next(iter(newest(folder, read_samples).values()), None)
    if sample is None or run.judges:
        return None
    if sample.response is not None:
        return "image-text-to-text" if sample.shown else "text-generation"
    made = {".png": "image", ".mp4": "video", ".webp": "video", ".wav": "audio"}.get(sample.image.suffix)
    return f"{'image' if sample.shown else 'text'}-to-{made}" if made else None


def _base(run: Summary) -> Markup:
    """The base model; of one in a folder its name alone, since the rest says something about a machine."""
    path = run.config["model"]["path"]
    if hub := hub_name(path):
        return Markup('<a href="https://huggingface.co/{0}">{0}</a>').format(hub)
    if path.startswith(PREFIX):
        return Markup("the model {}, which ships with Burnish,").format(text(path.removeprefix(PREFIX)))
    return Markup("a model from a folder ({})").format(text(Path(path).name))


def _facts(run: Summary, licence: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    config, words = run.config, run.words
    revision, lora = config["model"]["path"].partition("@")[2], config["model"].get("lora")
    yield "base", Markup(_base(run).rstrip(",")) + (f", commit {revision[:8]}" if is_commit(revision) else "")
    title = text(licence.get("license_name") or licence.get("license") or UNKNOWN)
    link = licence.get("license_link")
    yield "licence of the base", Markup('<a href="{}">{}</a>').format(link, title) if link else title
    # names of files without the folders of a machine
    for option, name, otherwise in (
        ("train_files", "data", "made by the run itself"), ("val_files", "validated on", "the same prompts")
    ):  # fmt: skip
        files = [path if hub_data(path) else Path(path).name for path in _files(run, option)]
        yield name, ", ".join(files) or otherwise
    yield "rewards", "; ".join(_rewards(config)) or "none"
    pace = f"{config['data']['train_batch_size']} prompts × {config['rollout']['n']} {words.samples} per update"
    yield "algorithm", f"{algorithm_title(config['algorithm']['name'])}, {pace}"
    yield "trained", f"LoRA of rank {lora['rank']}" if lora else f"all weights of {words.trained}"
    yield "learning rate", (config.get("optimizer") or {}).get("lr", "–")
    if (guidance := config["rollout"].get("guidance_scale")) is not None:
        yield "guidance while sampling", f"{guidance:g}"
    if "seed" in config:
        yield "seed", config["seed"]


def _files(run: Summary, option: str) -> list[str]:
    files = run.config["data"].get(option)
    return [file for file in (files if isinstance(files, list) else [files]) if isinstance(file, str)]


def _rewards(config: dict[str, Any]) -> Iterator[str]:
    """Rewards with their weights; those of weight 0 are only logged."""
    for label, options in (config.get("rewards") or {}).items():
        given = options or {}
        weight, kind = given.get("weight", 1), given.get("name", label)
        name = label + (f" ({kind})" if kind != label else "")
        yield f"{name}, weight {weight:g}" if weight or given.get("weight_by") else f"{name}, only logged"


def _samples(folder: RunFolder, run: Summary, files: Files) -> dict[str, Any]:
    """The first prompts before and after, whose images come to the files."""

    def added(name: str) -> str | None:
        if (image := png(folder.path / name)) is None:
            return None
        place = f"card/{Path(name).parts[-3]}-{Path(name).stem}.png"
        files[place] = image
        return place

    prompts = glimpse(folder, run)
    for prompt in prompts:
        prompt["shown"] = list(filter(None, map(added, prompt["shown"])))
        for side in prompt["sides"]:
            side["file"] = added(side["file"]) if side.get("file") else None
    return {"glimpse": prompts, "chosen": CHOSEN, "same": run.words.same * bool(run.before and run.after)}
