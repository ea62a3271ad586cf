"""Models (``org/name``) and data sets (``org/name@split``) of the Hugging Face hub, downloaded once and found offline.

huggingface_hub does the work: its cache is shared with other tools, its locks let one process of a machine download a
file, and its token (HF_TOKEN, or that of ``hf auth login``) goes to the hub alone. The datasets library finds and
converts the files of a split.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from burnish.utils.addresses import is_address, library_complaint, redacted, secret_in
from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import UserError, first_line, listed
from burnish.utils.installed import require
from burnish.utils.json_text import read_object
from burnish.utils.paths import resolve
from burnish.utils.reading import understood
from burnish.utils.terminal import counted
from burnish.utils.weights import PICKLED, complaints_about, tokenizer_complaint

PIPELINE = "model_index.json"  # lists the parts of a diffusers pipeline; what has none is a single model
MODULAR = "modular_model_index.json"  # the same of one that is made of blocks
COMMIT = re.compile(r"[0-9a-f]{40}")
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][\w./-]{0,250}")  # as git, which has no .. in names
# What is fetched: settings, vocabularies, and weights under the names that libraries read. No pickles, no code, and no
# second copy of the weights in another precision. A tokenizer alone has its words.
WORDS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
# A shard may have any number of digits, and its number before or behind the first ending (Kimi, DeepSeek, Qwen3.5).
_WEIGHTS = (
    *(f"{stem}.safetensors" for stem in ("model", "diffusion_pytorch_model")),
    *(f"{stem}-*-of-{'?' * digits}.safetensors" for stem in ("model", "model.safetensors", "diffusion_pytorch_model")
      for digits in range(1, 7)),
)  # fmt: skip


@dataclass(frozen=True)
class HubModel:
    """A model of the hub."""

    name: str
    revision: str | None  # branch, tag or commit; None is the default branch
    index: str  # the file that describes it: model_index.json, or config.json of a single model
    option: str  # by which the user named it, for messages
    files: tuple[str, ...] = ()  # that are fetched, by their names; none for those that a library reads

    def folder(self) -> Path:
        """The folder in the cache; what it lacks is downloaded, and of a commit that is there nobody is asked.

        Raises:
            UserError: it can't be had; the message says what to do.
        """
        import huggingface_hub

        if is_commit(self.revision) and (there := self.cached()) is not None:
            return there
        with self._explained():
            index = self._found(huggingface_hub.hf_hub_download)
            commit = Path(index).parent.name
            patterns = self._patterns(Path(index))
            if (found := self._complete(commit, patterns)) is not None:
                return found
            self._announce(commit, patterns)
            with writing(Path(huggingface_hub.constants.HF_HUB_CACHE)):
                return Path(huggingface_hub.snapshot_download(self.name, revision=commit, allow_patterns=patterns))

    def cached(self) -> Path | None:
        """The folder in the cache, if all of it is there; nothing is asked of a network."""
        import huggingface_hub

        index = self._found(huggingface_hub.try_to_load_from_cache)
        if not isinstance(index, str):
            return None
        return self._complete(Path(index).parent.name, self._patterns(Path(index)))

    def _found(self, get: Callable[..., Any]) -> Any:
        """What ``get`` gives for the file that describes it: of a pipeline, a modular one's where there is no other."""
        from huggingface_hub.errors import EntryNotFoundError

        named = partial(get, self.name, revision=self.revision)
        try:
            found = named(self.index)
        except EntryNotFoundError:
            if self.index != PIPELINE:
                raise
            found = None
        return found if isinstance(found, str) or self.index != PIPELINE else named(MODULAR)

    def _complete(self, commit: str, patterns: list[str]) -> Path | None:
        import huggingface_hub
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            found = huggingface_hub.snapshot_download(
                self.name, revision=commit, allow_patterns=patterns, local_files_only=True
            )
        except LocalEntryNotFoundError:
            return None
        return Path(found) if self._is_complete(Path(found)) else None

    def _is_complete(self, folder: Path) -> bool:
        """Whether nothing that can be missed is missing.

        huggingface_hub knows what belongs to a commit only where it has downloaded one as a whole.
        """
        if self.files:
            return (
                not tokenizer_complaint(folder)
                if self.files == WORDS
                else all((folder / name).is_file() for name in self.files)
            )
        for part in [folder] if self.index != PIPELINE else [folder / n for n in _parts(index_in(folder, PIPELINE))]:
            if not part.is_dir() or not any(part.glob("*.json")):
                return False
            if part.name.startswith("tokenizer"):
                if tokenizer_complaint(part):
                    return False
            elif (part / "config.json").is_file() and any(complaints_about(part)):
                return False
        return True

    def _patterns(self, index: Path) -> list[str]:
        """Names of the files that are fetched."""
        if self.files:
            return list(self.files)
        if self.index != PIPELINE:
            return [*WORDS, *_WEIGHTS]
        return [index.name, *(f"{part}/{pattern}" for part in _parts(index) for pattern in (*WORDS, *_WEIGHTS))]

    def _announce(self, commit: str, patterns: list[str]) -> None:
        """Say what is downloaded.

        Raises:
            UserError: weights of a part are pickles only.
        """
        import huggingface_hub

        about = huggingface_hub.HfApi().model_info(self.name, revision=commit, files_metadata=True)
        sizes = {one.rfilename: one.size or 0 for one in about.siblings or ()}
        chosen = [name for name in sizes if any(fnmatchcase(name, pattern) for pattern in patterns)]
        safe = {str(Path(name).parent) for name in chosen if name.endswith(".safetensors")}
        folders = {pattern.rpartition("/")[0] or "." for pattern in patterns if pattern not in (PIPELINE, MODULAR)}
        for name in sorted(sizes):
            folder = str(Path(name).parent)
            if not self.files and folder in folders - safe and Path(name).suffix in PICKLED:
                raise UserError(
                    f"{self.option} is {self.name}, which has {name}, but no weights in safetensors beside it; Burnish "
                    "downloads no pickles: choose another model or revision, or convert it and give its directory"
                )
        total = sum(sizes[name] for name in chosen) / 1e9
        print(
            f"Downloading {self.name} (commit {commit[:8]}): {counted(len(chosen), 'files')}, {total:.1f} GB",
            flush=True,
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of the hub as messages."""
        from huggingface_hub import constants, errors

        client: type[Exception] = errors.HfHubHTTPError.__bases__[0]  # the HTTP client's errors, whichever that is
        offline = " (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""
        reasons: dict[type[Exception], str] = {  # of an error the first that it is
            errors.GatedRepoError: (
                "{0}, whose authors let in only whom they know: accept its terms at https://huggingface.co/"
                "{model.name}, and set HF_TOKEN to a token of your account"
            ),
            errors.RevisionNotFoundError: (
                "{0}, which has no revision {model.revision}; give a branch, a tag or a commit of it"
            ),
            errors.RepositoryNotFoundError: (
                "{0}, which is neither a directory nor a model of the hub that you may read; check its name, or set "
                "HF_TOKEN to a token that may read it"
            ),
            errors.RemoteEntryNotFoundError: (
                "{0}{at}, which has no {model.index}; give a model of diffusers or transformers"
            ),
            errors.LocalEntryNotFoundError: (
                "{0}{at}, which is not in the cache, and the hub can't be reached{offline}; where it can, run: "
                "{command}, and set {model.option}=DIR"
            ),
            errors.HfHubHTTPError: "{0}{at}, which can't be downloaded: {why}; try again later",
            Exception: ("{0}{at}, whose download broke off: {why}; run the same command again, which goes on with it"),
        }
        try:
            yield
        except (OSError, client) as error:
            form = next(text for kind, text in reasons.items() if isinstance(error, kind))
            at = f" at revision {self.revision}" if self.revision else ""
            raise UserError(form.format(
                f"{self.option} is {self.name}", at=at, model=self, offline=offline, command=self.command(),
                why=first_line(error),
            )) from None  # fmt: skip

    def command(self) -> str:
        """What fetches it by hand, into DIR."""
        revision = ["--revision", self.revision] if self.revision else []
        included = [word for pattern in self.files for word in ("--include", pattern)]
        return shlex.join(["hf", "download", self.name, "--local-dir", "DIR", *revision, *included])


def _parts(index: Path) -> list[str]:
    """The parts of a pipeline that have a folder."""
    parts = {name: part_of(entry) for name, entry in read_object(index).items()}
    named = [name for name, kind in parts.items() if isinstance(kind, list) and kind and kind[0]]
    return [name for name in named if re.fullmatch(r"\w+", name)]


def part_of(entry: Any) -> Any:
    """Library and class of a part in the index of a modular pipeline, none for one that is nowhere; any other entry as
    it is."""
    if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[2], dict)):
        return entry
    if entry[0] is not None or not (entry[2].get("pretrained_model_name_or_path") or entry[2].get("repo")):
        return entry[:2]
    return entry[2].get("type_hint")  # of one that was not loaded when the index was written


def index_in(folder: Path, index: str) -> Path:
    """The file that describes the model in a folder: of a pipeline, a modular one's where there is no other."""
    blocks = folder / MODULAR
    return blocks if index == PIPELINE and blocks.is_file() and not (folder / index).exists() else folder / index


def is_repository(name: str) -> bool:
    """Whether a text looks like the name of a repository of the hub."""
    return _ID.fullmatch(name) is not None


def is_commit(revision: object) -> bool:
    """Whether a revision is a commit, which never changes, and no branch or tag."""
    return isinstance(revision, str) and COMMIT.fullmatch(revision) is not None


def hub_name(path: str) -> str | None:
    """The model of the hub that ``org/name`` or ``org/name@REVISION`` names, without the revision.

    None where it looks like no such name, or where there is such a directory.
    """
    name = path.partition("@")[0]
    return name if is_repository(name) and not (resolve(path).exists() or resolve(name).exists()) else None


def hub_model(path: str, *, index: str, option: str = "model.path", files: tuple[str, ...] = ()) -> HubModel | None:
    """The model of the hub that an option names; None for a directory.

    Args:
        path: value of the option; behind an @ is a branch, tag or commit.
        index: the file that describes the model.
        option: for messages.
        files: that are fetched, by their names or patterns; none for those that transformers or diffusers reads.

    Raises:
        UserError: the revision is malformed.
    """
    if (name := hub_name(path)) is None:
        return None
    _, at, revision = path.partition("@")
    if at and not _REVISION.fullmatch(revision):
        raise UserError(f"{option} is {path!r:.120}; give a branch, a tag or a commit behind the @")
    return HubModel(name, revision or None, index, option, files)


def model_folder(path: str, *, index: str, option: str = "model.path", files: tuple[str, ...] = ()) -> Path:
    """The directory of a model: the user's own, one that ships with Burnish, or one of the hub or at an address, which
    is downloaded.

    A GGUF file is converted to one; see ``converted``.

    Args:
        path, index, option, files: as ``hub_model`` takes them.

    Raises:
        UserError: it can't be had.
    """
    if is_address(path):
        return mirrored(path, option)
    model = hub_model(path, index=index, option=option, files=files)
    if model is None:
        found = resolve(path)
        return converted(found, option) if found.suffix == ".gguf" and found.is_file() and index != PIPELINE else found
    return model.folder()


# a split, of which a part may be named as the datasets library does: train[:950], train[10%:]
_SET = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*)(?::([\w.-]+))?@([\w.-]+(?:\[(?:\d+%?)?:(?:\d+%?)?\])?)")


