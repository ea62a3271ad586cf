"""What forward passes of a language model cost: a formula by lengths, whose factors come from passes without values.

A text of L tokens costs b L + c L^2, a picture of P patches d P + e P^2, a response token one row of the head. Padding
isn't counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from burnish.language.model.base import LanguageModel, Shown
from burnish.language.packing import estimate, unfolded
from burnish.models.lora import carriers, switch_adapter
from burnish.training.flop_counter import Cost, FlopCounter, Skeleton
from burnish.training.profiling import Meter
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, Features

Layout = Literal["auto", "padded", "packed", "shared"]
LENGTHS = (128, 256, 512)  # tokens of texts that are tried; recurrent layers go by chunks of 64
SIDES = (616, 280, 112, 56, 32)  # pixels of pictures that are tried until two differ in their patches


class ResponseMeter(Meter):
    """Counts forward passes over responses with their prompts."""

    def __init__(
        self, peak: float, model: LanguageModel, network: nn.Module, adapter: Callable[[], str | None]
    ) -> None:
        """Args: ``network`` is complete and not sharded yet, ``adapter`` the name of the one that is active."""
        super().__init__(peak)
        self.model, self._adapter = model, adapter
        self.skeleton = Skeleton(network, model.device)
        self._layers = carriers(self.skeleton.network)
        self._texts: dict[Any, tuple[Cost, Cost]] = {}  # b and c, by adapter
        self._pictures: dict[Any, tuple[Cost, Cost]] = {}  # d and e

    def states(self, completion: Completion, layout: Layout) -> None:
        """Count a forward pass of the decoder, and of the towers before it."""
        self.add(lambda: self._passed(completion, layout))

    def head(self, hidden: Tensor, weight: Callable[[], Tensor]) -> None:
        """Count the head's log-probs of states [R, D], a product with its weight [V, D]."""

        def product() -> Cost:
            own = weight()
            forward = 2.0 * len(hidden) * own.numel()
            return Cost(forward, forward * (hidden.requires_grad + own.requires_grad))

        self.add(product)

    def _passed(self, completion: Completion, layout: Layout) -> Cost:
        linear, square = self._text()
        completion = unfolded(completion)
        used, owner = completion.prompts.index.unique(return_inverse=True)
        table = completion.prompts.table.select(used)
        tokens, pairs = lengths_of(
            table.lengths, [max(length - 1, 0) for length in completion.length.tolist()], owner.tolist(),
            layout, self.model,
        )  # fmt: skip
        cost = Cost().plus(linear, tokens).plus(square, pairs)
        for features in [*table.features, *completion.features]:
            if features.size:
                cost = self._seen(cost, features)
        return cost

    def _seen(self, cost: Cost, features: Features) -> Cost:
        """A cost with that of pictures."""
        linear, square = self._picture()
        patches = patches_of(features)
        return cost.plus(linear, sum(patches)).plus(square, sum(one * one for one in patches))

    def _text(self) -> tuple[Cost, Cost]:
        adapter = self._adapter()
        if adapter not in self._texts:
            words = [self._prompt([])]
            first = words[0].lengths[0]
            passes = [self._run(words[0], length - first + 1) for length in LENGTHS]
            self._texts[adapter] = fitted(LENGTHS, passes)
        return self._texts[adapter]

    def _picture(self) -> tuple[Cost, Cost]:
        adapter = self._adapter()
        if adapter not in self._pictures:
            linear, square = self._text()
            tried: dict[float, tuple[Encoded, list[int]]] = {}  # by the size of the patches' pieces
            for side in SIDES:
                prompt = self._prompt([side])
                patches = patches_of(prompt.features[0])
                tried.setdefault(sum(one * one for one in patches) / sum(patches), (prompt, patches))
            sums, found = [], []
            for prompt, patches in list(tried.values())[:2]:
                length = prompt.lengths[0] + 1
                found.append(self._run(prompt, 2).plus(linear, -length).plus(square, -(length**2)))
                sums.append((sum(patches), sum(one * one for one in patches)))
            self._pictures[adapter] = fitted_pictures(sums, found)
        return self._pictures[adapter]

    def _prompt(self, sides: Iterable[int]) -> Encoded:
        """A prompt with grey pictures."""
        from PIL.Image import new

        pictures = [new("RGB", (side, side), "grey") for side in sides]
        parts = [*({"type": "image"} for _ in pictures), {"type": "text", "text": "What is there?"}]
        return self.model.encode([{"role": "user", "content": parts}], Shown(pictures))

    def _run(self, prompt: Encoded, response: int) -> Cost:
        """A pass over a prompt with a response of N tokens, without values."""
        if self._layers:
            switch_adapter(self._layers, self._adapter())
        index, ids = torch.zeros(1, dtype=torch.long), prompt.ids[0][:1].expand(1, response)
        completion = Completion.of_text(
            Gathered(table=prompt, index=index), ids, torch.tensor([response]), axes=self.model.axes
        )
        with torch.enable_grad(), FlopCounter() as operations:
            self.model.response_states(self.skeleton.network, completion, layout="packed")
        found: Cost = operations.cost
        return found


def lengths_of(
    prompts: Sequence[int], responses: Sequence[int], owner: Sequence[int], layout: Layout, size: Any
) -> tuple[int, int]:
    """Tokens of a forward pass, and pairs of tokens that could see one another, without padding.

    Args:
        prompts: [P] length of each prompt.
        responses: [B] tokens of each response that are read.
        owner: [B] its prompt.
        layout: of the forward pass.
        size: of the network.
    """
    own = [prompts[one] for one in owner]
    if layout == "auto":
        costs: dict[Any, float] = estimate(own, responses, owner, size)
        layout = min(costs, key=costs.__getitem__)
    rows = [prompt + response for prompt, response in zip(own, responses, strict=True)]
    if layout != "shared":
        return sum(rows), sum(row**2 for row in rows)
    pairs = sum(response * row for response, row in zip(responses, rows, strict=True))
    return sum(prompts) + sum(responses), sum(prompt**2 for prompt in prompts) + pairs


def patches_of(features: Features) -> list[int]:
    """Patches of each picture and each frame, where a grid tells them; else all numbers that a tower reads."""
    grids = [one for name, one in features.tensors.items() if "grid" in name and one.ndim == 2 and one.shape[1] == 3]
    if not grids:
        return [features.size]
    return [height * width for grid in grids for frames, height, width in grid.tolist() for _ in range(frames)]


def fitted(lengths: Sequence[int], costs: Sequence[Cost]) -> tuple[Cost, Cost]:
    """b and c of a + b L + c L^2 through three points; a is what doesn't grow with a text."""
    powers = torch.tensor([[1, length, length**2] for length in lengths], dtype=torch.float64)
    _, linear, square = torch.linalg.solve(powers, torch.tensor(costs, dtype=torch.float64)).tolist()
    return Cost(*linear), Cost(*square)


def fitted_pictures(sums: Sequence[tuple[int, int]], costs: Sequence[Cost]) -> tuple[Cost, Cost]:
    """d and e of d P + e Q through two points; e is 0 where all pictures are cut into pieces of one size."""
    if len(sums) == 1:
        return Cost(*(value / sums[0][0] for value in costs[0])), Cost()
    matrix = torch.tensor(sums, dtype=torch.float64)
    linear, square = torch.linalg.solve(matrix, torch.tensor(costs, dtype=torch.float64)).tolist()
    return Cost(*linear), Cost(*square)
