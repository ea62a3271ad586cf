"""burnish pairs: data for DPO, SFT and reward models from the samples that a run has kept."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape

from burnish.commands.opening import output_folder
from burnish.config.run_folder import RunFolder
from burnish.utils import terminal
from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json
from burnish.utils.paths import LARGEST_RECORDS, RECORDS
from burnish.utils.reading import checked_path, read_file
from burnish.utils.records import is_number, leads_out

MEDIA = "media"
NAMES = {"pairs": "pairs", "sft": "samples to imitate", "scores": "scored samples"}  # of what each form makes
STILL = (".png", ".jpg", ".jpeg", ".webp")
SHOWN = ("images", "videos", "audios")


@dataclass(frozen=True)
class Kept:
    """A sample of a run."""

    folder: Path
    values: dict[str, Any]

    def score(self, by: str) -> float | None:
        """Its reward, or one of its components; None where it is missing."""
        found = self.values["reward"] if by == "reward" else self.values["components"].get(by)
        return None if found is None else float(found)

    @property
    def file(self) -> Path | None:
        """What was drawn."""
        return None if self.values.get("file_name") is None else self.folder / self.values["file_name"]

    @property
    def content(self) -> bytes:
        """What is preferred, or not."""
        return str(self.values["response"]).encode() if self.file is None else self.file.read_bytes()


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What becomes a record."""

    form: str  # of ``NAMES``
    by: str  # reward, or the name of a component
    margin: float  # least difference of a pair
    least: float | None  # least score of a sample to imitate
    most: int | None  # of a prompt and update

    def check(self) -> None:
        """Refuse what is never read."""
        if self.margin and self.form != "pairs":
            raise UserError(f"--margin is read by --form pairs alone, and --form is {self.form}; leave it out")
        if self.least is not None and self.form != "sft":
            raise UserError(f"--at-least is read by --form sft alone, and --form is {self.form}; leave it out")


def pairs(
    run: str,
    *,
    output: str,
    by: str,
    margin: float,
    most: int | None,
    form: str = "pairs",
    least: float | None = None,
    validation: bool = False,
) -> int:
    """Write data that algorithms learn from.

    ``pairs`` are the best and the worst samples of every prompt, for DPO and reward models; ``sft`` the best ones, to
    be imitated; ``scores`` all of them with their scores, for reward models.

    Args:
        run: folder of a run with ``rollout.save`` or ``validation.save``.
        output: folder to write.
        by: reward, or the name of a component.
        margin: least difference of a pair.
        most: records of a prompt and update: pairs of the best with the worst, the second with the second, and so on,
            or its best samples. None takes one, of ``scores`` all.
        form: pairs, sft or scores.
        least: least score of a sample to imitate.
        validation: take samples of validations, not of training.
    """
    wanted = Wanted(form=form, by=by, margin=margin, least=least, most=most)
    wanted.check()
    folder = RunFolder(checked_path(run, "RUN"))
    place, section = (
        (folder.validation_samples, "validation.save.prompts=64")
        if validation
        else (folder.samples, "rollout.save.every=10")
    )
    if not place.is_dir():
        raise UserError(f"{run} has no {place.name}: it kept no samples; train with {section}, for example")
    target, name = output_folder(output, "pairs"), f"{form}.jsonl"
    if (target / name).exists():
        raise UserError(f"--output is {output}, which has {name}; give another folder")
    why: Counter[str] = Counter()
    groups = list(_groups(place, folder, why))
    if by != "reward" and not any(by in one.values["components"] for group in groups for one in group):
        known = sorted({name for group in groups for one in group for name in one.values["components"]})
        raise UserError(f"--by is {by}, which {run} has no scores of; it has reward, {', '.join(known)}")
    with writing(target):
        (target / MEDIA).mkdir(exist_ok=True)
        records = list(_records(groups, wanted, target, why))
    if not records:
        reasons = "; ".join(f"{reason} ({count})" for reason, count in why.most_common())
        one = "pair" if form == "pairs" else "record"
        raise UserError(f"no {one} comes of {len(groups)} prompts in {place}: {reasons or 'there are none'}")
    write_atomically(target / name, "".join(json.dumps(record) + "\n" for record in records).encode())
    console = terminal.console(highlight=False)
    written = escape(str(target / name))
    console.print(f"{len(records)} {NAMES[form]} of {len(groups)} prompts in [bold]{written}[/bold]")
    for reason, count in why.most_common():
        console.print(f"left out: {escape(reason)} ({count})")
    return 0


def _records(
    groups: Sequence[Sequence[Kept]], wanted: Wanted, target: Path, why: Counter[str]
) -> Iterator[dict[str, Any]]:
    seen: set[tuple[Any, bytes]] = set()
    for group in groups:
        usable = _usable(group, wanted, why)
        if wanted.form == "pairs":
            yield from (_pair(better, worse, wanted.by, target) for better, worse in _chosen(usable, wanted, why))
            continue
        for one in usable[: wanted.most or (1 if wanted.form == "sft" else len(usable))]:
            score = float(one.score(wanted.by) or 0.0)
            if wanted.least is not None and score < wanted.least:
                why[f"prompts whose best samples score below {wanted.least:g}"] += 1
                break
            key = (one.values.get("uid", one.values["prompt"]), one.content)
            if key in seen:
                why["samples that came again"] += 1
                continue
            seen.add(key)
            made = {"response": one.values["response"]} if one.file is None else {"image": _copied(one.file, target)}
            yield _about(one, target) | made | {"score" if wanted.form == "scores" else "reward": score}


