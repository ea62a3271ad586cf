"""Files with pictures of the user: read before any weights are loaded, then learned by the model that is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from burnish.config.flow import FlowConfig
from burnish.data.flow.offline import EncodedPictures, OfflinePictures, ScoredPictures
from burnish.data.flow.pictures import Holds, ScoredGroup, read_pictures, scored_groups
from burnish.options.flow import DataOptions, SupervisedOptions
from burnish.tasks.flow.engine import FlowEngine
from burnish.types.rollout import Prompt
from burnish.utils.errors import UserError
from burnish.utils.lru_cache import in_bytes


class PictureFiles:
    """What a section of the configuration names, checked as far as that goes without a model."""

    def __init__(
        self, config: FlowConfig, section: DataOptions | SupervisedOptions, holds: Holds,
        limit: Callable[[Sequence[Any]], Sequence[Any]] = list,
    ) -> None:  # fmt: skip
        """Read them; ``limit`` chooses those of all records that are taken."""
        files, rollout = section.train_files, config.rollout
        self.crop: tuple[int, int] | None = None
        if section.fit == "centre_crop":
            assert rollout.height is not None, "the configuration was not checked"
            assert rollout.width is not None, "the configuration was not checked"
            self.crop = (rollout.height, rollout.width)
        size = None if self.crop else (rollout.height, rollout.width)
        self.cached, self.n = in_bytes(config.model.cache_gb), rollout.n
        self.groups: list[ScoredGroup] = []  # of pictures with rewards
        self.read = read_pictures(files, holds, size=size, keys=config.data)
        if holds == "scored":
            self.groups = list(limit(scored_groups(self.read)))
            self.read = [member for group in self.groups for member in group.members]
            self._check_groups(config)
        else:
            self.read = list(limit(self.read))

    @property
    def records(self) -> Sequence[Any]:
        """What a stream shuffles."""
        return self.groups or self.read

    @property
    def prompts(self) -> list[Prompt]:
        """Of all pictures."""
        return [record.prompt for record in self.groups or self.read]

    def learned_by(self, engine: FlowEngine, *, shared: bool) -> OfflinePictures:
        """The pictures as the engine's model has them; ``shared`` says that several ranks learn from every batch."""
        encoded = EncodedPictures(self.read, engine, crop=self.crop, cached=self.cached, shared=shared)
        return ScoredPictures(self.groups, encoded, self.n) if self.groups else encoded

    def _check_groups(self, config: FlowConfig) -> None:
        """Refuse pictures with rewards that leave nothing to compare, or fewer of a prompt than the run takes."""
        files, name = config.data.train_files, config.algorithm.name
        most = max((len(group.members) for group in self.groups), default=0)
        if not most:
            raise UserError(f"data.train_files is {files}, where no picture has a reward: all are null; score some")
        if most < 2 and config.algorithm.needs().groups:
            raise UserError(
                f"data.train_files is {files}, where no prompt has two pictures with a reward, and {name} compares "
                "those of a prompt; give several of each, or compare with the whole batch: "
                "algorithm.advantage=returns rollout.n=1"
            )
        if most < self.n:
            raise UserError(
                f"rollout.n is {self.n}, but no prompt in data.train_files has more than {most} pictures with a "
                f"reward; set rollout.n={most}"
            )
