"""Weight files: checks that they are complete, and loading without randomly initialised weights."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError, safe_open

from burnish.utils.errors import UserError, listed
from burnish.utils.json_text import parse_json, read_object
from burnish.utils.reading import understood

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)

Agreed = Callable[[list[str]], list[str]]

PICKLED = (".bin", ".pt", ".pth", ".ckpt")
# those that libraries read, with torch.load's own unpickler, which runs no code; not inspected
READ_PICKLES = re.compile(r"(diffusion_pytorch_model|pytorch_model)(-\d+-of-\d+)?\.bin")
VOCABULARIES = ("tokenizer.json", "*.model", "vocab.txt", "tekken.json", "*.tiktoken")
# whose tokens are bytes or characters, so that no vocabulary is written
OF_BYTES = ("ByT5Tokenizer", "PerceiverTokenizer", "CanineTokenizer")
PLAIN = re.compile(r"(?:(?:diffusion_)?pytorch_)?model(?:(?:\.safetensors)?-\d+-of-\d+)?\.(?:safetensors|bin)")
# of both libraries; diffusers wrote the number of a shard before the variant once
VARIANT = re.compile(r"(?:diffusion_pytorch_model|model)(?:\.(\w+)(?:-\d+-of-\d+)?|-\d+-of-\d+\.(\w+))\.safetensors")
# ends of names of weights of few bits: GPTQ and AWQ, compressed-tensors, bitsandbytes, FP8
OF_FEW_BITS = (".qweight", ".qzeros", ".weight_packed", ".absmax", ".quant_map", ".weight_scale", ".weight_scale_inv",
               ".SCB")  # fmt: skip
OF_IMAGES = r"\.to_[kv]_ip\.|^encoder_hid_proj\.image_projection_layers\."  # names of weights of an IP-adapter
JUDGING = ("score.", "classifier.", "qa_outputs.")  # beginnings of names of heads that write no text
TABLE = 1 << 24  # elements from which on a table takes seconds, and gigabytes
_unread: ContextVar[bool] = ContextVar("unread", default=False)  # whether networks are made without their weights


@contextmanager
def without_weights() -> Iterator[None]:
    """In this context networks are made by their config.json alone: for forecasts, which need no weight's value."""
    token = _unread.set(True)
    try:
        yield
    finally:
        _unread.reset(token)


def reads_weights() -> bool:
    """Whether networks are made with the weights of their files."""
    return not _unread.get()


def complaints_about(folder: Path) -> Iterator[str]:
    """Problems of the weights in a folder: none, files missing, or a file truncated."""
    files = sorted(folder.glob("*.safetensors"))
    indexed = [name for index in sorted(folder.glob("*.safetensors.index.json")) for name in _listed(index)]
    names = set(os.listdir(folder))
    absent = [name for name in dict.fromkeys(indexed) if name not in names or not (folder / name).is_file()]
    if absent:
        said = listed([f"{name:.80}" for name in absent])
        yield f"{folder} lacks {said}, listed in its index; download the model again"
    elif not files and not any(file.suffix in PICKLED for file in folder.iterdir()):
        yield f"{folder} has no weights (no file that ends with .safetensors); download the model again"
    for file in files:
        try:
            _tensors(file)
        except (SafetensorError, OSError) as error:
            yield f"{file} is damaged or truncated: {error}; download the model again"