def _groups(samples: Path, folder: RunFolder, why: Counter[str]) -> Iterator[list[Kept]]:
    """The samples of every prompt of an update that were kept, in order."""
    for place in sorted(samples.iterdir()):
        file = place / RECORDS
        if place.name.startswith(".") or not file.is_file() or leads_out(file, folder.path):
            continue
        found = []
        for line in read_file(file, LARGEST_RECORDS).splitlines():
            try:
                values = parse_json(line)
            except ValueError:
                values = None
            if _is_record(values) and not any(leads_out(place / name, place) for name in _files(values)):
                found.append(Kept(place, values))
            else:
                why["records that no run has written"] += 1
        if found:
            yield found


def _is_record(values: Any) -> bool:
    if not isinstance(values, dict) or not isinstance(values.get("components"), dict):
        return False
    numbers = [values.get("reward"), *values["components"].values()]
    said = isinstance(values.get("response"), str) and type(values.get("turns")) is int
    return (
        isinstance(values.get("prompt"), str)
        and all(one is None or is_number(one) for one in numbers)
        and (isinstance(values.get("file_name"), str) or said)
        and all(isinstance(name, str) and Path(name).name == name for name in _files(values))
    )


def _files(values: dict[str, Any]) -> list[Any]:
    """Names of the files of a record."""
    shown = [name for kind in SHOWN for name in values.get(kind) or ()]
    return [*([values["file_name"]] if values.get("file_name") is not None else []), *shown, *_inputs(values).values()]


def _inputs(values: dict[str, Any]) -> dict[str, Any]:
    try:
        found = parse_json(values.get("inputs") or "{}")
    except (ValueError, TypeError):
        return {"": None}  # no name of a file, so that the record is refused
    return found if isinstance(found, dict) else {"": None}


def _usable(group: Sequence[Kept], wanted: Wanted, why: Counter[str]) -> list[Kept]:
    """The samples of a prompt that can be learned from, the best first."""
    usable = []
    for one in group:
        if one.score(wanted.by) is None:
            why["samples without a reward"] += 1
        elif one.file is not None and one.file.suffix not in STILL:
            why["clips and sounds, which no algorithm reads from files"] += 1
        elif one.file is None and not one.values.get("finished"):
            why["responses that were cut off, whose end would be learned"] += 1
        elif one.file is None and one.values["turns"] != 1:
            why["dialogues of several turns"] += 1
        else:
            usable.append(one)
    return sorted(usable, key=lambda one: -float(one.score(wanted.by) or 0.0))


def _chosen(ranked: Sequence[Kept], wanted: Wanted, why: Counter[str]) -> Iterator[tuple[Kept, Kept]]:
    """Pairs of the samples of a prompt, the widest first."""
    count, by, margin = 0, wanted.by, wanted.margin
    for better, worse in zip(ranked[: len(ranked) // 2], ranked[::-1], strict=False):
        apart = float(better.score(by) or 0.0) - float(worse.score(by) or 0.0)
        if count >= (wanted.most or 1) or apart <= 0 or apart < margin:
            break
        if better.content != worse.content:
            count += 1
            yield better, worse
    if not count:
        why[f"prompts whose samples differ by less than {margin:g}" if margin else "prompts of equal rewards"] += 1


def _pair(better: Kept, worse: Kept, by: str, target: Path) -> dict[str, Any]:
    """A pair in the form that training reads, with copies of its files."""
    scores = [float(one.score(by) or 0.0) for one in (better, worse)]
    record = _about(better, target)
    record |= {"margin": scores[0] - scores[1], "chosen_reward": scores[0], "rejected_reward": scores[1]}
    if better.file is None or worse.file is None:
        return record | {"chosen": better.values["response"], "rejected": worse.values["response"]}
    return record | {"chosen": _copied(better.file, target), "rejected": _copied(worse.file, target)}


def _about(one: Kept, target: Path) -> dict[str, Any]:
    """A prompt with copies of its files, and where a sample comes from."""
    values = one.values
    record: dict[str, Any] = {
        "prompt": parse_json(values["messages"]) if values.get("messages") else values["prompt"],
        "update": values.get("update"),
    }  # fmt: skip
    for name in ("negative_prompt", "answer", "data_source", "label"):
        if isinstance(values.get(name), str) and values[name]:
            record[name] = values[name]
    for kind in SHOWN:
        if values.get(kind):
            record[kind] = [_copied(one.folder / name, target) for name in values[kind]]
    return record | {name: _copied(one.folder / file, target) for name, file in _inputs(values).items()}


def _copied(file: Path, target: Path) -> str:
    name = f"{MEDIA}/{file.parent.name}-{file.name}"
    if not (target / name).exists():
        shutil.copyfile(file, target / name)
    return name
