"""burnish sample: samples of given prompts, from a run, a recipe or any pipeline."""

from __future__ import annotations

import re
from collections.abc import Sequence

from burnish.commands.opening import SampleRequest, open_run
from burnish.config.tasks import DEFAULT, task_named
from burnish.options import Solver
from burnish.utils.errors import UserError
from burnish.utils.paths import check_output
from burnish.utils.reading import checked_path
from burnish.utils.terminal import loading_pytorch

OPTION = re.compile(r"[a-z]\w*(\.\w+)+=\S+")  # as train and eval take them


def sample(
    source: str,
    prompts: Sequence[str],
    *,
    images: Sequence[str],
    videos: Sequence[str],
    audios: Sequence[str],
    prompt_file: str | None,
    output: str,
    n: int,
    steps: int | None,
    guidance: float | None,
    solver: Solver | None,
    height: int | None,
    width: int | None,
    frames: int | None,
    seed: int,
) -> int:
    """Sample ``n`` images or responses per prompt; the same seed gives the same samples for any ``n``."""
    if not all(text.strip() for text in prompts):
        raise UserError("a prompt is empty; write one, or leave it out")
    if option := next((text for text in prompts if OPTION.fullmatch(text)), None):
        raise UserError(
            f"{option!r:.80} is an option of a recipe, which sample doesn't take; use its own (burnish sample --help), "
            "or give it as a prompt in a --prompt-file"
        )
    wanted = {
        "num_inference_steps": steps, "guidance_scale": guidance, "solver": solver, "height": height, "width": width,
        "num_frames": frames,
    }  # fmt: skip
    check_output(checked_path(output, "--output"), "sample")
    changes = {name: value for name, value in wanted.items() if value is not None}
    request = SampleRequest(source, prompts, images, videos, audios, prompt_file, output, n, seed, changes)
    if (checked_path(source, "SOURCE") / "model_index.json").exists():
        with loading_pytorch():
            draw = task_named(DEFAULT).sample
        drawn: int = draw(None, request)
        return drawn
    assembly, _ = open_run(source)
    written: int = task_named(assembly.config.task).sample(assembly, request)
    return written
