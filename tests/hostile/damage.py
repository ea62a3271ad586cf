"""Files of every kind that is read, damaged in every way that disks, editors and people damage files."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.hostile.cases import Case, Place

Damage = Callable[[Path, random.Random], None]


def _rewrite(change: Callable[[bytes, random.Random], bytes]) -> Damage:
    def damage(path: Path, draw: random.Random) -> None:
        path.write_bytes(change(path.read_bytes(), draw))

    return damage


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


def _flip_head(content: bytes, draw: random.Random) -> bytes:
    """Where a file says what it is."""
    return _flip(content[:64], draw) + content[64:]


ANY: dict[str, Damage] = {
    "missing": lambda path, draw: path.unlink(),
    "empty": _rewrite(lambda content, draw: b""),
    "cut short": _rewrite(lambda content, draw: content[: draw.randrange(1, len(content))]),
    "without its end": _rewrite(lambda content, draw: content[:-1]),
    "flipped bits": _rewrite(_flip),
    "flipped bits in its head": _rewrite(_flip_head),
    "noise": _rewrite(lambda content, draw: draw.randbytes(1000)),
    "zeros": _rewrite(lambda content, draw: bytes(len(content))),
    "twice": _rewrite(lambda content, draw: content * 2),
    "a folder": _replace(lambda path: path.mkdir()),
    "a loop": _replace(lambda path: path.symlink_to(path.name)),
    "a pipe": _replace(lambda path: os.mkfifo(path)),
    "a link to nothing": _replace(lambda path: path.symlink_to("nothing at all")),
}
TEXT: dict[str, Damage] = {
    "byte order mark": _rewrite(lambda content, draw: b"\xef\xbb\xbf" + content),
    "other ends of lines": _rewrite(lambda content, draw: content.replace(b"\n", b"\r\n")),
    "UTF-16": _rewrite(lambda content, draw: content.decode().encode("utf-16")),
    "not UTF-8": _rewrite(lambda content, draw: content.replace(b"a", b"\xe4")),
    "NUL": _rewrite(lambda content, draw: content[:9] + b"\0" + content[9:]),
    "a huge line": _rewrite(lambda content, draw: content + b"x" * 3_000_000 + b"\n"),
    "deep": _rewrite(lambda content, draw: b"[" * 100_000 + b"]" * 100_000),
    "deep object": _rewrite(lambda content, draw: b'{"prompt":' * 20_000 + b"1" + b"}" * 20_000),
    "null": _rewrite(lambda content, draw: b"null"),
    "a list": _rewrite(lambda content, draw: b"[]"),
    "a number": _rewrite(lambda content, draw: b"3"),
    "a huge number": _rewrite(lambda content, draw: b"1" * 10_000),
    "an object": _rewrite(lambda content, draw: b"{}"),
}
SUFFIXES = (".json", ".jsonl", ".txt", ".yaml", ".jinja", ".py", ".csv")


def _png(width: int, height: int, *more: tuple[bytes, bytes]) -> bytes:
    """A PNG that says it has this size; further chunks by kind."""
    head = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    found = b"\x89PNG\r\n\x1a\n"
    for kind, data in (head, *more, (b"IDAT", zlib.compress(bytes(200))), (b"IEND", b"")):
        found += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return found


SPECIAL: dict[str, dict[str, Damage]] = {  # of single files
    "chat_template.jinja": {
        "text without end": _rewrite(lambda content, draw: b"{{ 'a' * 100000000 }}" + content),
        "memory without end": _rewrite(
            lambda content, draw: (
                b"{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}" + content
            )
        ),
        "parentheses": _rewrite(lambda content, draw: b"{{ " + b"(" * 100_000 + b"1" + b")" * 100_000 + b" }}"),
        "recursion": _rewrite(lambda content, draw: b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}" + content),
    },
    "tokenizer.json": {
        f"split by {one}": lambda path, draw, one=one: _entry(
            "pre_tokenizer", {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
        )(path, draw)
        for one in ("(a+)+$", "(a|a)*b$", "(?:x?){2000}y", "(")
    },
}
SPECIAL |= {
    "0.png": {
        "billions of pixels": _rewrite(lambda content, draw: _png(60_000, 60_000)),
        "a text that swells": _rewrite(
            lambda content, draw: _png(8, 8, (b"zTXt", b"a\0\0" + zlib.compress(bytes(100 << 20))))
        ),
        "PostScript": _rewrite(
            lambda content, draw: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n"
        ),
        "SVG": _rewrite(
            lambda content, draw: b'<svg xmlns="http://www.w3.org/2000/svg" width="9999999" height="9999999"/>'
        ),
    },
}
ODD: list[Any] = [None, "x", -1, 10**9, 1.5, [], {}, [None], {"x": [1]}, True, 10**30, ""]


def data_cases() -> Iterator[Case]:
    """Prompts, records and pictures."""
    files = {
        "drawing": {"prompts.txt": "prompts.txt", "prompts.jsonl": "prompts.jsonl"},
        "pictures": {"captions.jsonl": "captions.jsonl", "pictures/0.png": "captions.jsonl",
                     "pictures/1.txt": "pictures"},
        "seeing": {"prompts-seeing.jsonl": "prompts-seeing.jsonl", "questions.json": "questions.json",
                   "questions.parquet": "questions.parquet", "pictures/0.png": "prompts-seeing.jsonl"},
    }  # fmt: skip
    for task, targets in files.items():
        for target, read in targets.items():
            for name, damage in damages(target):
                yield _data(task, target, read, name, damage)


def _data(task: str, target: str, read: str, name: str, damage: Damage) -> Case:
    def make(place: Place, scratch: Path) -> list[str]:
        for one in {target.partition("/")[0], read, "pictures"}:
            _copy(place.folder / one, scratch / one)
        hurt(scratch / target, damage, f"{task} {target} {name}")
        more = ["algorithm=sft", f"data.val_files={place.folder / 'prompts.txt'}"] if task == "pictures" else []
        recipe = place.recipe("drawing" if task == "pictures" else task)
        return ["train", str(recipe), *more, f"data.train_files={read}"]

    return Case(
        kind="data", name=f"{task} {target}, {name}", make=make, expect="either", words=(Path(target).stem.rstrip("s"),)
    )


def model_cases() -> Iterator[Case]:
    """Folders of models: every file of them, and every entry of their configurations."""
    for task, files in (("drawing", DRAWING), ("seeing", SEEING)):
        for file in files:
            for name, damage in damages(file):
                yield _model(task, file, name, damage)
        for file in files:
            if file in CONFIGS:
                for key in CONFIGS[file]:
                    for value in ODD:
                        yield _model(task, file, f"{key} is {json.dumps(value)}", _entry(key, value))


def _model(task: str, file: str, name: str, damage: Damage) -> Case:
    def make(place: Place, scratch: Path) -> list[str]:
        _copy(place.folder / ("pipeline" if task == "drawing" else "language"), scratch / "model")
        hurt(scratch / "model" / file, damage, f"{task} {file} {name}")
        return ["train", str(place.recipe(task)), "model.path=model"]

    # a wrong schedule or size is seen in pictures, which are then what is complained of
    words = () if file.startswith(("scheduler", "preprocessor", "video")) else ("model",)
    return Case(kind="models", name=f"{task} {file}, {name}", make=make, expect="either", words=words)


def run_cases() -> Iterator[Case]:
    """Folders of runs, by every command that reads them."""
    commands = {
        "train": ["train", "{recipe}", "steps=3"],
        "report": ["report", "run"],
        "eval": ["eval", "run", "-o", "out"],
        "export": ["export", "run", "-o", "out"],
        "sample": ["sample", "run", "a cat", "-n", "1", "-o", "out"],
    }
    files = {
        "config.yaml": ("train", "report", "eval", "export", "sample"),
        "metrics.jsonl": ("train", "report"),
        "checkpoints/00000002/manifest.json": ("train", "eval", "export", "sample"),
        "checkpoints/00000002/state.json": ("train", "eval", "export"),
        "checkpoints/00000002/tensors/rank-00000.safetensors": ("train", "eval"),
        "validation/000002/samples.jsonl": ("report",),
        "validation/000002/scores.jsonl": ("report",),
        "validation/000002/prompts.jsonl": ("report",),
        "groups.jsonl": ("train", "report"),
        "timeline.jsonl": ("train", "report"),
        "validation/000002/pictures/000-00.png": ("report",),
        "checkpoints": ("train", "eval"),
        "validation": ("train", "report"),
        ".claim": ("train", "report"),
    }
    for task in ("drawing", "seeing"):
        for file, verbs in files.items():
            for name, damage in damages(file):
                for verb in verbs:
                    yield _run(task, file, name, damage, verb, commands[verb])


def _run(task: str, file: str, name: str, damage: Damage, verb: str, command: list[str]) -> Case:
    def make(place: Place, scratch: Path) -> list[str]:
        _copy(place.run(task), scratch / "run")
        hurt(scratch / "run" / file, damage, f"{task} {file} {name} {verb}")
        return [one.replace("{recipe}", str(place.recipe(task))) for one in command]

    changes = {"train": ("run/",), "report": ("run/report.html",)}.get(verb, ())
    return Case(kind="runs", name=f"{verb} {task} {file}, {name}", make=make, expect="either", changes=changes)


def damages(file: str) -> Iterator[tuple[str, Damage]]:
    """What can be done to a file, by its name."""
    yield from ANY.items()
    if file.endswith(SUFFIXES):
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


def _entry(key: str, value: Any) -> Damage:
    def damage(path: Path, draw: random.Random) -> None:
        content = json.loads(path.read_text())
        content[key] = value
        path.write_text(json.dumps(content))

    return damage


def _copy(source: Path, target: Path) -> None:
    if target.exists():
        return
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy(source, target)


DRAWING = (
    "model_index.json", "scheduler/scheduler_config.json", "transformer/config.json",
    "transformer/diffusion_pytorch_model.safetensors", "text_encoder/config.json", "text_encoder/model.safetensors",
    "text_encoder_2/model.safetensors", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json",
)  # fmt: skip
SEEING = (
    "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja", "preprocessor_config.json", "video_preprocessor_config.json",
)  # fmt: skip
# entries of the configurations that decide what a network is
CONFIGS = {
    "model_index.json": ("_class_name", "transformer", "scheduler", "tokenizer", "vae"),
    "scheduler/scheduler_config.json": ("shift", "num_train_timesteps", "_class_name", "use_dynamic_shifting"),
    "transformer/config.json": (
        "_class_name", "num_layers", "sample_size", "patch_size", "attention_head_dim", "in_channels", "qk_norm",
    ),
    "text_encoder/config.json": ("hidden_size", "vocab_size", "num_hidden_layers", "eos_token_id", "architectures"),
    "config.json": ("model_type", "text_config", "vision_config", "architectures", "image_token_id", "torch_dtype"),
    "generation_config.json": ("eos_token_id", "pad_token_id"),
    "tokenizer_config.json": ("tokenizer_class", "eos_token", "pad_token", "chat_template"),
    "preprocessor_config.json": ("patch_size", "merge_size", "size", "image_mean", "image_processor_type"),
}  # fmt: skip
