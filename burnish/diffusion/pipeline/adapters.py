"""LoRA adapters of generators on disk, as diffusers or peft writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.models.adapters import WEIGHTS, check_kind, read_settings, read_weights
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.options.model import LoraOptions

FILE = "pytorch_lora_weights.safetensors"
METADATA = "lora_adapter_metadata"  # the header's key for the configurations of adapters


@dataclass(frozen=True)
class Adapter:
    """The weights of an adapter by the names that they have in a network, with the network's own name before them."""

    weights: dict[str, Tensor]
    alpha: float | None  # None where the file doesn't say
    rslora: bool  # whether it is scaled by alpha / sqrt(rank)

    @property
    def rank(self) -> int:
        """The largest rank of a layer."""
        return max(int(value.shape[0]) for name, value in self.weights.items() if ".lora_A." in name)


def read_adapter(folder: Path, option: str, networks: tuple[str, ...]) -> Adapter:
    """The adapter in a folder, or in the folders of single networks below it.

    Args:
        folder: that ``save_lora_weights``, ``save_lora_adapter`` or peft wrote.
        option: that names it, for messages.
        networks: names of the networks that may have one.

    Raises:
        UserError: there is none, or the file can't be read.
    """

    places = [(folder / name, f"{name}.") for name in networks] + [(folder, "")]
    found = [(place / file, mark) for place, mark in places for file in (FILE, WEIGHTS) if (place / file).is_file()]
    if not found:
        raise UserError(f"{option} is {folder}, which has no {FILE} or {WEIGHTS}; give the folder of an adapter")
    weights = {f"{mark}{name}": value for path, mark in found for name, value in read_weights(path, option).items()}
    scalings = [_scaling(path, option) for path, _ in found]
    alphas = {alpha for known, _ in scalings for alpha in known}
    if len(networks) == 1:
        weights = {name if name.startswith(f"{networks[0]}.") else f"{networks[0]}.{name}": value
                   for name, value in weights.items()}  # fmt: skip
    return Adapter(weights, alphas.pop() if len(alphas) == 1 else None, any(scaled for _, scaled in scalings))


def check_adapter(folder: Path, options: LoraOptions, networks: tuple[str, ...]) -> Adapter:
    """The adapter to go on from, if it is of the rank and the scale that the options say.

    Raises:
        UserError: naming the option that differs.
    """
    found = read_adapter(folder, "model.lora.path", networks)
    dora = any(".lora_magnitude_vector" in name for name in found.weights)
    alpha = found.rank if found.alpha is None else found.alpha  # peft scales by 1 where nothing is said
    check_kind(options, rank=found.rank, alpha=alpha, rslora=found.rslora, dora=dora)
    return found


def _scaling(file: Path, option: str) -> tuple[list[float], bool]:
    """lora_alpha and use_rslora in an adapter's settings: in the header of diffusers' files, beside those of peft."""
    from safetensors import safe_open

    if file.name == WEIGHTS:
        settings = read_settings(file.parent, option)
        return [float(settings["lora_alpha"])], bool(settings.get("use_rslora"))
    with safe_open(file, framework="pt") as opened:
        text = (opened.metadata() or {}).get(METADATA)
    try:
        config: Any = {} if text is None else parse_json(text)
        alphas = [float(value) for name, value in config.items() if name.endswith("lora_alpha")]
        return alphas, any(bool(value) for name, value in config.items() if name.endswith("use_rslora"))
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{option} is {file.parent}: {file.name} can't be read: {error}; export it again") from None
