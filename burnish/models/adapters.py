"""LoRA adapters on disk, as peft writes them: adapter_config.json beside adapter_model.safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.utils.errors import UserError
from burnish.utils.hub import model_folder
from burnish.utils.json_text import read_object
from burnish.utils.weights import complaints_about

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.options.model import LoraOptions

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # before the names that layers have in the network
OPTION = "model.lora.path"
# settings of peft that change what an adapter computes, and are not among the options
OTHERS: dict[str, tuple[Any, ...]] = {
    "use_qalora": (False, None), "bias": ("none", None),
    "lora_bias": (False, None), "rank_pattern": ({}, None), "alpha_pattern": ({}, None),
    "trainable_token_indices": (None,), "target_parameters": ([], None),
    "layer_replication": (None,), "megatron_config": (None,),
}  # fmt: skip


def adapter_folder(options: LoraOptions, files: tuple[str, ...] = (SETTINGS, WEIGHTS)) -> Path:
    """The folder of the adapter to go on from; one of the hub is fetched, its ``files`` alone.

    Raises:
        UserError: it can't be had.
    """
    return model_folder(str(options.path), index=files[0], option=OPTION, files=files)


def check_adapter_files(options: LoraOptions) -> None:
    """Refuse an adapter to go on from that does not fit the options, by its settings and its file's header alone.

    Raises:
        UserError: naming the option that differs, or the file that is damaged.
    """
    folder = adapter_folder(options)
    lacking = [name for name in (SETTINGS, WEIGHTS) if not (folder / name).is_file()]
    if lacking:
        pickle = " (adapter_model.bin is a pickle, which Burnish doesn't read)"
        raise UserError(
            f"{OPTION} is {options.path}, which has no {' and no '.join(lacking)}"
            f"{pickle if (folder / 'adapter_model.bin').exists() else ''}; give the folder of an adapter that "
            "burnish export --format lora or peft's save_pretrained has written"
        )
    if found := list(complaints_about(folder)):
        raise UserError("\n".join(f"{OPTION}: {one}" for one in found))
    settings = read_settings(folder, OPTION)
    check_kind(
        options, rank=settings["r"], alpha=settings["lora_alpha"], rslora=bool(settings.get("use_rslora")),
        dora=bool(settings.get("use_dora")),
    )  # fmt: skip


def check_kind(options: LoraOptions, **theirs: float | bool) -> None:
    """Refuse options under which an adapter would compute something else.

    Args:
        options: of the run.
        theirs: rank, alpha, rslora and dora of the adapter.

    Raises:
        UserError: naming the option that differs.
    """
    alpha = 2 * options.rank if options.alpha is None else options.alpha
    ours = {"rank": options.rank, "alpha": alpha, "rslora": options.rslora, "dora": options.dora}
    for name, value in theirs.items():
        if ours[name] != value:
            shown, other = (str(one).lower() if isinstance(one, bool) else f"{one:g}" for one in (ours[name], value))
            raise UserError(
                f"model.lora.{name} is {shown}, but that of the adapter in {OPTION} is {other}; set "
                f"model.lora.{name}={other}"
            )


def saved_name(key: str) -> str:
    """The name that peft saves a weight of an adapter under, from the one that it has in the network."""
    if key.endswith(".lora_magnitude_vector.weight"):
        return key.removesuffix(".weight")
    return key.replace(".modules_to_save.", ".")


def read_settings(folder: Path, option: str) -> dict[str, Any]:
    """The settings of an adapter, with peft's defaults of rank and scale.

    Args:
        folder: of the adapter.
        option: that names it, for messages.

    Raises:
        UserError: they can't be read, or are not those of plain LoRA.
    """
    try:
        settings: dict[str, Any] = {"r": 8, "lora_alpha": 8} | read_object(folder / SETTINGS)
    except FileNotFoundError:
        raise UserError(f"{option} is {folder}, which has no {SETTINGS}; export the adapter again") from None
    kind = settings.get("peft_type", "LORA")
    if kind != "LORA":
        raise UserError(f"{option} is {folder}, an adapter of type {kind}; Burnish trains those of type LORA")
    for name in ("r", "lora_alpha"):
        if type(settings[name]) not in (int, float):
            raise UserError(f"{option} is {folder}, whose {SETTINGS} has {name} {settings[name]!r}, no number")
    for name, known in OTHERS.items():
        if settings.get(name, known[0]) not in known:
            raise UserError(
                f"{option} is {folder}, whose {SETTINGS} has {name} {settings[name]!r}; Burnish trains adapters "
                "without it. Merge it into the model (merge_and_unload of peft), and train a new one on that"
            )
    return settings


def read_weights(file: Path, option: str) -> dict[str, Tensor]:
    """The tensors of an adapter's file by their names in the network.

    Args:
        file: in safetensors format.
        option: that names its folder, for messages.

    Raises:
        UserError: it can't be read, holds what is no adapter, or values that are not finite.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            found = {name.removeprefix(PREFIX): opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{option} is {file.parent}: {file.name} can't be read: {error}; export it again") from None
    if broken := [name for name, value in found.items() if not bool(value.float().isfinite().all())]:
        raise UserError(f"{option} is {file.parent}, which holds NaN or infinite values in {broken[0]}; give another")
    if not any(".lora_A." in name for name in found):
        raise UserError(f"{option} is {file.parent}, which holds {next(iter(found), 'nothing')}, but no lora_A: it is "
                        "no adapter in peft's format")  # fmt: skip
    return found