@dataclass(frozen=True)
class HubData:
    """A split of a data set of the hub."""

    name: str
    subset: str | None  # what the hub calls a configuration, for sets that have several
    split: str

    @property
    def path(self) -> str:
        """As options name it."""
        return f"{self.name}{f':{self.subset}' if self.subset else ''}@{self.split}"

    def check(self) -> None:
        """Refuse it where the datasets library isn't installed; nothing is asked of a network.

        Raises:
            UserError: with the way to install it.
        """
        require("datasets", f"{self.path} is a data set of the hub, which")

    def load(self) -> Any:
        """The rows, as the datasets library holds them; what its cache lacks is downloaded.

        Raises:
            UserError: it can't be had; the message says what to do.
        """
        self.check()
        import datasets

        with self._explained():
            return datasets.load_dataset(self.name, self.subset, split=self.split)

    def download(self, patterns: list[str]) -> Path:
        """Files of the set by patterns of their names, as they are: the folder that they are in.

        Raises:
            UserError: they can't be had; the message says what to do.
        """
        self.check()
        from huggingface_hub import snapshot_download

        with self._explained():
            return Path(snapshot_download(self.name, repo_type="dataset", allow_patterns=patterns))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of the library as messages."""
        from datasets import exceptions
        from huggingface_hub import constants, errors

        client: type[Exception] = errors.HfHubHTTPError.__bases__[0]
        fetch = f"hf download {self.name} --repo-type dataset --local-dir DIR"
        try:
            yield
        except exceptions.DatasetNotFoundError:
            away = " or the hub can't be reached" if constants.is_offline_mode() else ""
            raise UserError(
                f"{self.path} names a data set that the hub doesn't have, or that you may not read{away}; check its "
                f"name, set HF_TOKEN to a token that may read it, or fetch it elsewhere with: {fetch}, and give its "
                "files"
            ) from None
        except (exceptions.DatasetsError, ValueError, KeyError) as error:
            raise UserError(f"{self.path} can't be read: {first_line(error):.300}; give a split that it has") from None
        except (OSError, client) as error:
            raise UserError(
                f"{self.path} is not in the cache, and can't be downloaded: {first_line(error):.300}; where the hub "
                f"can be reached, run: {fetch}, and give its files"
            ) from None


def hub_data(path: str) -> HubData | None:
    """The data set of the hub that an option names as ``org/name@split`` or ``org/name:subset@split``, if it does.

    Of a split, a part may be named: ``org/name@train[:950]``.
    """
    found = _SET.fullmatch(path)
    return None if found is None else HubData(found[1], found[2], found[3])


# folders at addresses, of which a copy is kept beside the cache of the Hugging Face hub


def mirrored(address: str, option: str) -> Path:
    """A model's folder at an address that fsspec opens: a copy of its settings, vocabularies and safetensors.

    What is at the address is asked each time; only files that changed there are fetched again.

    Args:
        address: s3://BUCKET/FOLDER, gs://, hdfs://, file:///FOLDER.
        option: that names it, for messages.

    Raises:
        UserError: it can't be had.
    """
    from filelock import FileLock
    from huggingface_hub.constants import HF_HOME

    if secret := secret_in(address):
        raise UserError(f"{option} holds {secret}, which would be saved; set variables of the environment")
    if complaint := library_complaint(address):
        raise UserError(f"{option} is {address}, {complaint}")
    folder = Path(HF_HOME) / "burnish" / f"mirror-{hashlib.sha256(address.encode()).hexdigest()[:12]}"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock"):  # one process of a machine fetches
            _mirror(address, folder)
    except Exception as error:  # file systems have errors of their own
        raise UserError(f"{option} is {address}, which can't be read: {redacted(first_line(error))}") from error
    return folder


def _mirror(address: str, folder: Path) -> None:
    from fsspec.core import url_to_fs

    system, root = url_to_fs(address.rstrip("/"))
    there = {place[len(root) :].lstrip("/"): about for place, about in system.find(root, detail=True).items()}
    wanted = {
        name: about for name, about in there.items()
        if ".." not in Path(name).parts
        and any(fnmatchcase(Path(name).name, pattern) for pattern in (*WORDS, *_WEIGHTS))
    }  # fmt: skip
    if not wanted:
        raise FileNotFoundError("there is no model in this folder")
    seen = folder / ".seen.json"
    states: dict[str, str] = read_object(seen) if seen.is_file() else {}
    news = {name: f"{about['size']} {system.ukey(about['name'])}" for name, about in wanted.items()}
    changed = [name for name, state in news.items() if states.get(name) != state or not (folder / name).is_file()]
    if changed:
        size = sum(wanted[name]["size"] for name in changed) / 1e9
        print(f"Downloading {address}: {counted(len(changed), 'files')}, {size:.1f} GB", flush=True)
    for name in changed:
        part = folder / f"{name}.part"
        part.parent.mkdir(parents=True, exist_ok=True)
        system.get_file(wanted[name]["name"], str(part))
        part.replace(folder / name)
        states[name] = news[name]
        write_atomically(seen, json.dumps(states).encode())
    for name in states.keys() - news.keys():  # it is not at the address any more
        (folder / name).unlink(missing_ok=True)


# GGUF files: read once by transformers' own loader, and kept as a folder that everything else reads


def converted(file: Path, option: str) -> Path:
    """A language model of a GGUF file as a folder in transformers layout, its weights in float32.

    It lies beside the cache of the Hugging Face hub, and is written once for each state of the file.

    Args:
        file: with configuration, tokenizer and weights.
        option: that names it, for messages.

    Raises:
        UserError: the file can't be read.
    """
    from huggingface_hub.constants import HF_HOME

    about = file.stat()
    state = hashlib.sha256(f"{file.resolve()} {about.st_size} {about.st_mtime_ns}".encode()).hexdigest()[:12]
    folder = Path(HF_HOME) / "burnish" / f"{file.stem}-{state}"
    if folder.is_dir():
        return folder
    if find_spec("gguf") is None:
        raise UserError(f"{option} is {file}, which is read with the package gguf: pip install gguf")
    print(f"Converting {file.name} to {folder} (once)", flush=True)
    new = folder.with_name(f".{folder.name}.{os.getpid()}")
    with writing(folder):
        try:
            _convert(file, new, option)
            if not folder.is_dir():  # another process may have been as fast
                new.rename(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return folder


def _convert(file: Path, folder: Path, option: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    named: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    with understood(f"{option} is {file}, which transformers can't read"):
        tokenizer = AutoTokenizer.from_pretrained(file.parent, trust_remote_code=False, **named)
        read, report = AutoModelForCausalLM.from_pretrained(
            file.parent, trust_remote_code=False, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True, **named,
        )  # fmt: skip
    if report["missing_keys"]:
        raise UserError(
            f"{option} is {file}, which lacks {listed(sorted(report['missing_keys']))}; give the folder of the model "
            "that it was made from"
        )
    read.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
