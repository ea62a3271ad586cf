"""What rewards by networks with published weights have in common: where the weights are, and how they are loaded."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeVar

from pydantic import model_validator

from burnish.models.loading import quietly
from burnish.options import Count
from burnish.registry import options
from burnish.rewards.base import Reward, Verdict
from burnish.rewards.preprocessing import Preprocessing
from burnish.rewards.text.reading_model import awake
from burnish.utils.errors import UserError, first_line, listed
from burnish.utils.hub import WORDS, model_folder
from burnish.utils.weights import (
    PICKLED,
    complaints_about,
    load_network,
    refuse_non_finite,
    tokenizer_complaint,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from burnish.types.prompt import Prompt

T = TypeVar("T")
CONFIG = "config.json"
NESTED = ("state_dict", "model")  # under which trainers store the weights of a network
WRAPPED = "module."  # what DistributedDataParallel puts before every name


@dataclass(frozen=True)
class Source:
    """Files that a reward loads: a directory, a file, or a repository of the hub."""

    option: str = "path"  # whose value says where
    revision: str = "revision"  # the option with the branch, tag or commit, where that is one of the hub
    index: str = CONFIG  # the file of the repository by which it is found
    files: tuple[str, ...] = ()  # of the repository that are fetched; none for those that transformers reads


@options
class LearnedReward(Reward):
    """Base of rewards by a network whose weights somebody published.

    A subclass says in ``sources`` what it loads, and loads it in ``load``, once per process: by functions with
    ``functools.cache`` whose arguments are folders, ``dtype`` and ``resting``, so that two rewards share a network.
    """

    has_weights: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True

    path: str
    """Directory, or org/name on the Hugging Face hub, of the network."""
    revision: str | None = None
    """Branch, tag or commit of a model of the hub; null is its default branch."""
    batch_size: Count = 16
    """Pictures per forward pass; 1 makes scores bit for bit independent of the batch."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network; scores are computed from its outputs in float32."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the network."""
    put_away: bool = False
    """Keep the weights in CPU memory while nothing is scored, so that a GPU is shared with training."""
    if_cached: bool = False
    """Leave the reward out where its weights are not on this machine, or where another reward is by the same ones. For
    what is watched with weight 0."""

    @model_validator(mode="after")
    def _has_somewhere_to_be_put(self) -> Self:
        if self.put_away and self.device == "cpu":
            raise ValueError("put_away is true, but device is cpu, where the weights are anyway; leave it out")
        return self

    @model_validator(mode="after")
    def _counts_everywhere(self) -> Self:
        if self.if_cached and self.counts:
            raise ValueError(
                f"if_cached is true, but weight is {self.weight:g}: another machine would train for something else; "
                "set weight to 0, or leave if_cached out"
            )
        return self

    def sources(self) -> tuple[Source, ...]:
        """What it loads; the files of the hub among it are fetched before a run begins."""
        return (Source(),)

    def folder(self, source: Source | None = None) -> Path:
        """The directory or the file of a source, of the network if none is given; what lacks is downloaded.

        Raises:
            UserError: it can't be had.
        """
        source = source or Source()
        where, revision = getattr(self, source.option), getattr(self, source.revision)
        return _folder(where, revision, source.index, source.files, f"{source.option} of reward {self.name}")

    def load(self) -> Any:
        """The network and what reads for it; loaded at the first call of a process.

        Raises:
            UserError: something is missing or does not fit.
        """
        raise NotImplementedError

    def check(self, prompts: Sequence[Prompt]) -> None:
        for source in self.sources():
            found = self.folder(source)
            why = self.complaint(source, found) if found.exists() else f"{found} does not exist; give a directory"
            if why:
                raise UserError(f"{source.option} of reward {self.name}: {why}")

    def complaint(self, source: Source, place: Path) -> str:
        """Why what is there can't be loaded, or "": seen without loading it."""
        if source.files:
            return refusal(weight_file, place, source.files)
        if not (place / CONFIG).is_file():
            return f"{place} has no {CONFIG}; give the folder of a model of transformers, or its name on the hub"
        return "; ".join(complaints_about(place))

    def prepare(self) -> None:
        self.load()

    @property
    def resting(self) -> str:
        """The device that weights are loaded to."""
        return "cpu" if self.put_away else self.device

    def gradient_refusal(self) -> str:
        refusal = super().gradient_refusal()
        if not refusal and self.put_away:
            return "its weights are put away after every batch, and gradients need them; set put_away=false"
        return refusal


class PixelModel(Protocol):
    """A network that reads squares of pixels."""

    @property
    def preprocessing(self) -> Preprocessing: ...

    @property
    def network(self) -> Any: ...


