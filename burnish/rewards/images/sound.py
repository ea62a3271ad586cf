"""How well a sound fits its prompt by a network that embeds both: CLAP."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from burnish.registry import register
from burnish.rewards.base import Score
from burnish.rewards.images.learned import LearnedReward
from burnish.rewards.networks.inputs import token_ids, tokenizer_of
from burnish.rewards.networks.loading import Source, load_strictly, network_complaint
from burnish.types.samples import Kind, Sound
from burnish.utils.reading import understood
from burnish.utils.weights import tokenizer_complaint

if TYPE_CHECKING:
    import numpy as np

    from burnish.types.prompt import Prompt


@cache
def _network(folder: Path, dtype: str, device: str) -> tuple[Any, Any]:
    """The network of a folder and what makes spectrograms for it, loaded once, however many rewards use them."""
    from transformers import ClapFeatureExtractor, ClapModel

    network = load_strictly(ClapModel, folder, dtype=dtype, device=device)
    with understood(f"the feature extractor in {folder} can't be loaded"):
        return network, ClapFeatureExtractor.from_pretrained(folder, local_files_only=True)


def _complaint(place: Path) -> str:
    return network_complaint(place, ("clap",)) or tokenizer_complaint(place)


@register("flow reward", "clap")
class Clap(LearnedReward):
    """Cosine of a CLAP's embeddings of a sound and its prompt (Wu et al. 2023, arXiv:2211.06687); of a clip its sound.

    It hears the mean of the channels, and of a longer sound the first seconds that the network takes (10 of LAION's).
    """

    reads: ClassVar[tuple[Kind, ...]] = ("sound",)
    judged: ClassVar[str] = "samples"

    path: str = "laion/clap-htsat-unfused"
    """Directory, or org/name on the Hugging Face hub, of the network."""

    def sources(self) -> tuple[Source, ...]:
        return (Source(complaint=_complaint),)

    def load(self) -> tuple[Any, Any]:
        tokenizer_of(self.folder())
        return _network(self.folder(), self.dtype, self.resting)

    def score(self, images: Sequence[Sound], prompts: Sequence[Prompt]) -> list[Score]:
        network, extractor = self.load()

        def cosines(rows: Sequence[int]) -> list[float]:
            import torch

            texts = [prompts[row].text for row in rows]
            ids, mask = (one.to(self.device) for one in token_ids(tokenizer_of(self.folder()), texts, 77))
            read = network.get_text_features(input_ids=ids, attention_mask=mask).pooler_output
            waves = [_heard(images[row], extractor.sampling_rate)[: extractor.nb_max_samples] for row in rows]
            seen = extractor(waves, sampling_rate=extractor.sampling_rate, return_tensors="pt")["input_features"]
            # its extractor calls one of a batch longer, at random, where none is
            longer = torch.zeros(len(rows), 1, dtype=torch.bool, device=self.device)
            seen = seen.to(self.device, network.dtype)
            heard = network.get_audio_features(input_features=seen, is_longer=longer).pooler_output
            return (read.float() * heard.float()).sum(-1).tolist()  # type: ignore[no-any-return]

        return [Score(value) for value in self.in_batches(network, range(len(images)), cosines)]


def _heard(sound: Sound, rate: int) -> np.ndarray:
    """The mean of a sound's channels at another rate: float64 [N]."""
    from scipy.signal import resample_poly

    return resample_poly(sound.samples.mean(0, dtype="float64"), rate, sound.rate)  # type: ignore[no-any-return]
