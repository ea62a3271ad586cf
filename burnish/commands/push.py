"""burnish push: the weights of a run with a model card, sent to the Hugging Face hub.

huggingface_hub sends it, with its own token (HF_TOKEN, or that of ``hf auth login``): Burnish never writes or shows it,
and takes none on the command line. Its client drops the token where the hub redirects to another host.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from burnish.commands.export import Format, write_export
from burnish.config.run_folder import RunFolder
from burnish.options.language import LanguageModelOptions
from burnish.options.vllm import RANKS, unreadable
from burnish.report.card import card, licence_of
from burnish.report.runs import read_configuration
from burnish.utils import terminal
from burnish.utils.disk import writing
from burnish.utils.errors import UserError, first_line, listed
from burnish.utils.http import is_loopback
from burnish.utils.hub import hub_name, is_repository
from burnish.utils.json_text import read_object
from burnish.utils.reading import checked_path

if TYPE_CHECKING:
    from burnish.tasks import Assembly

ORIGINS = ("_name_or_path", "base_model_name_or_path", "name_or_path")  # where a library found what it loaded
SMALL = 1 << 20  # bytes of a configuration
MODULES = ("peft", "safetensors.torch")
_CLASSES = re.compile(r"(?<![\w.])([A-Z]\w+)\.from_pretrained")


def push(
    run: str,
    *,
    to: str,
    public: bool = False,
    what: Literal["merged", "lora"] | None = None,
    dtype: Literal["float32", "bfloat16"] | None = None,
    output: str | None = None,
    dry_run: bool = False,
    samples: bool = True,
) -> int:
    """Send trained weights with a model card to the Hugging Face hub.

    Examples:
        burnish push runs/quickstart --to me/numbers --output numbers --dry-run    look at numbers/README.md first
        burnish push runs/quickstart --to me/numbers                               private, for you to make public
        burnish push runs/quickstart --to me/numbers --public --no-samples
        burnish push runs/quickstart/checkpoints/00000055 --to me/numbers          an earlier checkpoint

    Args:
        run: folder of a run, or one of its checkpoints
        to (ORG/NAME): repository of the hub, which is made if it is not there
        public: a new repository may be read by anyone (private)
        what (--format): as in burnish export (lora where adapters were trained and their base is on the hub, else
            merged)
        dtype: precision of merged weights (that of training)
        output (-o, --output DIR): new folder to write what is sent to, and keep
        dry_run: write the folder, say what would be sent, send nothing
        samples (--no-samples): no prompts, images and answers in the model card
    """
    if dry_run and output is None:
        raise UserError("--dry-run is given without --output, the folder that would be sent; give one")
    if not is_repository(to) or len(to) > 96 or to.endswith((".git", ".ipynb")) or ".." in to or "--" in to:
        raise UserError(f"--to is {to!r:.120}, which is not a name on the hub; give ORGANISATION/NAME or USER/NAME")
    path = checked_path(run, "RUN")
    folder = RunFolder(path.parent.parent if path.parent.name == "checkpoints" else path)
    config = read_configuration(folder.config)
    if not config:
        raise UserError(f"RUN is {run}, which is not the folder of a run; give one that burnish train wrote")
    chosen = what or ("lora" if config["model"].get("lora") and hub_name(config["model"]["path"]) else "merged")
    private = not public if dry_run else _prepare(to, public=public)
    # beside the run, which is where there is space, unless the user says
    beside = None if output else folder.path
    with writing(Path(output or folder.path)), tempfile.TemporaryDirectory(prefix=".push-", dir=beside) as away:
        place = output or away
        _write(run, folder, place, to, chosen, dtype, ask=not dry_run, samples=samples)
        _list(Path(place), to, private=private, dry_run=dry_run)
        if not dry_run:
            _send(Path(place), to, f"burnish push of {folder.path.resolve().name}")
    return 0


def _write(
    run: str, folder: RunFolder, place: str, to: str, what: Format, dtype: Literal["float32", "bfloat16"] | None, *,
    ask: bool, samples: bool,
) -> None:  # fmt: skip
    """Weights, card and its images."""
    assembly, update = write_export(run, place, what, dtype)
    model, target = assembly.config.model, Path(place)
    hub = hub_name(model.path)
    text, files = card(
        folder, repo=to, what=what, update=update, library=assembly.library,
        code=loading_code(assembly, to, what, hub), serving=serving_code(assembly, to, what, hub),
        licence=licence_of(model.path, ask=ask), samples=samples,
    )  # fmt: skip
    with writing(target):
        _forget_machine(target, hub)
        for name, content in {**files, "README.md": text.encode()}.items():
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_bytes(content)


def _forget_machine(folder: Path, hub: str | None) -> None:
    """Replace paths of this machine, which libraries write into configurations, by the base's name on the hub."""
    for file in sorted(folder.rglob("*.json")):
        if file.stat().st_size <= SMALL:
            with suppress(UserError):  # a list, such as of merges
                content = read_object(file)
                if origins := [name for name in ORIGINS if content.get(name, hub) != hub]:
                    content |= dict.fromkeys(origins, hub)
                    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _list(place: Path, to: str, *, private: bool, dry_run: bool) -> None:
    """Say what is sent, and to where."""
    from huggingface_hub import constants
    from rich.filesize import decimal

    sizes = {file: file.stat().st_size for file in sorted(place.rglob("*")) if file.is_file()}
    what = f"{terminal.counted(len(sizes), 'files')}, {decimal(sum(sizes.values()))}"
    sending = f"Nothing was sent. Without --dry-run {what}, would go" if dry_run else f"Sending {what},"
    seen = "private" if private else "public"
    terminal.say(f"{sending} to {constants.ENDPOINT}/{to} ({seen}):")
    for file, size in sizes.items():
        terminal.say(f"  {file.relative_to(place).as_posix():<40} {decimal(size):>9}")
    if dry_run:
        terminal.say(f"They are in {place}; look at README.md there first.")


