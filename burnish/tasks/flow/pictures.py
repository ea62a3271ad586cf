"""Files with pictures of the user: read before any weights are loaded, then learned by the model that is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from burnish.config.flow import FlowConfig
from burnish.data.flow.offline import EncodedPictures, OfflinePictures, StoredLatents
from burnish.data.flow.pictures import Holds, read_pictures
from burnish.data.records import files_of
from burnish.options.flow import DataOptions, SupervisedOptions
from burnish.tasks.flow.engine import FlowEngine
from burnish.types.rollout import Prompt
from burnish.utils.errors import UserError
from burnish.utils.lru_cache import in_bytes


class PictureFiles:
    """What a section of the configuration names, checked as far as that goes without a model."""

    def __init__(
        self, config: FlowConfig, section: DataOptions | SupervisedOptions, holds: Holds,
        limit: Callable[[Sequence[Any]], list[Any]] = list,
    ) -> None:  # fmt: skip
        """Read them; ``limit`` chooses those of all records that are taken."""
        files, rollout = section.train_files, config.rollout
        self.crop: tuple[int, int] | None = None
        if section.fit == "centre_crop":
            assert rollout.height is not None, "the configuration was not checked"
            assert rollout.width is not None, "the configuration was not checked"
            self.crop = (rollout.height, rollout.width)
        stored = [name for name in files_of(files) if name.suffix == ".safetensors"]
        if stored and len(files_of(files)) > 1:
            raise UserError(f"train_files names {stored[0]} and other files; latents are read from one file alone")
        self.stored = StoredLatents(stored[0], holds) if stored else None
        size = None if self.crop else (rollout.height, rollout.width)
        self.limited, self.cached = limit, in_bytes(config.model.cache_gb)
        self.read = [] if self.stored else limit(read_pictures(files, holds, size=size, keys=config.data))

    @property
    def records(self) -> Sequence[Any]:
        """What a stream shuffles."""
        return self.limited(self.stored.records) if self.stored else self.read

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts, where they are there in words."""
        return [record.prompt for record in self.read]

    def learned_by(self, engine: FlowEngine, *, shared: bool) -> OfflinePictures:
        """The pictures as the engine's model has them; ``shared`` says that several ranks learn from every batch."""
        if self.stored is not None:
            self.stored.connect(engine.condition, engine.latent_shape(Prompt(text="")))
            return self.stored
        return EncodedPictures(self.read, engine, crop=self.crop, cached=self.cached, shared=shared)
