"""Loads a Qwen2-VL without its language head, and with the heads of a reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.models.loading import quietly
from burnish.rewards.headed.names import Parts
from burnish.rewards.headed.reading import QuestionReader
from burnish.rewards.images.learned import frozen, read_weights, weight_file
from burnish.utils.errors import UserError, listed
from burnish.utils.json_text import parse_json
from burnish.utils.reading import read_file
from burnish.utils.weights import own_config

if TYPE_CHECKING:
    from torch import Tensor, nn

KINDS = {"qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel"}
EMBEDDINGS = "language_model.embed_tokens.weight"


def weight_files(place: Path, names: Sequence[str]) -> tuple[Path, ...]:
    """The files of weights that a path means: one, or the shards of an index.

    Raises:
        UserError: there are none, or several that may be meant.
    """
    indices = sorted(place.glob("*.safetensors.index.json")) if place.is_dir() else []
    if len(indices) != 1:
        return (weight_file(place, names),)
    try:
        shards = dict.fromkeys(parse_json(read_file(indices[0]))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{indices[0]} lists no weights ({error}); fetch it again") from None
    if strange := [name for name in shards if not isinstance(name, str) or Path(name).name != name]:
        raise UserError(f"{indices[0]} lists {strange[0]!r:.80}, which is no file beside it; fetch it again")
    return tuple(place / name for name in shards)


@dataclass(frozen=True)
class Headed:
    """A network without its language head, the reward's heads in float32, and what reads questions for them."""

    modules: Any  # body and heads, which move together
    reader: QuestionReader


@cache
def load(
    files: tuple[Path, ...],
    base: Path,
    *,
    family: str,
    heads: tuple[str, ...],
    tokens: tuple[str, ...],
    alpha: float | None,
    dtype: str,
    device: str,
) -> Headed:
    """A checkpoint; loaded once per process.

    Args:
        files: of the checkpoint.
        base: folder of the model that it was trained on: its configuration, and the weights that adapters change.
        family: model_type that the reward is made for.
        heads: prefixes of the heads.
        tokens: of the reward, in the order in which training added them.
        alpha: of the adapters; None where there are none.
        dtype: of the network; heads are float32.
        device: where it goes.

    Raises:
        UserError: weights lack, are left over or don't fit.
    """
    where = ", ".join(file.name for file in files)
    parts = Parts()
    for file in files:
        parts.add(read_weights(file), str(file))
    if parts.adapters:
        _merge(parts, base, alpha, where)
    config = _config(parts.weights, base, family, where)
    reader = QuestionReader(base, tokens, config)
    network = _network(parts.weights, config, family, dtype, where)
    found = [_head(parts.heads, prefix, where) for prefix in heads]
    if parts.heads:
        raise UserError(f"{where} has {listed(sorted(parts.heads))}, heads that this reward does not have")
    return Headed(_joined(network, found, files[0], dtype, device), reader)


def _merge(parts: Parts, base: Path, alpha: float | None, where: str) -> None:
    if alpha is None:
        raise UserError(
            f"{where} has adapters, and nothing says by how much they count: give alpha (lora_alpha of its training)"
        )
    own = Parts()
    for file in weight_files(base, ()):
        own.add(read_weights(file), str(file))
    parts.weights = own.weights | parts.weights
    parts.merge(alpha, where)


def _config(weights: Mapping[str, Tensor], base: Path, family: str, where: str) -> Any:
    """The configuration of the base, with as many tokens as the checkpoint has."""
    import transformers

    config: Any = own_config(transformers.AutoModel, base)
    if config.model_type != family:
        raise UserError(f"base is {base}, a {config.model_type}; this reward was trained on a {family}: give one")
    if EMBEDDINGS not in weights:
        raise UserError(f"{where} lacks embed_tokens, which Qwen2-VL needs; give a complete checkpoint of this reward")
    # training added tokens, and cut the rows that fill up the published vocabulary
    config.get_text_config().vocab_size = weights[EMBEDDINGS].shape[0]
    return config


def _network(weights: dict[str, Tensor], config: Any, family: str, dtype: str, where: str) -> Any:
    """The model without language head, of exactly these weights."""
    import torch
    import transformers

    kind = getattr(transformers, KINDS[family])
    with torch.device("meta"):
        wanted = {name: tensor.shape for name, tensor in kind(config).state_dict().items()}
    _refuse_differences(weights, wanted, kind.__name__, where)
    with quietly():
        network = kind.from_pretrained(None, config=config, state_dict=weights, dtype=getattr(torch, dtype))
    return network


def _refuse_differences(weights: Mapping[str, Tensor], wanted: Mapping[str, Any], kind: str, where: str) -> None:
    if missing := sorted(wanted.keys() - weights.keys()):
        raise UserError(f"{where} lacks {listed(missing)}, which {kind} needs; give a complete checkpoint, or its base")
    if further := sorted(weights.keys() - wanted.keys()):
        raise UserError(f"{where} has {listed(further)}, which {kind} does not have; give the base that belongs to it")
    for name, shape in wanted.items():
        if weights[name].shape != shape:
            raise UserError(
                f"{where} does not fit its base: {name} is {list(weights[name].shape)}, not {list(shape)}; give the "
                "base that it was trained on"
            )


def _head(tensors: dict[str, Tensor], prefix: str, where: str) -> nn.Module:
    """Layers by their numbers with ReLU between them, dropout left out; or one without bias. Taken from ``tensors``."""
    import torch
    from torch import nn

    own = {name.removeprefix(prefix): tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
    if set(own) == {"weight"}:
        numbers = [""]
    else:
        numbers = sorted({name.partition(".")[0] for name in own}, key=lambda one: (len(one), one))
        if not own or set(own) != {f"{number}.{part}" for number in numbers for part in ("weight", "bias")}:
            raise UserError(f"{where} has no head {prefix}* of linear layers; give the checkpoint of this reward")
    layers: list[nn.Module] = []
    for number in numbers:
        weight, bias = own[f"{number}.weight".lstrip(".")], own.get(f"{number}.bias")
        if weight.ndim != 2 or (layers and layers[-1].out_features != weight.shape[1]):
            raise UserError(f"{where}: the layers of head {prefix}* don't follow on each other; fetch it again")
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        linear.load_state_dict({"weight": weight.float(), **({} if bias is None else {"bias": bias.float()})})
        layers.append(linear)
    between = [module for layer in layers for module in (layer, nn.ReLU())][:-1]
    return nn.Sequential(*between).to(torch.float32)


def _joined(network: nn.Module, heads: Sequence[nn.Module], file: Path, dtype: str, device: str) -> nn.Module:
    """One module, so that both move together; the heads stay in float32."""
    from torch import nn

    body = frozen(network, file, dtype=dtype, device=device)
    tail = frozen(nn.ModuleList(heads), file, dtype="float32", device=device)
    return nn.ModuleDict({"body": body, "heads": tail}).eval()
