"""Why a pipeline can't be trained, as a user is told."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from burnish.diffusion.pipeline.levels import Unsupported
from burnish.utils.errors import UserError, out_of_memory

OURS = Path(__file__).parents[2]
# functions of ours that call parts of a pipeline as the pipeline calls them
HANDED_ON = ("set_timesteps", "own", "_record", "answered", "called")


DRAWN = "can't be drawn from with the first prompt and these options: its own call"
GIVE = (
    "give it what it needs (pictures with the prompt, rollout.height and width, rollout.max_sequence_length, "
    "rollout.call, model.vae_tiling), and try the same call in diffusers alone"
)


@contextmanager
def explained(kind: str, ended: str = DRAWN, way: str = GIVE) -> Iterator[None]:
    """Turn what a pipeline's own call raises into a UserError; errors of Burnish's own code stay as they are.

    Args:
        kind: class of the pipeline.
        ended: what of it ends with the error.
        way: out of it.

    Raises:
        UserError: with the reason, or with the error and the line of the library that raised it.
    """
    try:
        yield
    except UserError:
        raise
    except Unsupported as error:
        raise UserError(f"a {kind} can't be trained: {error}") from error
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if out_of_memory(error) or (OURS in Path(last.filename).parents and last.name not in HANDED_ON):
            raise
        said = (str(error).strip() or "no reason is given").splitlines()[0]
        raise UserError(
            f"a {kind} {ended} ended with {type(error).__name__}: {said} ({Path(last.filename).name}, line "
            f"{last.lineno}); {way}"
        ) from error
