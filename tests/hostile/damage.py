"""Files of every kind that is read, damaged, swapped and forged in every way that disks, editors and people do it."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from burnish.config.yaml_text import parse
from tests.hostile.bench import Case, Place

Damage = Callable[[Path, random.Random], None]


def _rewrite(change: Callable[[bytes, random.Random], bytes]) -> Damage:
    return lambda path, draw: path.write_bytes(change(path.read_bytes(), draw)) and None


def _replace(put: Callable[[Path], None]) -> Damage:
    def damage(path: Path, draw: random.Random) -> None:
        path.unlink()
        put(path)

    return damage


def _flip(content: bytes, draw: random.Random) -> bytes:
    flipped = bytearray(content)
    for _ in range(3):
        flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
    return bytes(flipped)


def entry(key: str, value: Any) -> Damage:
    """Another value in a file of JSON."""

    def damage(path: Path, draw: random.Random) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return damage


ANY: dict[str, Damage] = {
    "missing": lambda path, draw: path.unlink(), "empty": _rewrite(lambda content, draw: b""),
    "cut short": _rewrite(lambda content, draw: content[: draw.randrange(1, len(content))]),
    "flipped bits": _rewrite(_flip), "noise": _rewrite(lambda content, draw: draw.randbytes(1000)),
    "a folder": _replace(lambda path: path.mkdir()), "a loop": _replace(lambda path: path.symlink_to(path.name)),
}  # fmt: skip
TEXT: dict[str, Damage] = {
    "not UTF-8": _rewrite(lambda content, draw: content.replace(b"a", b"\xe4")),
    "NUL": _rewrite(lambda content, draw: content[:9] + b"\0" + content[9:]),
    "deep": _rewrite(lambda content, draw: b"[" * 100_000 + b"]" * 100_000),
    **{text: _rewrite(lambda content, draw, text=text: text.encode()) for text in ("null", "[]", "3", "{}")},
}


SPECIAL: dict[str, dict[str, Damage]] = {  # of single files
    "chat_template.jinja": {
        "recursion": _rewrite(lambda content, draw: b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}" + content),
    },
}
ODD: list[Any] = [None, "x", -1, 1.5, [], {}, [None], {"x": [1]}, True, ""]


def damages(file: str) -> Iterator[tuple[str, Damage]]:
    """What can be done to a file, by its name."""
    yield from ANY.items()
    if file.endswith((".json", ".jsonl", ".txt", ".yaml", ".jinja", ".py", ".csv")):
        yield from TEXT.items()
    yield from SPECIAL.get(Path(file).name, {}).items()


def hurt(path: Path, damage: Damage, seed: str) -> None:
    """Damage a file; of a folder what can be done to one. What a family of models lacks is made up."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("not a folder")
    elif not path.exists():
        path.write_text("{}")
    damage(path, random.Random(seed))


def _case(
    kind: str, name: str, copied: dict[str, str], file: str, damage: Damage, command: list[str],
    words: tuple[str, ...] = (), changes: tuple[str, ...] = (),
) -> Case:  # fmt: skip
    """Damage a file in a copy of parts of the place, and do a command; {place} and {scratch} are folders."""

    def make(place: Place, scratch: Path) -> list[str]:
        for source, target in copied.items():
            if (place.folder / source).is_dir():
                shutil.copytree(place.folder / source, scratch / target, symlinks=True)
            else:
                shutil.copy(place.folder / source, scratch / target)
        hurt(scratch / file, damage, f"{kind} {name}")
        return [one.replace("{place}", str(place.folder)).replace("{scratch}", str(scratch)) for one in command]

    return Case(kind=kind, name=name, make=make, expect="either", words=words, changes=changes)


# files of models, with entries that decide what a network is
TABLE = parse((Path(__file__).parent / "damage.yaml").read_text())
MODELS: dict[str, dict[str, str]] = TABLE["models"]


def model_cases() -> Iterator[Case]:
    """Folders of models: every file of them, and every entry of their configurations."""
    for task, files in MODELS.items():
        copied = {"pipeline" if task == "drawing" else "language": "model"}
        command = ["train", f"{{place}}/{task}.yaml", "model.path=model"]
        for file, keys in files.items():
            odd = {f"{key} is {json.dumps(value)}": entry(key, value) for key in keys.split() for value in ODD}
            # a wrong schedule or size is seen in images, which are then what is complained of
            words = () if file.startswith(("scheduler", "preprocessor", "video")) else ("model",)
            for name, damage in (*damages(file), *odd.items()):
                yield _case("models", f"{task} {file}, {name}", copied, f"model/{file}", damage, command, words)


COMMANDS = {
    "train": "train {place}/TASK.yaml steps=3", "report": "report run", "eval": "eval run -o out",
    "export": "export run -o out", "sample": "sample run cat -n 1 -o out",
}  # fmt: skip
CHANGES = {"train": ("run/",), "report": ("run/report.html", "run/report.md")}
RUNS = TABLE["runs"]  # files of a run, with the commands that read them


def run_cases() -> Iterator[Case]:
    """Folders of runs, by every command that reads them."""
    for task in ("drawing", "seeing"):
        for file, verbs in RUNS.items():
            for name, damage in damages(file):
                for verb in verbs.split():
                    command = COMMANDS[verb].replace("TASK", task).split()
                    copied = {f"runs/{task}": "run"}
                    changes = CHANGES.get(verb, ())
                    said = f"{verb} {task} {file}, {name}"
                    yield _case("runs", said, copied, f"run/{file}", damage, command, changes=changes)


def recipe_cases() -> Iterator[Case]:
    """Damaged copies of a recipe that is right; tests/refusals has recipes that are none."""
    command = ["train", "recipe.yaml"]
    for name, damage in (ANY | TEXT).items():
        for time in range(40 if name in ("flipped bits", "cut short") else 1):
            said = f"damaged, {name}, {time}"
            yield _case("recipes", said, {"drawing.yaml": "recipe.yaml"}, "recipe.yaml", damage, command)