def _tensors(file: Path) -> dict[str, str]:
    """Names and precisions of the tensors in a safetensors file."""
    with safe_open(file, "numpy") as opened:
        return {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118


def refuse_quantized(config: dict[str, Any], where: str) -> None:
    """Refuse a model whose files hold weights of few bits, which can't be trained.

    Raises:
        UserError: its config.json says so.
    """
    inner = config.get("text_config")
    stated = config.get("quantization_config") or (
        inner.get("quantization_config") if isinstance(inner, dict) else None
    )
    how = stated.get("quant_method", "bitsandbytes") if isinstance(stated, dict) else stated
    if not how or how == "mxfp4":  # which transformers unpacks
        return
    raise UserError(
        f"{where}, whose weights are quantized ({how}, by quantization_config in its config.json), so that they can't "
        "be trained; give the model that it was made from, with model.quantization.weights=nf4 or int8 to save memory"
    )


def pickle_complaint(folder: Path) -> str:
    """What is wrong with a folder whose only weights are pickles under names that neither library reads; or ""."""
    names = sorted(os.listdir(folder))
    pickles = [name for name in names if name.endswith(PICKLED)]
    if not pickles or any(name.endswith(".safetensors") or READ_PICKLES.fullmatch(name) for name in names):
        return ""
    return (
        f"{folder} has its weights in {pickles[0]:.80} alone, a pickle that no library loads from there; save it as "
        "safetensors"
    )


def tokenizer_complaint(folder: Path) -> str:
    """What a tokenizer's folder lacks, or ""; libraries would load a tokenizer without vocabulary."""
    settings = folder / "tokenizer_config.json"
    if any(any(folder.glob(name)) for name in VOCABULARIES) or (
        settings.is_file() and read_object(settings).get("tokenizer_class") in OF_BYTES
    ):
        return ""
    if (folder / "vocab.json").is_file():
        if (folder / "merges.txt").is_file():
            return ""
        return f"{folder} has a vocab.json but no merges.txt; download the model again"
    return f"{folder} has no tokenizer (tokenizer.json, or vocab.json with merges.txt); download the model again"


def adapter_complaint(folder: Path) -> str:
    """What is wrong with a folder of transformers that has an adapter beside its weights."""
    return (
        f"{folder} has an adapter beside its weights (adapter_config.json), which transformers would apply to them; "
        "merge it into them, or move its files to a folder of their own, which is given as model.lora.path"
        if (folder / "adapter_config.json").is_file() else ""
    )  # fmt: skip


def _listed(index: Path) -> list[str]:
    """The files that an index names, which lie beside it: a path would lead elsewhere, and is not a name of one."""
    try:
        return [str(name) for name in parse_json(index.read_bytes())["weight_map"].values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [f"{index.name} that can be read"]


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
    if _unread.get():
        return from_config(kind, folder, **options)
    if not hasattr(kind, "load_config") and (complaint := adapter_complaint(folder)):
        raise UserError(complaint)
    if (variant := variant_of(folder)) is not None:
        options["variant"] = variant
    with understood(f"{folder} can't be loaded as {kind.__name__}"), quietly():
        described = {} if hasattr(kind, "load_config") else {"config": own_config(kind, folder)}
        load = partial(
            kind.from_pretrained, folder, local_files_only=True, output_loading_info=True,
            ignore_mismatched_sizes=True, **described, **options,
        )  # fmt: skip
        with without_tables():
            network, report = load()
        if any(buffer.is_meta for buffer in network.buffers()):
            network, report = load()  # its files don't have them
    where = _file(folder)
    missing = sorted(report["missing_keys"])
    if missing:
        raise UserError(
            f"{where} lacks {listed(missing)}, which {type(network).__name__} needs by its config.json; "
            f"{_instead(folder, missing)}"
        )
    shapes = sorted(report.get("mismatched_keys") or ())
    if shapes:
        name, theirs, ours = shapes[0]
        raise UserError(
            f"{where} does not match config.json in the shapes of {listed([one[0] for one in shapes])}: {name} is "
            f"{list(theirs)}, not {list(ours)}; give the config.json that belongs to it"
        )
    unused = sorted(report.get("unexpected_keys") or ())
    if adapted := [name for name in unused if re.search(OF_IMAGES, name)]:
        raise UserError(
            f"{where} has {listed(adapted)} of an IP-adapter, which {type(network).__name__} does not load from there; "
            "save it without (unload_ip_adapter() of its pipeline, before save_pretrained)"
        )
    if unused and further == "refuse":
        raise UserError(
            f"{where} has {listed(unused)}, which {type(network).__name__} does not have; give its own weights"
        )
    _refuse_further_layers(where, network, unused)
    return network


@contextmanager
def without_tables() -> Iterator[None]:
    """Around what builds a network: large tables of positions, as SD3.5's files have one, get no values."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Tables(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.outer and args[0].numel() * args[1].numel() > TABLE:
                args = [one.to("meta") for one in args]
            return func(*args, **(kwargs or {}))

    with Tables():
        yield


def variant_of(folder: Path) -> str | None:
    """The variant, such as fp16, that a folder has all of its weights in; None where it has others, or several."""
    names = [file.name for file in folder.glob("*.*")]
    found = {match[1] or match[2] for name in names if (match := VARIANT.fullmatch(name))}
    plain = any(PLAIN.fullmatch(name) for name in names)
    return found.pop() if len(found) == 1 and not plain else None


def _instead(folder: Path, missing: Iterable[str]) -> str:
    """What to give in place of weights that don't fit their config.json, by names of those that are missing."""
    tensors = [name for file in folder.glob("*.safetensors") for name in _tensors(file)]
    if any(name.endswith(OF_FEW_BITS) for name in tensors):
        return (
            "its weights are quantized: give the model that it was made from (model.quantization stores weights in "
            "fewer bits)"
        )
    if any(name.startswith("base_model.model.") or ".base_layer." in name for name in tensors):
        return (
            "its weights have the names that peft gives them: save what merge_and_unload() of peft's model returns (of "
            "pipelines: after fuse_lora() and unload_lora_weights()), or give the model that adapters were trained on, "
            "and them as model.lora.path"
        )
    if any("lm_head" in name for name in missing) and any(name.startswith(JUDGING) for name in tensors):
        return "it has a head that judges texts in place of one that writes them: give the model that it was made from"
    return "download the model again, or give the config.json that belongs to it"


def own_config(kind: Any, folder: Path) -> Any:
    """The configuration of a network of transformers, without the kernels that its folder asks for.

    Those may be code that transformers would fetch from the hub and run, or a package that is not installed.
    """
    from transformers import AutoConfig

    known = getattr(kind, "config_class", None) or AutoConfig
    config = known.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    config._attn_implementation = config._experts_implementation = None  # and of its parts
    if (packed := getattr(config, "quantization_config", None)) and packed.get("quant_method") == "mxfp4":
        packed["dequantize"] = True  # also where kernels could compute with it
    return config


def from_config(kind: Any, folder: Path, *, dtype: Any, **options: Any) -> Any:
    """A network by its config.json alone, in the precision that it would be loaded in."""
    import torch
    from transformers import GenerationConfig

    with understood(f"{folder} can't be read as {kind.__name__}"):
        if hasattr(kind, "load_config"):  # of diffusers
            before = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            try:
                network = kind.from_config(kind.load_config(folder, local_files_only=True))
            finally:
                torch.set_default_dtype(before)
        else:
            config = own_config(kind, folder)
            make = kind.from_config if getattr(kind, "config_class", None) is None else kind._from_config
            network = make(config, dtype=dtype, **options)
            if network.can_generate() and (folder / "generation_config.json").is_file():
                network.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    kept = kept_precise(network, dtype)
    for path, module in network.named_modules():
        for name, weight in list(module.named_parameters(prefix=path, recurse=False)):
            if kept(name):
                setattr(module, name.rpartition(".")[2], torch.nn.Parameter(weight.data.float()))
    return network


def kept_precise(network: Any, dtype: Any) -> Callable[[str], bool]:
    """Tells by name the weights that a class keeps in float32 in whatever precision it is loaded."""
    if hasattr(network, "_get_dtype_plan"):  # of transformers
        from transformers.core_model_loading import build_glob_alternation

        if not (plan := network._get_dtype_plan(dtype)):
            return lambda name: False
        pattern = build_glob_alternation(list(plan))[0]
        return lambda name: pattern.search(name) is not None
    words = set(getattr(network, "_keep_in_fp32_modules", None) or ())
    return lambda name: not words.isdisjoint(name.split("."))


def file_precision(folder: Path) -> str | None:
    """The one precision of all numbers in a folder's weights, as safetensors calls it; None if there are several."""
    names = PLAIN if variant_of(folder) is None else VARIANT
    files = [file for file in folder.glob("*.safetensors") if names.fullmatch(file.name)]
    floats = {kind for file in files for kind in _tensors(file).values() if "F" in kind}
    return floats.pop() if len(floats) == 1 else None


def refuse_non_finite(network: nn.Module, folder: Path, agreed: Agreed = lambda found: found) -> None:
    """Refuse NaN or infinite weights.

    Args:
        network: that was loaded; of a sharded one the weights that are here.
        folder: that it was loaded from.
        agreed: what all ranks have found, from what this one has.

    Raises:
        UserError: naming the first ones.
    """
    import torch

    if not reads_weights():
        return

    found = []
    for name, parameter in network.named_parameters():
        value: Any = parameter.detach()
        value = value.to_local() if hasattr(value, "to_local") else value
        # quantised ones were looked at before; a sum allocates nothing, and may overflow where all elements are finite
        plain = not is_quantized(value) and value.is_floating_point()
        if plain and not (value.sum(dtype=torch.float32).isfinite() or value.isfinite().all()):
            found.append(name)
    if found := agreed(found):
        raise UserError(f"{_file(folder)} has non-finite values in {listed(found)}; download the model again")


def is_quantized(weight: Any) -> bool:
    """Whether a weight is stored in fewer bits than it is computed with, so that nothing can be added to it."""
    # torchao's tensors say that they are of the precision that they are computed in
    return weight.element_size() == 1 or type(weight).__module__.startswith("torchao.")


def _refuse_further_layers(where: Path, network: nn.Module, further: Sequence[str]) -> None:
    """Refuse weights of layers that the network does not have; warn about other unused weights."""
    known = {_pattern(name) for name in network.state_dict()}
    text = getattr(network.config, "text_config", network.config)
    first, count = (getattr(text, name, 0) or 0 for name in ("num_hidden_layers", "num_nextn_predict_layers"))
    # behind its own lie those that predict further tokens (DeepSeek-V3), which no class uses
    predicting = {str(first + number) for number in range(count)}
    layers = [name for name in further if _pattern(name) in known and predicting.isdisjoint(name.split("."))]
    if layers:
        raise UserError(
            f"{where} has {listed(layers)}, layers that {type(network).__name__} does not have by its config.json; "
            "give the config.json that belongs to it"
        )
    if further:
        log.warning("%s has %s, which %s does not use", where, listed(further), type(network).__name__)


@contextmanager
def quietly(*libraries: str) -> Iterator[None]:
    """Without progress bars, advice and warnings of libraries, by default diffusers and transformers, and questions."""
    # seconds for which it asks whether code that a folder brings is to run, where none else has said no
    vars(import_module("transformers.dynamic_module_utils"))["TIME_OUT_REMOTE_CODE"] = 0
    loggers = [import_module(f"{name}.utils").logging for name in libraries or ("diffusers", "transformers")]
    before = [(logger.get_verbosity(), logger.is_progress_bar_enabled()) for logger in loggers]
    for logger in loggers:
        logger.disable_progress_bar()
        logger.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, (verbosity, bars) in zip(loggers, before, strict=True):
            logger.set_verbosity(verbosity)
            (logger.enable_progress_bar if bars else logger.disable_progress_bar)()


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _file(folder: Path) -> Path:
    """The weight file, or its folder if there are several."""
    files = sorted(folder.glob("*.safetensors"))
    return files[0] if len(files) == 1 else folder
