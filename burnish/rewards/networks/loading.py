"""Networks with published weights: where they are, how they are read, and where they compute."""

from __future__ import annotations

import json
import textwrap
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from burnish.options import Count
from burnish.registry import ReadIf, options
from burnish.utils.errors import UserError, listed
from burnish.utils.hub import model_folder
from burnish.utils.json_text import read_object
from burnish.utils.reading import understood
from burnish.utils.weights import PICKLED, complaints_about, load_network, refuse_non_finite

if TYPE_CHECKING:
    from torch import Tensor, nn

    from burnish.types.prompt import Prompt

T = TypeVar("T")
V = TypeVar("V")
CONFIG = "config.json"
NESTED = ("state_dict", "model")  # under which trainers store the weights of a network
WRAPPED = "module."  # what DistributedDataParallel puts before every name
Pairs = Sequence[tuple[str, str]]  # of parts of names of weights: as published, and of the class


def network_complaint(place: Path, families: Sequence[str] = ()) -> str:
    """Why a folder can't be loaded as a network of transformers, of one of these families, or "": seen without loading
    it."""
    if not (place / CONFIG).is_file():
        return f"{place} has no {CONFIG}; give the folder of a model of transformers, or its name on the hub"
    family = read_object(place / CONFIG).get("model_type")
    if families and family not in families:
        return f"{place} is a {family}; give one of {', '.join(families)}"
    return "; ".join(complaints_about(place))


@dataclass(frozen=True)
class Source:
    """Files that a reward loads: a directory, a file, or a repository of the hub."""

    option: str = "path"  # whose value says where
    index: str = CONFIG  # the file of the repository by which it is found
    files: tuple[str, ...] = ()  # of the repository that are fetched; none for those that transformers reads
    complaint: Callable[[Path], str] = network_complaint  # why what is there can't be loaded


def some_counts(weights: dict[Any, float]) -> dict[Any, float]:
    """Weights of the parts of a score, unless all of them are 0."""
    if not any(weights.values()):
        raise ValueError("has no weight but 0; give one a weight, or remove it")
    return weights


@options
class NetworkOptions:
    """A network that a reward loads. Comes before the base of rewards among the bases of a class."""

    name: ClassVar[str]
    has_weights: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True

    path: str
    """Directory, or org/name or org/name@REVISION on the Hugging Face hub, of the network."""
    batch_size: Count = 16
    """Samples per forward pass; 1 makes scores bit for bit independent of the batch."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network; scores are computed from its outputs in float32."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the network."""
    put_away: Annotated[bool, ReadIf("device", "cuda")] = False
    """Keep the weights in CPU memory while nothing is scored, so that a GPU is shared with training."""

    @property
    def resting(self) -> str:
        """The device that weights are loaded to."""
        return "cpu" if self.put_away else self.device

    def sources(self) -> tuple[Source, ...]:
        """What it loads; the files of the hub among it are fetched before a run begins."""
        return (Source(),)

    def folder(self, source: Source | None = None) -> Path:
        """The directory or the file of a source, of the network if none is given; what is missing is downloaded.

        Raises:
            UserError: it can't be had.
        """
        source = source or self.sources()[0]
        where, option = getattr(self, source.option), f"{source.option} of reward {self.name}"
        return _folder(where, index=source.index, option=option, files=source.files)

    @abstractmethod
    def load(self) -> Any:
        """The network and what reads for it; loaded at the first call of a process.

        Raises:
            UserError: something is missing or does not fit.
        """

    def prepare(self) -> None:
        """Load what scoring needs before the first batch."""
        self.load()

    def in_batches(self, network: Any, rows: Sequence[T], score: Callable[[Sequence[T]], Iterable[V]]) -> list[V]:
        """What is scored of rows, a batch at a time, without gradients, where the network computes."""
        with awake(network, self.device, self.put_away):
            return [value for batch in batches(rows, self.batch_size) for value in score(batch)]

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse what can't be loaded, seen without loading it."""
        for source in self.sources():
            place = self.folder(source)
            if why := source.complaint(place) if place.exists() else f"{place} does not exist; give a directory":
                raise UserError(f"{source.option} of reward {self.name}: {why}")
        super().check(prompts)  # type: ignore[misc]


def refusal(function: Callable[..., Any], *given: Any, **named: Any) -> str:
    """What a function would refuse, or ""."""
    try:
        function(*given, **named)
    except UserError as error:
        return str(error)
    return ""


_folder = cache(model_folder)