# the hub


def _prepare(to: str, *, public: bool) -> bool:
    """Create a repository if it is not there; whether it is private.

    Raises:
        UserError: it can't be written to, or is public where that was not asked for.
    """
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import RepositoryNotFoundError

    if not get_token():
        raise UserError(
            "there is no token of the hub; run 'hf auth login' or set HF_TOKEN to a token that may write, or write "
            "the folder with --dry-run"
        )
    address = urlsplit(constants.ENDPOINT)
    if address.scheme != "https" and not is_loopback(address.hostname or ""):
        raise UserError(f"HF_ENDPOINT is {constants.ENDPOINT}, to which the token would travel unencrypted; use https")
    with _explained(to, "created"):
        try:
            private = bool(HfApi().model_info(to).private)
        except RepositoryNotFoundError:
            HfApi().create_repo(to, private=not public)
            return not public
    if not private and not public:
        raise UserError(f"--to is {to}, which is there and public; add --public to push to it, or give another name")
    return private


def _send(place: Path, to: str, message: str) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()  # a log has no use for bars that are drawn over
    with _explained(to, "written to"):
        there = HfApi().list_repo_files(to)
        others = sorted(name for name in there if name != ".gitattributes" and not (place / name).is_file())
        if others:
            terminal.say(f"Files of earlier commits stay there: {listed(others, 5)}")
        commit = HfApi().upload_folder(repo_id=to, folder_path=place, commit_message=message)
    terminal.say(f"Sent: {commit.commit_url}")


@contextmanager
def _explained(to: str, what: str) -> Iterator[None]:
    """Errors of the hub as messages."""
    from huggingface_hub import errors

    client: type[Exception] = errors.HfHubHTTPError.__bases__[0]
    try:
        yield
    except (OSError, RuntimeError, ValueError, client) as error:
        response = error.response if isinstance(error, errors.HfHubHTTPError) else None
        why = f"{first_line(error.__cause__ or error)}; run the same command again, which sends what is missing"
        if response is not None and response.status_code == 401:
            why = "the hub does not accept your token; run 'hf auth login' or set HF_TOKEN to a valid one"
        elif response is not None and response.status_code in (403, 404):
            owner = to.partition("/")[0]
            why = f"your token may not write there; give one that may write to {owner}, or another name"
        raise UserError(f"--to is {to}, which can't be {what}: {why}") from None


# code in the card, which loads the weights with the libraries that everybody has


def loading_code(assembly: Assembly, repo: str, what: Format, hub: str | None) -> list[str]:
    """Python that loads a repository of the hub, to copy and run.

    Args:
        assembly: whose weights were pushed.
        repo: org/name.
        what: an adapter, or the full model.
        hub: the base model's name there, if it has one.
    """
    base = Path(hub or "FOLDER/OF/THE/BASE/MODEL") if what == "lora" else Path(repo)
    lines = assembly.loading_lines(base, Path(repo) if what == "lora" else None)
    # a modular pipeline finds parts beside it in a folder, too
    files = any(f'"{repo}/' in line or "load_components" in line for line in lines)
    if files:  # names of files, which libraries find in folders alone
        lines = [line.replace(f'"{repo}/', 'f"{folder}/').replace(f'"{repo}"', "folder") for line in lines]
        lines.insert(0, f'folder = snapshot_download("{repo}")')
    text = "\n".join(lines)
    classes = sorted({name for name in _CLASSES.findall(text) if name != "PeftModel"})
    if assembly.library == "transformers":
        lines.append(f'processor = AutoProcessor.from_pretrained("{base}")')
        classes.insert(0, "AutoProcessor")
    else:
        validation, rollout = assembly.config.validation, assembly.config.rollout
        sizes = {name: getattr(validation, name, None) or getattr(rollout, name, None)
                 for name in ("num_inference_steps", "height", "width")}  # fmt: skip
        given = "".join(f", {name}={value}" for name, value in sizes.items() if value is not None)
        lines.append(f'out = pipe(prompt="a prompt"{given})')
    imports = [f"import {name}" for name in MODULES if f"{name}." in text]
    imports += [f"from {assembly.library} import {', '.join(classes)}"]
    imports += ["from huggingface_hub import snapshot_download"] if files else []
    return [*imports, "", *lines]


def serving_code(assembly: Assembly, repo: str, what: Format, hub: str | None) -> list[str]:
    """A command of vLLM's that serves a language model; none for what vLLM can't serve."""
    model = assembly.config.model
    if not isinstance(model, LanguageModelOptions) or assembly.needs.heads:
        return []
    if what == "merged":
        return [f"vllm serve {repo}"]
    if hub is None or model.lora is None or any(unreadable(model.lora)):
        return []
    rank = min(rank for rank in RANKS if rank >= model.lora.rank)
    return [f"vllm serve {hub} --enable-lora --max-lora-rank {rank} --lora-modules {repo.partition('/')[2]}={repo}"]
