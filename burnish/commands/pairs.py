"""burnish pairs: data for DPO, SFT and reward models from the samples that a run has kept."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import TypeAdapter

from burnish.commands.opening import output_folder
from burnish.config.run_folder import RunFolder
from burnish.data.images import MOVING
from burnish.utils import terminal
from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json
from burnish.utils.paths import RECORDS
from burnish.utils.reading import checked_path
from burnish.utils.records import is_number, leads_out, read_records

MEDIA = "media"
NAMES = {"pairs": "pairs", "sft": "samples to imitate", "scores": "scored samples"}  # of what each form makes
STILL = (".png", ".jpg", ".jpeg", ".webp")
Sample = dict[str, Any]  # as ``burnish.tasks.sample_files`` records it, and its ``place``, the folder of its prompt
_SAMPLE = TypeAdapter(Sample)


def pairs(
    run: str,
    *,
    output: str,
    form: Literal["pairs", "sft", "scores"] = "pairs",
    validation: bool = False,
    by: str = "reward",
    margin: Annotated[float, 0] = 0.0,
    most: Annotated[int, 1, 10_000] | None = None,
    least: Annotated[float, -1e300] | None = None,
) -> int:
    """Make training data of the samples of a run.

    Examples:
        burnish train quickstart rollout.save.every=5 output_dir=runs/kept
        burnish pairs runs/kept --output preferences --margin 0.2
        burnish train my_recipe.yaml data.train_files=preferences/pairs.jsonl
        burnish pairs runs/kept --output best --form sft --per-prompt 2
        burnish pairs runs/kept --output scored --form scores        for a reward model: algorithm=score_regression

    Args:
        run: folder of a run that kept samples (rollout.save.every=10)
        output (-o, --output DIR): new folder to write
        form: pairs: best and worst samples of a prompt; sft: the best, to imitate; scores: all, scored
        validation: of samples of validations (validation.save.prompts=64)
        by (NAME): score that decides, or a component's
        margin (X): least difference of a pair (above 0)
        most (--per-prompt N): records of a prompt and update at most (1, of scores all)
        least (--at-least X): sft: least score of a sample (any)
    """
    for option, value, reader in (("--margin", margin, "pairs"), ("--at-least", least, "sft")):
        if value and form != reader:
            raise UserError(f"{option} is read by --form {reader} alone, and --form is {form}; remove it")
    folder = RunFolder(checked_path(run, "RUN"))
    kept = folder.validation_samples if validation else folder.samples
    if not kept.is_dir():
        section = "validation.save.prompts=64" if validation else "rollout.save.every=10"
        raise UserError(f"{run} has no {kept.name}: it kept no samples; train with {section}, for example")
    target, name = output_folder(output, "pairs"), f"{form}.jsonl"
    if (target / name).exists():
        raise UserError(f"--output is {output}, which has {name}; give another folder")
    groups = list(filter(None, (_samples(place, folder) for place in sorted(kept.iterdir()))))
    known = {component for group in groups for sample in group for component in sample["components"]}
    if by not in ("reward", *known):
        raise UserError(f"--by is {by}, which {run} has no scores of; it has reward, {', '.join(sorted(known))}")
    why: Counter[str] = Counter()
    ranked = [_ranked(group, by, why) for group in groups]
    with writing(target):
        (target / MEDIA).mkdir(exist_ok=True)
        if form == "pairs":
            records = [record for group in ranked for record in _pairs(group, margin, most or 1, target, why)]
        else:
            most = most or (1 if form == "sft" else None)
            records = list(_best([group[:most] for group in ranked], form, least, target, why))
    if not records:
        reasons = "; ".join(f"{reason} ({count})" for reason, count in why.most_common())
        raise UserError(f"no record comes of {len(groups)} prompts in {kept}: {reasons or 'there are none'}")
    write_atomically(target / name, "".join(json.dumps(record) + "\n" for record in records).encode())
    terminal.say(f"{len(records)} {NAMES[form]} of {len(groups)} prompts in ", (str(target / name), "bold"))
    for reason, count in why.most_common():
        terminal.say(f"left out: {reason} ({count})")
    return 0


def _samples(place: Path, folder: RunFolder) -> list[Sample]:
    """The samples of a prompt of an update, in order; what no run wrote, and what has files elsewhere, is left out."""
    samples = [] if place.name.startswith(".") else read_records(place / RECORDS, _SAMPLE, folder.path)
    return [sample | {"place": place} for sample in samples if _is_sound(sample, place)]


def _is_sound(sample: Sample, place: Path) -> bool:
    try:
        values = [sample["reward"], *sample["components"].values()]
        names = [name for value in _shown(sample).values() for name in ([value] if isinstance(value, str) else value)]
        names += filter(None, [sample.get("file_name")])
        inside = all(Path(name).name == name and not leads_out(place / name, place) for name in names)
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    return inside and isinstance(sample["prompt"], str) and all(one is None or is_number(one) for one in values)


def _shown(sample: Sample) -> dict[str, Any]:
    """Names of the files of a sample's prompt, by key of a record."""
    shown = {kind: sample[kind] for kind in ("images", "videos", "audios") if sample.get(kind)}
    return shown | (parse_json(sample["inputs"]) if sample.get("inputs") else {})


