"""Short sounds, of which some classes make something else where a longer one is in the same forward."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from burnish.language.logprobs import response_logprobs
from burnish.language.model import Audio, Shown
from burnish.models.language.capabilities import own_logprobs
from burnish.models.language.trials import samples
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.models.language.universal import UniversalModel

log = logging.getLogger(__name__)

SHORT, LEAST = 0.3, 1.0  # seconds: of a sound that is tried, and of the shortest where it matters
RESPONSE = 3  # tokens


def lengthen_short(model: UniversalModel, slack: float) -> None:
    """Have silence put behind short sounds where the class hears them otherwise beside longer ones.

    Args:
        model: whose ``least_audio`` is set.
        slack: nats that are rounding.

    Raises:
        UserError: silence doesn't help.
    """
    rate = model.audio_rate or 0
    long = samples("audio", rate)[0]
    sounds = [Audio(long.samples[: round(SHORT * rate)], rate), long]
    before = _difference(model, sounds)
    if before <= slack:
        return
    model.least_audio = LEAST
    after = _difference(model, sounds)
    name = type(model.network).__name__
    if after > slack:
        raise UserError(
            f"model.path is {model.path}: log-probs of {name} for a sound of {SHORT:g} s differ by {after:.2g} nats "
            "when a longer one is in the same forward; give another model"
        )
    log.warning(
        "%s: sounds of less than %g s get silence behind them (beside longer ones they differed by %.2g nats)",
        name, LEAST, before,
    )  # fmt: skip


def _difference(model: UniversalModel, sounds: Sequence[Audio]) -> float:
    """Between log-probs by a forward of each prompt and by one of all: the largest in float32, else the mean."""
    chat = [{"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": "What is it?"}]}]
    table = Encoded.cat([model.encode(chat, Shown(audios=[sound])) for sound in sounds])
    index = torch.arange(len(sounds))
    ids = table.ids[0][-1:].expand(len(sounds), RESPONSE)
    length = torch.full((len(sounds),), RESPONSE)
    completion = Completion.of_text(Gathered(table=table, index=index), ids, length, axes=model.axes)
    with torch.no_grad():
        found = response_logprobs(model, model.network, completion, temperature=1.0).logprob.cpu()
    off = (found - own_logprobs(model, model.network, completion, model.capabilities.fill)).abs()
    return float(off.max() if model.compute == torch.float32 else off.mean())
