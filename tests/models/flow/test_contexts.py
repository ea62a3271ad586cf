"""Which networks ranks can split the sequences of, by configuration files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from burnish.models.flow.contexts import check_contexts
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.options.flow import RolloutOptions
from burnish.utils.errors import UserError
from tests.support.factory import tiny_flux


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {name: tmp_path_factory.mktemp(name) for name in ("wan2.2", "sd3")}
    for name, folder in found.items():
        write(describe(name), folder, 0)
    return found | {"flux": tiny_flux(tmp_path_factory.mktemp("flux"))}


CLIP = {"height": 32, "width": 32, "num_frames": 5}  # 2 x 2 x 2 tokens
REFUSED: dict[str, tuple[str, int, dict[str, Any], str, str]] = {
    "a network without a plan": ("sd3", 2, {}, "auto", "gradients of a StableDiffusion3Pipeline are not shown"),
    "heads": ("flux", 3, {}, "auto", "transformer has 2 attention heads"),
    "text": ("flux", 2, {"max_sequence_length": 15}, "auto", r"texts \(rollout.max_sequence_length\): 15 tokens"),
    "a picture": ("flux", 2, {"height": 12, "width": 20}, "auto", "pictures of 12 x 20: 15 tokens"),
    "a clip": ("wan2.2", 2, {**CLIP, "height": 16, "width": 48, "num_frames": 1}, "auto", "1 frames of 16 x 48: 3 tok"),
    "attention": ("flux", 2, {}, "flex", "model.attention is flex, which diffusers has no context parallelism for"),
}


@pytest.mark.parametrize(("model", "size", "drawn", "attention", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(
    folders: dict[str, Path], model: str, size: int, drawn: dict[str, Any], attention: str, message: str
) -> None:
    index = json.loads((folders[model] / "model_index.json").read_text())
    with pytest.raises(UserError, match=message):
        check_contexts(folders[model], index, size, attention, RolloutOptions(batch_size=96, **drawn))


@pytest.mark.parametrize(("model", "drawn"), [("flux", {"height": 16, "width": 16}), ("wan2.2", CLIP)])
def test_taken(folders: dict[str, Path], model: str, drawn: dict[str, Any]) -> None:
    index = json.loads((folders[model] / "model_index.json").read_text())
    check_contexts(folders[model], index, 2, "native", RolloutOptions(batch_size=96, **drawn))


def test_a_clip_of_the_pipelines_own_size_is_known(folders: dict[str, Path]) -> None:
    index = json.loads((folders["wan2.2"] / "model_index.json").read_text())
    check_contexts(folders["wan2.2"], index, 2, "auto", RolloutOptions(batch_size=96))
