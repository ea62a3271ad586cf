"""Options of rewards that load a language model: as a judge, or with the heads that Burnish trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from burnish.language.model.reward_head import HeadFile, read_about
from burnish.options import Count, Finite
from burnish.registry import options
from burnish.rewards.text.reading_model import load_reader
from burnish.utils.errors import UserError
from burnish.utils.hub import model_folder
from burnish.utils.patterns import pattern_complaint
from burnish.utils.weights import complaints_about


@options
class LoadedOptions:
    """A language model that a reward loads."""

    name: ClassVar[str]

    path: str
    """Directory of a language model in transformers layout, or org/name on the Hugging Face hub."""
    revision: str | None = None
    """Branch, tag or commit of a model of the hub; null is its default branch."""
    batch_size: Count = 8
    """Samples per forward pass, padded together; 1 makes scores bit for bit independent of the batch."""
    max_length: Count = 4096
    """Longest text that is read, in tokens; the reward of longer ones is missing, they are never truncated."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the network."""
    put_away: bool = False
    """Keep the weights in CPU memory while nothing is scored, so that a GPU is shared with training."""

    @model_validator(mode="after")
    def _is_put_away_from_a_gpu(self) -> Self:
        if self.put_away and self.device == "cpu":
            raise ValueError("put_away is true, but device is cpu, where the weights are anyway; leave it out")
        return self

    def _folder(self) -> Path:
        return model_folder(self.path, self.revision, index="config.json", option=f"path of reward {self.name}")

    def _checked(self, wanted: str) -> Path:
        """The folder, which has what loading needs; ``wanted`` says what to give where it has not."""
        folder = self._folder()
        if not (folder / "config.json").is_file():
            raise UserError(f"path of reward {self.name} is {self.path!r}, which has no config.json; give {wanted}")
        if cut := list(complaints_about(folder)):
            raise UserError(f"path of reward {self.name} is {self.path!r}: {'; '.join(cut)}")
        if slow := pattern_complaint(folder):
            raise UserError(f"path of reward {self.name} is {self.path!r}: {slow}")
        return folder


@options
class HeadOptions(LoadedOptions):
    """A reward model, and what its heads count."""

    heads: dict[str, Finite] | None = None
    """Weights of the heads in the sum, by name, for reward models of Burnish; null takes the mean of all."""

    @model_validator(mode="after")
    def _some_head_counts(self) -> Self:
        if self.heads is not None and not any(self.heads.values()):
            raise ValueError("heads has no weight but 0; give one a weight, or leave it out")
        return self

    def _about(self, folder: Path) -> HeadFile:
        """What the model says of its heads, which has all that are asked for."""
        about = read_about(folder)
        if further := [name for name in self.heads or () if name not in about.heads]:
            raise UserError(
                f"heads of reward {self.name} has {further[0]!r}, but {self.path} has {', '.join(about.heads)}"
            )
        return about

    def _reader(self, folder: Path) -> Any:
        return load_reader(folder, self.dtype, self.device, self.put_away, headed=True)

    def _sum(self, about: HeadFile, values: Sequence[float]) -> float:
        """Of the heads, or their mean."""
        if self.heads is None:
            return sum(values) / len(values)
        named = dict(zip(about.heads, values, strict=True))
        return sum(weight * named[name] for name, weight in self.heads.items())