def batches(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Items in their order, ``size`` at a time."""
    return [items[start : start + size] for start in range(0, len(items), size)]


@contextmanager
def awake(network: nn.Module, device: str, put_away: bool) -> Iterator[None]:
    """A network with its weights on a device, without gradients; ``put_away`` brings them there, and back."""
    import torch

    with torch.no_grad():
        network.to(device)
        try:
            yield
        finally:
            if put_away:
                network.to("cpu")
                torch.cuda.empty_cache()


def load_strictly(kind: Any, folder: Path, *, dtype: str, device: str, **options: Any) -> Any:
    """A network of transformers with exactly the weights of a folder, frozen.

    Args:
        kind: class with ``from_pretrained``.
        folder: in transformers layout.
        dtype: name of a type of torch.
        device: where it goes.
        options: further ones of ``from_pretrained``.

    Raises:
        UserError: weights are missing, further, of another shape or not finite.
    """
    import torch

    network = load_network(kind, folder, further="refuse", dtype=getattr(torch, dtype), **options)
    return frozen(network, folder, device)


def frozen(network: nn.Module, where: Path, device: str) -> nn.Module:
    """A network that only judges, on its device.

    Raises:
        UserError: it has weights that are not finite, or there is no such device.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device of a reward is cuda, but torch sees no GPU here; set it to cpu")
    refuse_non_finite(network, where)
    return network.to(device).eval().requires_grad_(False)


def filled(make: Callable[[], T], weights: Mapping[str, Tensor], where: Path | str, dtype: str) -> T:
    """A network of exactly these weights. Nothing is drawn at random before.

    Args:
        make: makes it.
        weights: by the names of its class.
        where: file, for messages.
        dtype: of the weights; what else a network holds stays in its own.

    Raises:
        UserError: some are missing, further, or of another shape.
    """
    import torch
    from accelerate import init_empty_weights

    with init_empty_weights():
        network: Any = make()
    cast = {name: value.to(getattr(torch, dtype)) for name, value in weights.items()}
    try:
        network.load_state_dict(cast, strict=True, assign=True)
    except RuntimeError as error:
        raise UserError(
            f"{where} does not fit: {textwrap.shorten(str(error), 400)}; give the complete file of this scorer, or the "
            "configuration or base that belongs to it"
        ) from None
    return network  # type: ignore[no-any-return]


def renamed(name: str, pairs: Pairs) -> str:
    """The name that a class has for a weight, of the one that it was published under."""
    for published, own in pairs:
        name = name.replace(published, own)
    return name


def published_name(name: str, pairs: Pairs) -> str:
    """The reverse of ``renamed``."""
    return renamed(name, [(own, published) for published, own in reversed(pairs)])


def weight_file(place: Path, names: Sequence[str] = ()) -> Path:
    """The file of weights that a path means.

    Args:
        place: the file itself, or its folder.
        names: that it is published under, the preferred one first; each also counts as a .safetensors file.

    Raises:
        UserError: there is none, or several that may be meant.
    """
    if place.is_file():
        return place
    known = (place / file for name in names for file in (str(Path(name).with_suffix(".safetensors")), name))
    files = [file for file in known if file.is_file()][:1] or sorted(place.glob("*.safetensors"))
    files = files or sorted(file for file in place.glob("*") if file.suffix in PICKLED)
    if len(files) == 1:
        return files[0]
    has = (
        listed([file.name for file in files])
        if files
        else f"no weights such as {names[0] if names else 'a .safetensors file'}"
    )
    raise UserError(f"{place} has {has}; give the file that is meant, or the folder that holds it")


def weight_files(place: Path, names: Sequence[str] = ()) -> tuple[Path, ...]:
    """The files of weights that a path means: one, or the shards of an index.

    Raises:
        UserError: there are none, or several that may be meant.
    """
    indices = sorted(place.glob("*.safetensors.index.json"))
    if len(indices) != 1:
        return (weight_file(place, names),)
    shards = dict.fromkeys(json.loads(indices[0].read_bytes())["weight_map"].values())
    if strange := [name for name in shards if Path(name).name != name]:
        raise UserError(f"{indices[0]} lists {strange[0]!r:.80}, which is not a file beside it; fetch it again")
    return tuple(place / name for name in shards)


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of one of torch, by name; the wrappings of trainers are taken off.

    Raises:
        UserError: it can't be read, or holds objects that are not tensors, which are never unpickled.
    """
    import torch
    from safetensors.torch import load_file

    with understood(f"{file} can't be read as weights (convert a pickle that you trust to safetensors)"):
        if file.suffix == ".safetensors":
            return load_file(file)
        # what older releases of torch wrote is no archive, and can't be mapped
        state: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    for name in NESTED:
        if isinstance(state, Mapping) and isinstance(state.get(name), Mapping):
            state = state[name]
    if not isinstance(state, Mapping):
        raise UserError(f"{file} holds a {type(state).__name__}, not weights by name; give a state dict")
    return {str(name).removeprefix(WRAPPED): value for name, value in state.items() if isinstance(value, torch.Tensor)}


def linear_layers(weights: Mapping[str, Tensor], where: Path | str, *, relu: bool = False) -> nn.Sequential:
    """A head of linear layers in float32, in the order of the numbers in their names.

    Args:
        weights: of all of them and nothing else, NAME.weight and NAME.bias; or those of one layer without a name.
        where: file, for messages.
        relu: between the layers; dropout, which has a number too, is left out.

    Raises:
        UserError: there are none, or they don't follow each other.
    """
    from torch import nn

    names = sorted({name.rpartition(".")[0] for name in weights}, key=lambda name: (len(name), name))
    layers: list[Any] = []
    for name in names:
        weight, bias = (weights.get(f"{name}.{part}".lstrip(".")) for part in ("weight", "bias"))
        if weight is None or weight.ndim != 2 or (layers and weight.shape[1] != len(layers[-1].weight)):
            raise UserError(
                f"{where}: {name}.weight is not a layer that follows the ones before; give the file of this head"
            )
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        linear.load_state_dict({"weight": weight.float(), **({} if bias is None else {"bias": bias.float()})})
        layers.append(linear)
    if not layers:
        raise UserError(f"{where} has no head of linear layers; give the checkpoint of this reward")
    if relu:
        layers = [module for layer in layers for module in (layer, nn.ReLU())][:-1]
    return nn.Sequential(*layers)
