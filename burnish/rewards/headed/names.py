"""Names of weights in checkpoints of Qwen2-VL with a head: those of old and new transformers, wrapped by peft or not.

Loading by the library is silently wrong for some of them: a vision tower drawn anew, an adapter that changes nothing.
So names are changed here, adapters are merged by hand, and what is left over or lacks is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from burnish.utils.errors import UserError, listed

if TYPE_CHECKING:
    from torch import Tensor

WRAPPED = "base_model.model."
HEADS = ("rm_head.", "rm_heads.")
UNREAD = "lm_head."  # nothing is written: half a billion weights at 7B
# old names first have no part for the language model; the order matters, as all begin with "model."
RENAMED = (
    ("model.visual.", "visual."), ("model.language_model.", "language_model."), ("visual.", "visual."),
    ("language_model.", "language_model."), ("model.", "language_model."),
)  # fmt: skip
_ADAPTER = re.compile(r"(.+)\.lora_([AB])(?:\.\w+)?\.weight")
_SAVED = re.compile(r"\.modules_to_save(?:\.default)?\.")


@dataclass
class Parts:
    """Of a checkpoint: weights by the names of the model's class without its head, heads, and adapters."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    heads: dict[str, Tensor] = field(default_factory=dict)
    adapters: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # by the weight that they change: A and B

    def add(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """Sort the tensors of a file in.

        Raises:
            UserError: a name is of no part.
        """
        unknown = [name for name, tensor in tensors.items() if not self._sort(name, tensor)]
        if unknown:
            raise UserError(
                f"{where} has {listed(sorted(unknown))}, which belong to no Qwen2-VL with a head; give the checkpoint "
                "of this reward"
            )

    def _sort(self, name: str, tensor: Tensor) -> bool:
        while name.startswith(WRAPPED):
            name = name.removeprefix(WRAPPED)
        if ".original_module." in name or name.startswith(UNREAD):
            return True
        name = _SAVED.sub(".", name).replace(".base_layer.", ".")
        adapter = _ADAPTER.fullmatch(name)
        target = f"{adapter[1]}.weight" if adapter else name
        if "lora_" in target:
            return False
        if target.startswith(HEADS):
            if adapter:
                return False
            self.heads[target] = tensor
            return True
        for before, after in RENAMED:
            if target.startswith(before):
                target = after + target.removeprefix(before)
                if adapter:
                    self.adapters.setdefault(target, {})[adapter[2]] = tensor
                else:
                    self.weights[target] = tensor
                return True
        return False

    def merge(self, alpha: float, where: str) -> None:
        """Add the adapters to the weights: W + alpha / r B A.

        Raises:
            UserError: one has no weight to change, lacks a half, or has another shape.
        """
        if strays := sorted(self.adapters.keys() - self.weights.keys()):
            raise UserError(
                f"{where} has adapters of {listed(strays)}, which neither it nor its base has; an adapter would change "
                "nothing: give the base model that it was trained on"
            )
        for target, halves in self.adapters.items():
            weight = self.weights[target]
            if len(halves) != 2:
                raise UserError(f"{where} has half of the adapter of {target}; fetch it again")
            change = halves["B"].float() @ halves["A"].float()
            if change.shape != weight.shape:
                raise UserError(
                    f"{where}: the adapter of {target} is {list(change.shape)}, and the weight {list(weight.shape)}; "
                    "give the base model that it was trained on"
                )
            self.weights[target] = (weight.float() + alpha / len(halves["A"]) * change).to(weight.dtype)
        self.adapters.clear()
