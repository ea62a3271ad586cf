"""Weight files: checks that they are complete, and loading without randomly initialised weights."""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json, read_object

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)

MOST = {"layer|depth|block": 10_000, "num_train_timesteps": 1_000_000}  # values of a config.json
NAMED = 3  # tensors that a message names
PICKLED = (".bin", ".pt", ".pth", ".ckpt")  # not inspected
VOCABULARIES = ("tokenizer.json", "*.model", "vocab.txt", "tekken.json", "*.tiktoken")
LONGEST = 100 << 20  # bytes of a header: the limit of safetensors


def complaints_about(folder: Path) -> Iterator[str]:
    """Problems of the weights in a folder: none, files missing, or a file truncated."""
    files = sorted(folder.glob("*.safetensors"))
    listed = [name for index in sorted(folder.glob("*.safetensors.index.json")) for name in _listed(index)]
    absent = [name for name in dict.fromkeys(listed) if not (folder / name).is_file()]
    if absent:
        yield f"{folder} lacks {', '.join(absent)}, listed in its index; fetch the model again"
    elif not files and not any(file.suffix in PICKLED for file in folder.iterdir()):
        yield f"{folder} has no weights (no file that ends with .safetensors); fetch the model again"
    for file in files:
        problem = _problem(file)
        if problem:
            yield f"{file} {problem}; fetch the model again"


def tokenizer_complaint(folder: Path) -> str:
    """What a tokenizer's folder lacks, or ""; libraries would load a tokenizer without vocabulary."""
    if any(any(folder.glob(name)) for name in VOCABULARIES):
        return ""
    if (folder / "vocab.json").is_file():
        if (folder / "merges.txt").is_file():
            return ""
        return f"{folder} has a vocab.json but no merges.txt; fetch the model again"
    return f"{folder} has no tokenizer (tokenizer.json, or vocab.json with merges.txt); fetch the model again"


def _listed(index: Path) -> list[str]:
    try:
        return list(parse_json(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [f"{index.name} that can be read"]


def _problem(file: Path) -> str:
    """Why a safetensors file can't be read; "" if its header and size agree."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            head = opened.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else LONGEST + 1
            if length > LONGEST or 8 + length > size:
                return f"is no safetensors file, or truncated: {size} bytes"
            tensors: dict[str, Any] = parse_json(opened.read(length))
        end = max((one["data_offsets"][1] for name, one in tensors.items() if name != "__metadata__"), default=0)
    except OSError as error:
        return f"can't be read: {error.strerror}"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return "has a damaged header"
    lacking = 8 + length + end - size
    return f"is truncated: {lacking} of {8 + length + end} bytes are missing" if lacking > 0 else ""


def load_network(kind: Any, folder: Path, *, further: Literal["warn", "refuse"] = "warn", **options: Any) -> Any:
    """``kind.from_pretrained(folder)``, refusing missing weights: both libraries would initialise them randomly.

    Args:
        kind: class of a network.
        folder: in its library's layout.
        further: what to do about weights that the network doesn't use and that are no layers of its own.
        options: of ``from_pretrained``.

    Raises:
        UserError: weights are missing, have another shape, belong to layers that config.json does not have, or the
            folder can't be loaded.
    """
    refuse_oversized(folder / "config.json")
    try:
        with _silence():
            network, report = kind.from_pretrained(
                folder, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True, **options
            )
    except Exception as error:  # libraries raise anything for damaged files
        why = f"{_reason(error)}; fetch the model again, or give the config.json that belongs to it"
        raise UserError(f"{folder} can't be loaded as {kind.__name__}: {why}") from error
    where = _file(folder)
    missing = sorted(report["missing_keys"])
    if missing:
        raise UserError(
            f"{where} lacks {_named(missing)}, which {type(network).__name__} needs by its config.json; "
            "fetch the model again, or give the config.json that belongs to it"
        )
    shapes = sorted(report.get("mismatched_keys") or ())
    if shapes:
        name, theirs, ours = shapes[0]
        raise UserError(
            f"{where} does not match config.json in the shapes of {_named([one[0] for one in shapes])}: {name} is "
            f"{list(theirs)}, not {list(ours)}; give the config.json that belongs to it"
        )
    if report.get("error_msgs"):
        raise UserError(
            f"{where} can't be loaded as {kind.__name__}: {'; '.join(map(str, report['error_msgs'][:NAMED]))}"
        )
    unused = sorted(report.get("unexpected_keys") or ())
    if unused and further == "refuse":
        raise UserError(
            f"{where} has {_named(unused)}, which {type(network).__name__} does not have; give its own weights"
        )
    _refuse_further_layers(where, network, unused)
    return network


def refuse_oversized(file: Path) -> None:
    """Refuse a config.json with so many layers or timesteps that loading would hang."""
    config = read_object(file) if file.is_file() else {}
    for part in (config, *(one for one in config.values() if isinstance(one, dict))):
        for name, value in part.items():
            most = next((most for words, most in MOST.items() if re.search(words, name)), None)
            if most is not None and type(value) is int and value > most:
                raise UserError(f"{file} has {name} {value}; it must be at most {most}; fetch the model again")


def refuse_non_finite(network: nn.Module, folder: Path) -> None:
    """Refuse NaN or infinite weights.

    Raises:
        UserError: naming the first ones.
    """
    import torch

    def non_finite(value: Any) -> bool:
        # a sum allocates nothing; the elements are only checked if it is not finite, since it may overflow
        return value.is_floating_point() and not bool(
            value.sum(dtype=torch.float32).isfinite() or value.isfinite().all()
        )

    found = [name for name, value in network.named_parameters() if non_finite(value)]
    if found:
        raise UserError(f"{_file(folder)} has non-finite values in {_named(found)}; fetch the model again")


def is_quantized(weight: Any) -> bool:
    """Whether a weight is stored in fewer bits than it is computed with, so that nothing can be added to it."""
    # torchao's tensors say that they are of the precision that they are computed in
    return weight.element_size() == 1 or type(weight).__module__.startswith("torchao.")


def _refuse_further_layers(where: Path, network: nn.Module, further: Sequence[str]) -> None:
    """Refuse weights of layers that the network does not have; warn about other unused weights."""
    known = {_pattern(name) for name in network.state_dict()}
    layers = [name for name in further if _pattern(name) in known]
    if layers:
        raise UserError(
            f"{where} has {_named(layers)}, layers that {type(network).__name__} does not have by its config.json; "
            "give the config.json that belongs to it"
        )
    if further:
        log.warning("%s has %s, which %s does not use", where, _named(further), type(network).__name__)


@contextmanager
def _silence() -> Iterator[None]:
    """Without the tables that both libraries log about missing weights, which are refused here."""
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
    """The weight file, or its folder if there are several."""
    files = sorted(folder.glob("*.safetensors"))
    return files[0] if len(files) == 1 else folder


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more tensors" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _reason(error: Exception) -> str:
    """Message of a library's exception, on one line of limited length."""
    text = " ".join(str(error).split())
    kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
    return kind + (text if len(text) <= 400 else f"{text[:400]}...")
