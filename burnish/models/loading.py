"""What loading a model has in common for both kinds: its directory, where it runs, and in what precision."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.options.model import CommonModelOptions
from burnish.utils.errors import UserError, first_line
from burnish.utils.hub import index_in, model_folder
from burnish.utils.json_text import read_object

if TYPE_CHECKING:
    import torch
    from torch import Tensor

log = logging.getLogger(__name__)

ADAPTERS = dict.fromkeys(
    ("adapter_config.json", "pytorch_lora_weights.safetensors"),
    "is a LoRA adapter; set model.path to the model that it was trained on, and model.lora.path to this folder (its "
    "rank is model.lora.rank)",
)

OF_FILE = {  # how a single file becomes a model's directory, as far as its library can make one of it
    "diffusers": "convert it to a directory once: the class of its pipeline (StableDiffusionXLPipeline, FluxPipeline, "
    "...).from_single_file({!r}).save_pretrained('DIR'), and set model.path=DIR",
    "transformers": "give the directory that it lies in, with its config.json and tokenizer, or a GGUF file",
}


def read_folder(options: CommonModelOptions, config: str, library: str, what: str) -> tuple[Path, dict[str, Any]]:
    """The directory of a model, and the JSON file that describes it.

    Args:
        options: with its path, or its name on the Hugging Face hub.
        config: name of the JSON file.
        library: whose ``save_pretrained`` writes such directories.
        what: it writes, for messages.

    Raises:
        UserError: there is no such directory, or it has no such file.
    """
    path = model_folder(options.path, index=config)
    if path.is_file():
        raise UserError(f"model.path is {options.path}, a single file; {OF_FILE[library].format(str(path))}")
    if not path.is_dir():
        raise UserError(f"model.path is {options.path}, which is not a directory; it must hold a {library} {what}")
    try:
        return path, read_object(index_in(path, config))
    except FileNotFoundError:
        wrong = f"has no {config}; it must be a {what} as {library}' save_pretrained writes it"
        known = next((says for name, says in ADAPTERS.items() if (path / name).is_file()), wrong)
        raise UserError(f"model.path is {options.path}, which {known}") from None


def placement_of(options: CommonModelOptions, *, frozen: bool = False) -> tuple[str, torch.dtype, torch.dtype]:
    """Device of a model, precision of its weights, and precision of its forward pass; sets that of float32 products.

    Raises:
        UserError: the device is cuda, and there is no GPU.
    """
    import torch

    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("model.device is cuda, but PyTorch finds no GPU; use model.device=cpu or auto")
    compute = getattr(torch, options.dtype)
    torch.set_float32_matmul_precision(options.float32_matmul_precision)
    # frozen weights may be stored in half precision; trained ones keep a float32 master copy
    return device, compute if options.lora is not None or frozen else torch.float32, compute


@contextmanager
def attention_errors(name: str) -> Iterator[None]:
    """Tell what a library refuses of an implementation of attention as an error of model.attention.

    Raises:
        UserError: it says something.
    """
    try:
        yield
    except (RuntimeError, ValueError, ImportError, AssertionError, AttributeError, TypeError) as error:
        why = first_line(error).partition(". ")[0]
        raise UserError(f"model.attention is {name}, which can't train here: {why}; remove it") from error


def compare_attention(
    name: str, reference: str, run: Callable[[str], Sequence[Tensor]], tolerated: float, compute: torch.dtype
) -> None:
    """Refuse an implementation of attention that does not compute what another one does.

    Args:
        name: of the implementation, as model.attention has it.
        reference: the other one.
        run: outputs and gradients by an implementation.
        tolerated: largest difference, relative to the largest value of each.
        compute: precision, for messages.

    Raises:
        UserError: it is not installed, this model or device does not support it, it has no gradients, or it computes
            something else.
    """
    with attention_errors(name):
        expected, found = run(reference), run(name)
    apart = max(
        float((one - other).abs().max() / other.abs().max()) for one, other in zip(found, expected, strict=True)
    )
    if not apart <= tolerated:
        raise UserError(
            f"model.attention is {name}, but outputs or gradients differ by {apart:.1g} (relative) from those of "
            f"{reference}, and {tolerated:g} is tolerated in {compute}; choose another"
        )
    log.warning("model.attention=%s agrees with %s to %.1g (relative; outputs and gradients)", name, reference, apart)


def block_count(wanted: bool | int, there: int) -> int:
    """Blocks whose activations are recomputed, of those that a network has.

    Raises:
        UserError: it has fewer.
    """
    if isinstance(wanted, bool):
        return there
    if wanted > there:
        raise UserError(
            f"model.gradient_checkpointing is {wanted}, but the network has {there} blocks; lower it, or set it to true"
        )
    return wanted
