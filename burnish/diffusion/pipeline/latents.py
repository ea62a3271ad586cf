"""Images as final states of a pipeline: its own decoding, inverted.

Between a final state and what its VAE decodes, pipelines only rearrange and scale: z = a P(x) + b elementwise, where P
is a permutation. Four states tell a, b and P.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.diffusion.pipeline.forwards import RunDone
from burnish.diffusion.pipeline.schedules import Unsupported
from burnish.utils.errors import UserError

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in PIL's conversion to grey
DIGITS = 4096  # base of the two digits that a position is written in: float32 holds each of them exactly


@dataclass(frozen=True)
class LatentLayout:
    """Where each element of a final state lies in what the VAE decodes."""

    slope: Tensor  # [*z] a
    offset: Tensor  # [*z] b
    place: Tensor  # [*z] long: the element of the state
    shape: tuple[int, ...]  # of a state

    @classmethod
    def of(
        cls, decode: Callable[[Tensor, Callable[..., Any]], Any], shape: tuple[int, ...], device: torch.device
    ) -> LatentLayout:
        """Learn it from ``decode``, which decodes a state [1, ...] with a method in place of the VAE's.

        Raises:
            Unsupported: the pipeline does more than that, or doesn't decode its states by its VAE.
        """

        def decoded(state: Tensor) -> Tensor:
            def take(**arguments: Any) -> Any:
                raise RunDone(next(iter(arguments.values())).float())

            try:
                with torch.no_grad():
                    decode(state, take)
            except RunDone as done:
                return done.args[0]  # type: ignore[no-any-return]
            raise Unsupported("it doesn't decode its states by its VAE")

        count = torch.Size(shape).numel()
        number = torch.arange(count, device=device, dtype=torch.float32)
        offset = decoded(torch.zeros(1, *shape, device=device))
        slope = decoded(torch.ones(1, *shape, device=device)) - offset
        if bool((slope == 0).any()):
            raise Unsupported("a part of what its VAE decodes doesn't depend on the state")
        low, high = (
            ((decoded(digit.view(1, *shape)) - offset) / slope).round().long()
            for digit in (number % DIGITS, number.div(DIGITS, rounding_mode="floor"))
        )
        found = cls(slope, offset, high * DIGITS + low, shape)
        probe = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0)).to(device)
        every = torch.equal(found.place.flatten().sort().values, torch.arange(count, device=device))
        if not every or not torch.allclose(found.state(decoded(probe)), probe, atol=1e-4):
            raise Unsupported("between its states and its VAE there is more than an arrangement and a scale")
        return found

    def encoded(self, vae: Any, images: Sequence[np.ndarray]) -> Tensor:
        """Final states [B, ...] of images uint8 [H, W, 3], or of clips uint8 [F, H, W, 3]: the VAE's means.

        Raises:
            UserError: they have another size than the run draws.
        """
        found = []
        for image in images:
            if image.ndim >= self.slope.ndim:
                raise UserError(
                    f"records have {'clips' if image.ndim == 4 else 'images'}, which the model doesn't draw; give what "
                    "it draws"
                )
            frames = image[None] if self.slope.ndim == 5 and image.ndim == 3 else image
            pixels = torch.from_numpy(frames).to(self.slope.device).movedim(-1, 0)[None].float() / 127.5 - 1
            with torch.no_grad():
                latents = next(iter(vars(vae.encode(pixels.to(vae.dtype))).values()))
            latents = latents if isinstance(latents, Tensor) else latents.mode()
            if latents.shape[1] == 3 and self.slope.shape[1] == 1:  # without a VAE, of grey images
                latents = (latents * latents.new_tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)
            if latents.shape != self.slope.shape:
                shown = " x ".join(map(str, image.shape[-2:-4:-1]))
                count = f" in {len(image)} frames (rollout.num_frames)" if image.ndim == 4 else ""
                raise UserError(
                    f"an image has {shown} pixels{count}, but the run draws samples of another size; set "
                    "rollout.height and rollout.width to the images' size, or data.fit=centre_crop"
                )
            found.append(self.state(latents.float()))
        return torch.cat(found)

    def state(self, latents: Tensor) -> Tensor:
        """The final state [1, ...] whose decoding begins with these latents of the VAE."""
        values = ((latents - self.offset) / self.slope).flatten()
        state = torch.empty_like(values)
        state[self.place.flatten()] = values
        return state.view(1, *self.shape)