@options
class PixelReward(LearnedReward):
    """Base of learned rewards with gradients to the pixels: a subclass gives ``load`` and ``values``."""

    def load(self) -> PixelModel:
        raise NotImplementedError

    def values(self, model: PixelModel, pixels: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Values [B] of preprocessed pixels [B, 3, S, S], which are where the network is."""
        raise NotImplementedError

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        model = self.load()
        found: list[float] = []
        with awake(model.network, self.device, self.put_away):
            for rows in batches(range(len(images)), self.batch_size):
                pixels = model.preprocessing.pictures([images[i] for i in rows]).to(self.device)
                found += self.values(model, pixels, [prompts[i] for i in rows]).tolist()
        return [Verdict(value) for value in found]

    def differentiable(self, pictures: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        model = self.load()
        return self.values(model, model.preprocessing(pictures.to(self.device)), prompts).to(pictures.device)


@options
class PromptedReward(PixelReward):
    """Base of those that read the prompt, too."""

    tokenizer: str | None = None
    """Directory, or org/name on the hub, of the tokenizer; null takes the one beside the weights."""
    tokenizer_revision: str | None = None
    """Branch, tag or commit of the tokenizer, if it is one of the hub."""

    @model_validator(mode="after")
    def _names_what_it_is_of(self) -> Self:
        if self.tokenizer is None and self.tokenizer_revision is not None:
            raise ValueError("tokenizer_revision is given without tokenizer; leave it out")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Of the file of weights, if it is published under one of its own."""
        return ()

    @property
    def weights(self) -> Source:
        """Where the network is."""
        return Source(index=self.names[0], files=self.names) if self.names else Source()

    @property
    def vocabulary(self) -> Path:
        """The folder of the tokenizer."""
        place = self.folder(self.sources()[-1])
        return place if place.is_dir() else place.parent

    def sources(self) -> tuple[Source, ...]:
        if self.tokenizer is None:
            return (self.weights,)
        return self.weights, Source("tokenizer", "tokenizer_revision", "tokenizer_config.json", WORDS)

    def complaint(self, source: Source, place: Path) -> str:
        if source.option == "tokenizer":
            return tokenizer_complaint(place)
        why = self.network_complaint(place)
        if why or self.tokenizer is not None:
            return why
        if tokenizer_complaint(self.vocabulary):
            return f"{self.vocabulary} has no tokenizer beside the weights; give one as tokenizer"
        return ""

    def network_complaint(self, place: Path) -> str:
        """Why there is no network that it can load, or ""."""
        return super().complaint(self.weights, place)


def refusal(function: Callable[..., Any], *given: Any) -> str:
    """What a function would refuse, or ""."""
    try:
        function(*given)
    except UserError as error:
        return str(error)
    return ""


@cache
def _folder(path: str, revision: str | None, index: str, files: tuple[str, ...], option: str) -> Path:
    return model_folder(path, revision, index=index, option=option, files=files)


def batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    """Items in their order, ``size`` at a time."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


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

    with quietly():
        network = load_network(kind, folder, further="refuse", dtype=getattr(torch, dtype), **options)
    return frozen(network, folder, dtype=dtype, device=device)


def frozen(network: nn.Module, where: Path, *, dtype: str, device: str) -> nn.Module:
    """A network that only judges, on its device.

    Raises:
        UserError: it has weights that are not finite, or there is no such device.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device of a reward is cuda, but torch sees no GPU here; set it to cpu")
    refuse_non_finite(network, where)
    return network.to(device=device, dtype=getattr(torch, dtype)).eval().requires_grad_(False)


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
    known = [one for name in names for one in (str(Path(name).with_suffix(".safetensors")), name)]
    for name in known:
        if (place / name).is_file():
            return place / name
    found = sorted(place.glob("*.safetensors")) or sorted(
        file for file in place.glob("*") if file.suffix in PICKLED and file.is_file()
    )
    if len(found) == 1:
        return found[0]
    if not found:
        wanted = f" such as {names[0]}" if names else ""
        raise UserError(f"{place} has no weights{wanted}; give the folder that holds them, or the file itself")
    raise UserError(f"{place} has {listed([file.name for file in found])}; give the file that is meant")


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of one of torch, by name; the wrappings of trainers are taken off.

    Raises:
        UserError: it can't be read, or holds objects that are not tensors, which are never unpickled.
    """
    import torch
    from safetensors.torch import load_file

    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        # what older releases of torch wrote is no archive, and can't be mapped
        found: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except Exception as error:  # libraries raise anything for damaged files
        raise UserError(
            f"{file} can't be read as weights: {first_line(error):.300}; fetch it again, or convert it to safetensors "
            "where you trust it"
        ) from None
    for name in NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping):
        raise UserError(f"{file} holds a {type(found).__name__}, not weights by name; give a state dict")
    tensors = {str(name): value for name, value in found.items() if isinstance(value, torch.Tensor)}
    wrapped = bool(tensors) and all(name.startswith(WRAPPED) for name in tensors)
    return {name.removeprefix(WRAPPED) if wrapped else name: value for name, value in tensors.items()}


def fill(network: nn.Module, weights: Mapping[str, Tensor], where: Path) -> None:
    """Give a network exactly these weights.

    Raises:
        UserError: some are missing, further, or of another shape.
    """
    own = network.state_dict()
    what = type(network).__name__
    if missing := sorted(own.keys() - weights.keys()):
        raise UserError(f"{where} lacks {listed(missing)}, which {what} needs; fetch it again, or give another file")
    if further := sorted(weights.keys() - own.keys()):
        raise UserError(f"{where} has {listed(further)}, which {what} does not have; give the file of this scorer")
    for name, value in weights.items():
        if value.shape != own[name].shape:
            raise UserError(
                f"{where} does not fit: {name} is {list(value.shape)}, not {list(own[name].shape)}; give the file of "
                "this scorer, or the config.json that belongs to it"
            )
    network.load_state_dict(dict(weights), strict=True, assign=any(p.is_meta for p in network.parameters()))
