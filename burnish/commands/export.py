"""burnish export: trained weights in the formats of diffusers, transformers and peft; also of every checkpoint."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from burnish import __version__
from burnish.checkpoint.files import Manifest, numbered, read_manifest
from burnish.commands.opening import open_run, output_folder
from burnish.config.run_folder import RunFolder
from burnish.hooks.beside import OfCheckpoints
from burnish.report.card import head
from burnish.utils import terminal
from burnish.utils.disk import writing
from burnish.utils.errors import UserError
from burnish.utils.hub import hub_name
from burnish.utils.paths import check_output
from burnish.utils.reading import checked_path
from burnish.utils.supervisor import Server

if TYPE_CHECKING:
    import torch

    from burnish.tasks import Assembly

log = logging.getLogger(__name__)

Format = Literal["merged", "lora"]
Dtype = Literal["float32", "bfloat16"]
LOST = 0.01  # fraction of an adapter lost by rounding that is worth a warning
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # of a process beside a run, which needs the rest
STEP = "checkpoint.json"  # in an export: which checkpoint it is of
LONGEST = 4 * 3600.0  # seconds of an export beside a run
LATE = f"an export took longer than {LONGEST:g} s"


def export(
    run: str,
    *,
    output: str,
    what: Literal["merged", "lora"] = "merged",
    dtype: Literal["float32", "bfloat16"] | None = None,
) -> int:
    """Export trained weights for other tools.

    Examples:
        burnish export runs/quickstart --output my_model                   a pipeline, for from_pretrained
        burnish export runs/quickstart --format lora --output my_lora      adapters, for load_lora_weights

    Args:
        run: folder of a run, or one of its checkpoints
        output (-o, --output DIR): new folder to write
        what (--format): merged: the full model with the trained weights; lora: only the adapters
        dtype: precision of merged weights (that of training)
    """
    assembly, update = write_export(run, output, what, dtype)
    target = checked_path(output)
    base = assembly.model_folder if what == "lora" else target
    lines, library = assembly.loading_lines(base, target if what == "lora" else None), assembly.library
    terminal.say(
        f"Weights after {update} policy updates: ", (str(target), "bold"), f". With {library} alone:\n\n  ",
        "\n  ".join(lines),
    )  # fmt: skip
    return 0


def write_export(
    run: str, output: str, what: Format, dtype: Dtype | None, overrides: Sequence[str] = ()
) -> tuple[Assembly, int]:
    """Write the weights of a run with a card into a new folder; their assembly, and the policy updates behind them.

    Args:
        run: folder of a run, or one of its checkpoints.
        output: the folder.
        what: the full model, or the adapter.
        dtype: precision of merged weights; None is that of training.
        overrides: options that differ from the run's.

    Raises:
        UserError: the folder is not empty, or there is no such run or adapter.
    """
    if dtype is not None and what == "lora":
        raise UserError(f"--dtype is {dtype}, but an adapter is always written in float32; remove it")
    check_output(checked_path(output, "--output"), "export")
    # adapters are merged into the weights of model.path, not into a quantised copy of them
    unquantised = ["model.quantization=null"] if what == "merged" else []
    assembly, update = open_run(run, [*overrides, *unquantised], samples=False)
    if what == "lora" and assembly.config.model.lora is None:
        raise UserError(f"{run} trained all weights (model.lora is null): there is no adapter; export merged weights")
    target = output_folder(output, "export")
    import torch

    with writing(target):
        lost = write_weights(assembly, target, what, dtype=None if dtype is None else getattr(torch, dtype))
        (target / "README.md").write_text(model_card(assembly, what, update))
    if lost > LOST:
        log.warning(
            "rounding the merged weights to bfloat16 loses %.0f %% of the adapter; use --dtype float32, twice the "
            "size, or --format lora", 100 * lost,
        )  # fmt: skip
    return assembly, update


def model_card(assembly: Assembly, what: Format, update: int) -> str:
    """A README.md that the Hugging Face hub reads: what was trained, how, and how to load it."""
    config, here = assembly.config, Path("PATH/OF/THIS/FOLDER")
    hub = hub_name(config.model.path)  # a folder of this machine says nothing elsewhere
    base = Path(hub or "PATH/OF/THE/BASE/MODEL") if what == "lora" else here
    lines = assembly.loading_lines(base, here if what == "lora" else None)
    rewards = ", ".join(f"{label} (weight {one.weight:g})" for label, one in config.rewards.items())
    known = head(assembly.library, config.algorithm.name, what, hub, {})
    return "\n".join(
        [
            f"{known}{'An adapter' if what == 'lora' else 'A model'} that was trained with Burnish {__version__}: "
            f"{config.algorithm.name}, {update} policy updates, rewards: {rewards or 'none'}.",
            "", "```python", *lines, "```", "",
        ]
    )  # fmt: skip


def write_weights(assembly: Assembly, folder: Path, what: Format, *, dtype: torch.dtype | None = None) -> float:
    """Write the trained weights into a folder; returns the fraction of an adapter that rounding loses.

    Args:
        assembly: with the weights.
        folder: empty.
        what: as ``export`` takes it.
        dtype: precision of merged weights; None takes that of training.
    """
    from burnish.models.lora import in_precision, merged_state

    model, lost = assembly.roles.model, 0.0
    with assembly.trained_weights():
        if what == "lora":
            assembly.save_adapter(folder)
        elif assembly.config.model.lora is None:
            assembly.save(folder, in_precision(model.network.state_dict(), dtype))
        else:
            weights, lost = merged_state(model.network, "policy", dtype=dtype)
            assembly.save(folder, weights)
    return lost


# in a process beside a run, which exports every checkpoint


class Exports(OfCheckpoints):
    """Exports every checkpoint of a run."""

    name = "checkpoint_export"

    def __init__(self, folder: RunFolder, what: Format) -> None:
        super().__init__("checkpoint.export", folder)
        self.what = what

    def is_done(self, checkpoint: Path, manifest: Manifest) -> bool:
        written = self.folder.exported / checkpoint.name / STEP
        return written.is_file() and written.read_text() == _mark(manifest)

    def work(self, *, last: bool) -> None:
        """Export what is not exported yet; remove what has no checkpoint any more."""
        kept = {path.name for path in numbered(self.folder.checkpoints)}
        for path in numbered(self.folder.exported):
            if path.name not in kept:
                _remove(path)
        if self.pending() is None:
            return
        with open(os.devnull, "wb") as nowhere, closing(Server(_exporter, self.what, ENVIRONMENT, nowhere)) as server:
            for checkpoint, _ in iter(self.pending, None):
                server.load(LONGEST, LATE)
                problem = server.call(LONGEST, LATE, checkpoint, self.folder.exported / checkpoint.name)
                if problem and checkpoint.is_dir():
                    raise RuntimeError(problem)
                if problem:
                    self.warn(f"{checkpoint} was removed before it was exported; raise checkpoint.keep_last")
                else:
                    self.delivered = max(self.delivered, int(checkpoint.name))


def _exporter(what: Format) -> Callable[[Path, Path], str]:
    """In the process: exports a checkpoint, and says what went wrong."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the run, which then ends this process
    os.nice(10)

    def export_one(checkpoint: Path, target: Path) -> str:
        try:
            _export(checkpoint, target, what)
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
        return ""

    return export_one


def _export(checkpoint: Path, target: Path, what: Any) -> None:
    mark, staged = _mark(read_manifest(checkpoint)), target.with_name(f".writing-{target.name}")
    shutil.rmtree(staged, ignore_errors=True)
    try:
        write_export(str(checkpoint), str(staged), what, None, ["model.device=cpu"])
        (staged / STEP).write_text(mark)
        _remove(target)  # of the same update, before the run went back to an earlier one
        staged.rename(target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _mark(manifest: Manifest) -> str:
    """Which weights an export is of."""
    files = json.dumps({name: entry.sha256 for name, entry in manifest.files.items()}, sort_keys=True)
    return json.dumps({"update": manifest.update, "files": hashlib.sha256(files.encode()).hexdigest()})


def _remove(export: Path) -> None:
    if export.exists():
        removing = export.with_name(f".removing-{export.name}")  # one that is there is all there
        shutil.rmtree(removing, ignore_errors=True)
        export.rename(removing)
        shutil.rmtree(removing)
