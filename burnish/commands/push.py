"""burnish push: the weights of a run with a model card, sent to the Hugging Face hub."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from burnish.commands.loading_code import loading_code, serving_code
from burnish.config.run_folder import RunFolder
from burnish.report.card import Weights, card, licence_of
from burnish.report.runs import read_configuration
from burnish.utils import terminal
from burnish.utils.disk import writing
from burnish.utils.errors import UserError, listed
from burnish.utils.hub import is_hub_id
from burnish.utils.hub_push import Repository, repository
from burnish.utils.json_text import read_object
from burnish.utils.reading import checked_path

ORIGINS = ("_name_or_path", "base_model_name_or_path", "name_or_path")  # where a library found what it loaded
SMALL = 1 << 20  # bytes of a configuration


def push(
    run: str,
    *,
    to: str,
    public: bool,
    what: Literal["lora", "merged"] | None,
    dtype: Literal["float32", "bfloat16"] | None,
    output: str | None,
    dry_run: bool,
    samples: bool,
) -> int:
    """Write weights and a model card into a folder, and send it.

    Args:
        run: run folder, or one of its checkpoints.
        to: repository, org/name.
        public: whether a new repository is public.
        what: as ``export`` takes it; None is an adapter where one was trained and its base is on the hub.
        dtype: precision of merged weights; None takes that of training.
        output: folder that is kept; None is one that is removed afterwards.
        dry_run: whether nothing is sent.
        samples: whether the card shows prompts and samples.
    """
    if dry_run and output is None:
        raise UserError("--dry-run is given without --output, the folder that would be sent; give one")
    target = repository(to, public=public)
    folder = _run_of(run)
    config = read_configuration(folder.config)
    if not config:
        raise UserError(f"RUN is {run}, which is not the folder of a run; give one that burnish train wrote")
    base = config["model"]["path"]
    chosen = what or ("lora" if config["model"].get("lora") and is_hub_id(base) else "merged")
    private = not public if dry_run else target.prepare()
    with _place(output, folder) as place:
        _write(run, folder, place, target, chosen, dtype, ask=not dry_run, samples=samples)
        _list(place, target, private=private, dry_run=dry_run)
        if not dry_run:
            _send(place, target, folder)
    return 0


def _run_of(run: str) -> RunFolder:
    """The folder of a run, also where one of its checkpoints is meant."""
    path = checked_path(run, "RUN")
    return RunFolder(path.parent.parent if path.parent.name == "checkpoints" else path)


@contextmanager
def _place(output: str | None, folder: RunFolder) -> Iterator[str]:
    """Where the folder is written: beside the run, which is where there is space, unless the user says."""
    if output is not None:
        yield output
        return
    with writing(folder.path), tempfile.TemporaryDirectory(prefix=".push-", dir=folder.path) as away:
        yield away


def _write(
    run: str, folder: RunFolder, place: str, target: Repository, what: Literal["lora", "merged"],
    dtype: Literal["float32", "bfloat16"] | None, *, ask: bool, samples: bool,
) -> None:  # fmt: skip
    """Weights, card and its pictures."""
    from burnish.commands.export import write_export

    exported = write_export(run, place, what, dtype)
    assembly, config = exported.assembly, exported.assembly.config
    hub = config.model.path if is_hub_id(config.model.path) else None
    weights = Weights(
        repo=target.name, what=what, update=exported.update, library=assembly.library,
        code=loading_code(assembly, target.name, what, hub), serving=serving_code(assembly, target.name, what, hub),
        licence=licence_of(config.model.path, config.model.revision, ask=ask),
    )  # fmt: skip
    text, files = card(folder, weights, samples=samples)
    with writing(exported.folder):
        _forget_machine(exported.folder, hub)
        for name, content in files.items():
            (exported.folder / name).parent.mkdir(exist_ok=True)
            (exported.folder / name).write_bytes(content)
        (exported.folder / "README.md").write_text(text, encoding="utf-8")
    if exported.warning:
        terminal.console(highlight=False, soft_wrap=True).print(f"{exported.warning}\n", markup=False)


def _forget_machine(folder: Path, hub: str | None) -> None:
    """Replace paths of this machine, which libraries write into configurations, by the base's name on the hub."""
    for file in sorted(folder.rglob("*.json")):
        if file.stat().st_size > SMALL:
            continue
        try:
            content: dict[str, Any] = read_object(file)
        except UserError:  # a list, such as of merges
            continue
        found = [name for name in ORIGINS if isinstance(content.get(name), str) and content[name] != hub]
        if found:
            content |= dict.fromkeys(found, hub)
            file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _list(place: str, target: Repository, *, private: bool, dry_run: bool) -> None:
    """Say what is sent, and to where."""
    console = terminal.console(highlight=False, soft_wrap=True)
    sizes = {file.relative_to(place).as_posix(): file.stat().st_size for file in sorted(Path(place).rglob("*"))
             if file.is_file()}  # fmt: skip
    total, seen = _size(sum(sizes.values())), "private" if private else "public"
    if dry_run:
        told = (
            f"Nothing was sent. Without --dry-run {len(sizes)} files, {total}, would go to {target.address} ({seen}):"
        )
    else:
        told = f"Sending {len(sizes)} files, {total}, to {target.address} ({seen}):"
    console.print(told, markup=False)
    for name, size in sizes.items():
        console.print(f"  {name:<40} {_size(size):>9}", markup=False)
    if dry_run:
        console.print(f"They are in {place}; look at README.md there first.", markup=False)


def _send(place: str, target: Repository, folder: RunFolder) -> None:
    console = terminal.console(highlight=False, soft_wrap=True)
    if there := target.others(Path(place)):
        console.print(f"Files of earlier commits stay there: {listed(there, 5)}", markup=False)
    commit = target.upload(Path(place), f"burnish push of {folder.path.resolve().name}")
    console.print(f"Sent: {commit}", markup=False)


def _size(count: int) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.1f} GB"
