"""What training left behind as plain data: groups of samples with rewards and advantages, and where time went."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from burnish.config.run_folder import STEP, RunFolder
from burnish.report.points import MOST, fewer, short
from burnish.report.reading import is_number, leads_out
from burnish.report.run_list import stamp
from burnish.report.samples import said
from burnish.report.summary import Summary
from burnish.report.validated import LABEL, cut, largest, lines_of, prompt_row

READ = 64 << 20  # bytes of a file that are read, from its end
MOST_GROUPS = 64  # of an update
MOST_PROMPTS = 5000  # of training in a table
MEDIA = (".png", ".jpg", ".mp4", ".webp", ".wav")

Group = dict[str, Any]


def groups(folder: RunFolder, update: int | None = None) -> dict[str, Any]:
    """The groups of an update, the last one if None, and of which updates there are some."""
    found = _recorded(str(folder.groups), *stamp(folder.groups))
    updates = sorted(found)
    wanted = updates[-1] if update is None and updates else update
    kept = _kept(folder, wanted) if wanted is not None else {}
    shown = []
    for one in found.get(wanted or 0, [])[:MOST_GROUPS]:
        samples = [
            {"sample": number, "reward": reward, "advantage": advantage} | kept.get((one["uid"], number), {})
            for number, reward, advantage in zip(one["samples"], one["rewards"], one["advantages"], strict=True)
        ]
        shown.append({"prompt": cut(one["prompt"], LABEL * 5), "source": one["source"], "samples": samples})
    return {"updates": updates, "update": wanted, "groups": shown, "kept": _kept_updates(folder)}


def trained_prompts(folder: RunFolder) -> dict[str, Any]:
    """Every recorded training prompt with the rewards of its groups over the updates."""
    rewards: defaultdict[str, dict[int, list[float]]] = defaultdict(dict)
    about: dict[str, Group] = {}
    recorded = _recorded(str(folder.groups), *stamp(folder.groups))
    for update in sorted(recorded):
        for one in recorded[update]:
            known = [reward for reward in one["rewards"] if reward is not None]
            if known and (one["uid"] in about or len(about) < MOST_PROMPTS):
                rewards[one["uid"]].setdefault(update, []).extend(known)
                about[one["uid"]] = one
    room = largest(rewards.values())
    rows = [
        prompt_row(index, rewards[uid], room)
        | {"prompt": cut(one["prompt"], LABEL), "source": one["source"], "answer": None, "seen": len(rewards[uid])}
        | {"update": max(rewards[uid])}
        for index, (uid, one) in enumerate(about.items())
    ]
    return {"updates": sorted(recorded), "prompts": rows, "kept": []}


@lru_cache(maxsize=16)
def _recorded(file: str, *changed: int) -> dict[int, list[Group]]:
    """Groups by update; of an update that was repeated after a crash, those that count."""
    path = Path(file)
    if not path.is_file() or leads_out(path, path.parent):
        return {}
    found: dict[int, list[Group]] = {}
    for line in lines_of(path, READ):
        update, several = line.get("update"), line.get("groups")
        if type(update) is int and isinstance(several, list):
            found[update] = [one for one in several if _is_group(one)]
    return found


def _is_group(one: Any) -> bool:
    if not isinstance(one, dict) or not all(isinstance(one.get(key), str) for key in ("uid", "prompt", "source")):
        return False
    columns = [one.get(key) for key in ("samples", "rewards", "advantages")]
    if not all(isinstance(column, list) and len(column) == len(columns[0] or ()) for column in columns):
        return False
    return all(value is None or is_number(value) for column in columns for value in column or ())


def _kept_updates(folder: RunFolder) -> list[int]:
    """Updates of which samples were kept as files."""
    names = (place.name[:6] for place in folder.samples.iterdir()) if folder.samples.is_dir() else ()
    return sorted({int(name) for name in names if name.isdecimal()})


def _kept(folder: RunFolder, update: int) -> dict[tuple[str, int], dict[str, Any]]:
    """Of the samples that were kept as files (rollout.save): what each shows or says, by prompt and number."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for place in sorted(folder.samples.glob(f"{update:06d}-*")) if folder.samples.is_dir() else ():
        records = place / "records.jsonl"
        if place.is_symlink() or not records.is_file() or leads_out(records, folder.path):
            continue
        for line in lines_of(records, READ):
            try:
                found[str(line["uid"]), int(line["sample"])] = _shown(line, place, folder)
            except (KeyError, TypeError, ValueError):
                continue
    return found


def _shown(line: Mapping[str, Any], place: Path, folder: RunFolder) -> dict[str, Any]:
    found: dict[str, Any] = {"note": cut(str(line.get("note") or ""), 2000)}
    if isinstance(line.get("response"), str):
        found["response"] = cut(line["response"])
        found["tokens"] = said(line)
    name = line.get("file_name")
    if isinstance(name, str) and Path(name).name == name and name.endswith(MEDIA) and (place / name).is_file():
        found["file"] = (place / name).relative_to(folder.path).as_posix()
    components = line.get("components")
    if isinstance(components, dict):
        found["components"] = {str(key): short(value) for key, value in components.items() if is_number(value)}
    return found


def time_data(folder: RunFolder, run: Summary, update: int | None = None) -> dict[str, Any]:
    """Seconds by phase over the updates, and who did what when during one of them, the last one if None."""
    rows = [row for row in run.rows if is_number(row.get("timing_s/step"))]
    steps: list[tuple[int, float | None]] = [(row[STEP], row["timing_s/step"]) for row in rows]
    places = fewer(steps, MOST)
    names = sorted({key.removeprefix("timing_s/") for row in rows for key in row if key.startswith("timing_s/")})
    phases = {
        name: [short(rows[place].get(f"timing_s/{name}") or 0.0) for place in places]
        for name in names
        if name != "step" and "/" not in name  # parts of a phase are not counted twice
    }
    means = {name: short(_mean([row.get(f"timing_s/{name}") or 0.0 for row in rows])) for name in names}
    spans = _spans(str(folder.timeline), *stamp(folder.timeline))
    updates = sorted(spans)
    wanted = updates[-1] if update is None and updates else update
    return {
        "x": [steps[place][0] for place in places], "step": [short(steps[place][1]) for place in places],
        "phases": phases, "means": means, "updates": updates, "update": wanted, "spans": spans.get(wanted or 0, []),
    }  # fmt: skip


@lru_cache(maxsize=16)
def _spans(file: str, *changed: int) -> dict[int, list[dict[str, Any]]]:
    path = Path(file)
    if not path.is_file() or leads_out(path, path.parent):
        return {}
    found: dict[int, list[dict[str, Any]]] = {}
    for line in lines_of(path, READ):
        update, lanes = line.get("update"), line.get("lanes")
        if type(update) is int and isinstance(lanes, dict):
            found[update] = [{"lane": lane, "spans": some} for lane, some in lanes.items() if _are_spans(some)]
    return found


def _are_spans(some: Any) -> bool:
    return isinstance(some, list) and all(
        isinstance(one, list) and len(one) == 3 and isinstance(one[0], str) and is_number(one[1]) and is_number(one[2])
        for one in some
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(len(values), 1)
