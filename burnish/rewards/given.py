"""What rewards may ask for besides samples and prompts. Imports nothing heavy, because scoring processes read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from burnish.rewards.base import AnyReward
    from burnish.types.prompt import Prompt

Compared = Literal["samples", "pairs", "groups"]  # what a reward judges: each by itself, two of a prompt, all of them


@dataclass(frozen=True, kw_only=True)
class Given:
    """Of a batch of samples. Only what a reward asks for is sent to the process that computes it."""

    inputs: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # latents, embeddings, response_ids, by sample
    group: Sequence[int] = ()  # equal for the samples of one prompt; empty: those with the same prompt
    update: int = 0  # the policy update that the samples are for; 0 is validation
    made_up: bool = False  # the samples are made up, to try the rewards: nobody knows what their latents would be

    def select(self, rows: Sequence[int]) -> Given:
        """Of some of the samples, in that order."""
        inputs = {name: [values[row] for row in rows] for name, values in self.inputs.items()}
        return replace(self, inputs=inputs, group=[self.group[row] for row in rows] if self.group else ())

    def only(self, names: Collection[str]) -> Given:
        """Without the inputs that are not named."""
        return replace(self, inputs={name: values for name, values in self.inputs.items() if name in names})

    def groups(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """The rows of each group, in order of their first."""
        found: dict[object, list[int]] = {}
        for row, prompt in enumerate(prompts):
            found.setdefault(self.group[row] if self.group else prompt.uid, []).append(row)
        return list(found.values())


NOTHING = Given()


def inputs_asked(rewards: Mapping[str, AnyReward]) -> set[str]:
    """What any of these rewards asks for."""
    return {name for reward in rewards.values() for name in reward.asks()}
