"""An endless, resumable stream of batches of prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from burnish import random
from burnish.errors import UserError
from burnish.types import Prompt


class PromptStream:
    """Every epoch in a new order that depends on seed and epoch alone; batches are always full.

    A batch may reach across the end of an epoch, so no prompt is left out and one may occur twice in a batch.
    The position is one number, which is why this is not a data loader with worker processes to restore.
    """

    def __init__(self, prompts: Sequence[Prompt], batch_size: int, *, seed: int, shuffle: bool) -> None:
        self.prompts, self.batch_size, self.seed, self.shuffle = list(prompts), batch_size, seed, shuffle
        self.position = 0  # prompts handed out since the beginning
        self._epoch, self._order = -1, list(range(len(self.prompts)))

    def next_batch(self) -> list[Prompt]:
        """The next ``batch_size`` prompts."""
        start, self.position = self.position, self.position + self.batch_size
        return [self._at(i) for i in range(start, self.position)]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "data": self._fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a stream over the same prompts stopped.

        Raises:
            UserError: these are other prompts, or another order of them.
        """
        if state["data"] != self._fingerprint():
            raise UserError(
                "data.train_files, data.shuffle or seed differ from those of the checkpoint, so its position "
                "in the data means nothing here; give the same, or start anew in another output_dir"
            )
        self.position = state["position"]

    def _at(self, position: int) -> Prompt:
        epoch, index = divmod(position, len(self.prompts))
        if not self.shuffle:
            return self.prompts[index]
        if epoch != self._epoch:
            self._epoch, self._order = epoch, random.permutation(len(self.prompts), self.seed, "data", epoch)
        return self.prompts[self._order[index]]

    def _fingerprint(self) -> str:
        content = "".join(prompt.uid for prompt in self.prompts) + f"{self.shuffle}{self.seed}"
        return hashlib.sha256(content.encode()).hexdigest()[:16]