def _ranked(group: list[Sample], by: str, why: Counter[str]) -> list[tuple[float, Sample]]:
    """The samples of a prompt that can be learned from with their scores, the best first."""
    usable = []
    for sample in group:
        score = sample["reward"] if by == "reward" else sample["components"].get(by)
        file = sample.get("file_name")
        if score is None:
            why["samples without a reward"] += 1
        elif file is not None and not file.endswith((*STILL, *MOVING)):
            why["sounds, which no algorithm reads from files"] += 1
        elif file is None and not sample.get("finished"):
            why["responses that were cut off, whose end would be learned"] += 1
        elif sample.get("turns", 1) != 1:
            why["dialogues of several turns"] += 1
        else:
            usable.append((score, sample))
    return sorted(usable, key=lambda pair: -pair[0])


def _best(
    groups: list[list[tuple[float, Sample]]], form: str, least: float | None, target: Path, why: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Samples, each once."""
    seen: set[tuple[str, bytes]] = set()
    for score, sample in (pair for group in groups for pair in group):
        key = (sample.get("uid") or sample["prompt"], _content(sample))
        if least is not None and score < least:
            why[f"samples that score below {least:g}"] += 1
        elif key in seen:
            why["samples that came again"] += 1
        else:
            seen.add(key)
            name = "response" if sample.get("file_name") is None else "image"
            scored = "score" if form == "scores" else "reward"
            yield _about(sample, target) | {name: _made(sample, target), scored: score}


def _pairs(
    ranked: list[tuple[float, Sample]], margin: float, most: int, target: Path, why: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Pairs of the samples of a prompt: the best with the worst, the second with the second, and so on."""
    halves = zip(ranked[: len(ranked) // 2], ranked[::-1], strict=False)
    pairs = [
        (better, worse) for better, worse in halves
        if better[0] > worse[0] and better[0] - worse[0] >= margin and _content(better[1]) != _content(worse[1])
    ][:most]  # fmt: skip
    for (high, better), (low, worse) in pairs:
        record = _about(better, target) | {"margin": high - low, "chosen_reward": high, "rejected_reward": low}
        yield record | {"chosen": _made(better, target), "rejected": _made(worse, target)}
    if not pairs:
        why[f"prompts whose samples differ by less than {margin:g}" if margin else "prompts of equal rewards"] += 1


def _content(sample: Sample) -> bytes:
    """What is preferred, or not."""
    file = sample.get("file_name")
    return str(sample["response"]).encode() if file is None else (sample["place"] / file).read_bytes()


def _about(sample: Sample, target: Path) -> dict[str, Any]:
    """A prompt with copies of its files, and where a sample comes from."""
    prompt = parse_json(sample["messages"]) if sample.get("messages") else sample["prompt"]
    record: dict[str, Any] = {"prompt": prompt, "update": sample.get("update")}
    record |= {name: sample[name] for name in ("negative_prompt", "answer", "data_source", "label") if sample.get(name)}
    for key, files in _shown(sample).items():
        copies = [_copied(sample["place"] / file, target) for file in ([files] if isinstance(files, str) else files)]
        record[key] = copies[0] if isinstance(files, str) else copies
    return record


def _made(sample: Sample, target: Path) -> str:
    """A response, or the copy of an image."""
    file = sample.get("file_name")
    return str(sample["response"]) if file is None else _copied(sample["place"] / file, target)


def _copied(file: Path, target: Path) -> str:
    name = f"{MEDIA}/{file.parent.name}-{file.name}"
    if not (target / name).exists():
        shutil.copyfile(file, target / name)
    return name
