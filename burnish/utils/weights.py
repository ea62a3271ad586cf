"""Weights on the disk: whether their files are whole, and networks that come from them without a random number."""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json, read_object

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)

MOST = {"layer|depth|block": 10_000, "num_train_timesteps": 1_000_000}  # in a configuration
NAMED = 3  # tensors that a message names
PICKLED = (".bin", ".pt", ".pth", ".ckpt")  # whose insides are not looked at
VOCABULARIES = ("tokenizer.json", "*.model", "vocab.txt", "tekken.json", "*.tiktoken")
LONGEST = 100 << 20  # bytes of a head: what safetensors reads at most


def complaints_about(folder: Path) -> Iterator[str]:
    """What is wrong with the weights in a folder: none at all, one of several files missing, or one cut short."""
    files = sorted(folder.glob("*.safetensors"))
    listed = [name for index in sorted(folder.glob("*.safetensors.index.json")) for name in _listed(index)]
    absent = [name for name in dict.fromkeys(listed) if not (folder / name).is_file()]
    if absent:
        yield f"{folder} lacks {', '.join(absent)}, as its index lists; fetch the model again"
    elif not files and not any(file.suffix in PICKLED for file in folder.iterdir()):
        yield f"{folder} has no weights (no file that ends with .safetensors); fetch the model again"
    for file in files:
        problem = _problem(file)
        if problem:
            yield f"{file} {problem}; fetch the model again"


def tokenizer_complaint(folder: Path) -> str:
    """What a tokenizer's folder lacks; libraries make one that knows no word of what is there. Empty if nothing."""
    if any(any(folder.glob(name)) for name in VOCABULARIES):
        return ""
    if (folder / "vocab.json").is_file():
        if (folder / "merges.txt").is_file():
            return ""
        return f"{folder} has a vocab.json without its merges.txt; fetch the model again"
    return f"{folder} has no tokenizer (tokenizer.json, or vocab.json with merges.txt); fetch the model again"


def _listed(index: Path) -> list[str]:
    try:
        return list(parse_json(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [f"{index.name} that can be read"]


def _problem(file: Path) -> str:
    """Why a safetensors file can't be read; empty where its head and its size agree."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            head = opened.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else LONGEST + 1
            if length > LONGEST or 8 + length > size:
                return f"is no safetensors file, or cut off: {size} bytes"
            tensors: dict[str, Any] = parse_json(opened.read(length))
        end = max((one["data_offsets"][1] for name, one in tensors.items() if name != "__metadata__"), default=0)
    except OSError as error:
        return f"can't be read: {error.strerror}"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return "has a damaged head"
    lacking = 8 + length + end - size
    return f"is cut off: {lacking} of {8 + length + end} bytes are missing" if lacking > 0 else ""


def load_network(kind: Any, folder: Path, **options: Any) -> Any:
    """What ``kind.from_pretrained`` makes of a folder, where all of it comes from there.

    Both libraries fill in what they don't find, at random and with a warning that nobody reads.

    Raises:
        UserError: weights are missing, have another shape, belong to layers that the configuration has not, or the
            folder can't be loaded at all.
    """
    refuse_oversized(folder / "config.json")
    try:
        with _silence():
            network, report = kind.from_pretrained(
                folder, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True, **options
            )
    except Exception as error:  # the files are the user's: libraries raise whatever they like
        why = f"{_told(error)}; fetch the model again, or give the config.json that belongs to it"
        raise UserError(f"{folder} can't be loaded as {kind.__name__}: {why}") from error
    where = _file(folder)
    missing = sorted(report["missing_keys"])
    if missing:
        raise UserError(
            f"{where} lacks {_named(missing)}, which {type(network).__name__} needs by its config.json and which would "
            "be random; fetch the model again, or give the config.json that belongs to it"
        )
    shapes = sorted(report.get("mismatched_keys") or ())
    if shapes:
        name, theirs, ours = shapes[0]
        raise UserError(
            f"{where} holds {_named([one[0] for one in shapes])} in another shape than config.json says: {name} is "
            f"{list(theirs)}, not {list(ours)}; give the config.json that belongs to it"
        )
    if report.get("error_msgs"):
        raise UserError(
            f"{where} can't be loaded as {kind.__name__}: {'; '.join(map(str, report['error_msgs'][:NAMED]))}"
        )
    _refuse_further_layers(where, network, sorted(report.get("unexpected_keys") or ()))
    return network


def refuse_oversized(file: Path) -> None:
    """Refuse a configuration of so many layers, or of a scheduler of so many steps, that they would take for ever."""
    config = read_object(file) if file.is_file() else {}
    for part in (config, *(one for one in config.values() if isinstance(one, dict))):
        for name, value in part.items():
            most = next((most for words, most in MOST.items() if re.search(words, name)), None)
            if most is not None and type(value) is int and value > most:
                raise UserError(f"{file} says {name} {value}, which no model has; fetch the model again")


def refuse_non_finite(network: nn.Module, folder: Path) -> None:
    """Refuse weights that are NaN or infinite: whatever they are asked for, they answer with nothing else.

    Raises:
        UserError: naming the first ones.
    """
    import torch

    def broken(value: Any) -> bool:
        # a sum reads each number once and keeps nothing; only where it is not finite do the numbers have to be
        return value.is_floating_point() and not bool(
            value.sum(dtype=torch.float32).isfinite() or value.isfinite().all()
        )

    found = [name for name, value in network.named_parameters() if broken(value)]
    if found:
        raise UserError(f"{_file(folder)} holds values that are not finite in {_named(found)}; fetch the model again")


def _refuse_further_layers(where: Path, network: nn.Module, further: Sequence[str]) -> None:
    """Refuse more layers than the network was made with, and tell of what else is not read."""
    known = {_pattern(name) for name in network.state_dict()}
    layers = [name for name in further if _pattern(name) in known]
    if layers:
        raise UserError(
            f"{where} holds {_named(layers)}, for which {type(network).__name__} has no place by its config.json: it "
            "would be trained without these layers; give the config.json that belongs to it"
        )
    if further:
        log.warning("%s holds %s, which %s has no use for", where, _named(further), type(network).__name__)


@contextmanager
def _silence() -> Iterator[None]:
    """Without the tables that both libraries log about what they didn't find: it is refused in a sentence."""
    loggers = [logging.getLogger(name) for name in ("transformers", "diffusers")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _file(folder: Path) -> Path:
    """The file that holds the weights, or their folder where there are several."""
    files = sorted(folder.glob("*.safetensors"))
    return files[0] if len(files) == 1 else folder


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} tensors more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _told(error: Exception) -> str:
    """What a library raised, on one line and not too long."""
    text = " ".join(str(error).split())
    kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
    return kind + (text if len(text) <= 400 else f"{text[:400]}...")
