"""A model's directory with another tokenizer or chat template: links to the files of each, in a temporary folder.

All that reads, samples with or copies the model's files then finds the others in their place.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from burnish.models.loading import read_folder
from burnish.options.language import LanguageModelOptions
from burnish.utils.errors import UserError
from burnish.utils.hub import WORDS, model_folder
from burnish.utils.json_text import read_object
from burnish.utils.reading import checked_path, read_text
from burnish.utils.weights import tokenizer_complaint

INDEX = "tokenizer_config.json"
TOKENIZER = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "*.model",
    "tekken.json", "*.tiktoken",
)  # fmt: skip
TEMPLATE = ("chat_template.*", "additional_chat_templates")
PROCESSOR = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def overlaid(options: LanguageModelOptions, model: Path) -> Path:
    """The directory that a model is read from: its own, or one with what ``tokenizer`` and ``chat_template`` name.

    Raises:
        UserError: one of them can't be read.
    """
    tokens = tokenizer_folder(options)
    template = None if options.chat_template is None else template_of(options.chat_template)
    return model if tokens is None and template is None else _made(model, tokens, template)


def tokenizer_folder(options: LanguageModelOptions) -> Path | None:
    """The directory of another tokenizer; None where the model has its own.

    Raises:
        UserError: there is none, or it lacks a vocabulary.
    """
    if options.tokenizer is None:
        return None
    said = f"model.tokenizer is {options.tokenizer}"
    folder = model_folder(options.tokenizer, index=INDEX, option="model.tokenizer", files=WORDS)
    if not (folder / INDEX).is_file():
        raise UserError(f"{said}, which has no {INDEX}; give a directory as a tokenizer's save_pretrained writes it")
    if complaint := tokenizer_complaint(folder):
        raise UserError(f"{said}: {complaint}")
    return folder


def template_of(given: str) -> str:
    """A chat template: as it is, or from a file.

    Raises:
        UserError: there is no such file, or it is no template.
    """
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import _compile_jinja_template

    inline = "{%" in given or "{{" in given
    if not inline and not checked_path(given, "model.chat_template").is_file():
        raise UserError(
            f"model.chat_template is {given}, which is neither a file nor a template (it has no {{{{ or {{%); give one"
        )
    text = given if inline else read_text(checked_path(given, "model.chat_template"))
    try:
        _compile_jinja_template(text)
    except TemplateSyntaxError as error:
        where = "" if inline else f" {given}"
        raise UserError(
            f"model.chat_template{where} is not a template of Jinja: line {error.lineno}: {error}"
        ) from None
    return text


def read_tokenizer(path: Path) -> Any:
    """The tokenizer of a directory, as transformers reads it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)


def check_vocabulary(options: LanguageModelOptions) -> None:
    """Refuse a tokenizer whose tokens the model doesn't have, or for which those of media are others.

    Raises:
        UserError: with the first such token.
    """
    folder = tokenizer_folder(options)
    if folder is None:
        return
    model, config = read_folder(options, "config.json", "transformers", "model")
    own, other = read_tokenizer(model), read_tokenizer(folder)
    text = config.get("text_config") or config
    highest = max(other.get_vocab().values())
    if highest >= text.get("vocab_size", highest + 1):
        raise UserError(
            f"model.tokenizer is {options.tokenizer}, which has token {highest} "
            f"({other.convert_ids_to_tokens(highest)!r}), but {options.path} has {text['vocab_size']} tokens; give a "
            "tokenizer of that model"
        )
    for name, number in {**config, **text}.items():
        if re.search(r"(image|video|audio|vision).*_token_(id|index)$", name):
            tokens = [reader.convert_ids_to_tokens(number) for reader in (own, other) if isinstance(number, int)]
            if len(set(tokens)) > 1:
                raise UserError(
                    f"model.tokenizer is {options.tokenizer}, in which token {number} is {tokens[1]!r}, but "
                    f"{options.path} takes it for {tokens[0]!r} ({name}); give a tokenizer of that model"
                )


def copy_words(options: LanguageModelOptions, folder: Path, target: Path) -> None:
    """Copy the user's tokenizer or chat template, which the base model doesn't have, beside an adapter."""
    if options.tokenizer is not None or options.chat_template is not None:
        for file in _words(folder):
            (shutil.copytree if file.is_dir() else shutil.copyfile)(file, target / file.name)


def reading_lines(options: LanguageModelOptions, base: Path, adapter: Path | None) -> list[str]:
    """Python that loads the user's tokenizer, where there is one, of an exported model or adapter."""
    if options.tokenizer is None and options.chat_template is None:
        return []
    return [f'tokenizer = AutoTokenizer.from_pretrained("{adapter or base}")']


def _words(folder: Path) -> Iterator[Path]:
    """The files of a directory that say how prompts are read: tokenizer, chat template, processor."""
    yield from (one for one in sorted(folder.iterdir()) if _is(one.name, (*TOKENIZER, *TEMPLATE, *PROCESSOR)))


@cache
def _made(model: Path, tokens: Path | None, template: str | None) -> Path:
    """The folder with the links, for the life of this process."""
    place = Path(mkdtemp(prefix="burnish-"))
    atexit.register(_remove, place, os.getpid())
    folder = place / model.name
    folder.mkdir()
    replaced = () if tokens is None else (*TOKENIZER, *TEMPLATE)
    files = {one.name: one for one in model.iterdir() if not _is(one.name, replaced)}
    if tokens is not None:
        files |= {one.name: one for one in _words(tokens)}
    for name, file in files.items():
        if template is None or not _is(name, TEMPLATE):
            (folder / name).symlink_to(file.absolute())
    if template is not None:
        for name in (INDEX, PROCESSOR[1]):
            _without_template(folder / name)
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def _without_template(file: Path) -> None:
    """Write a file of JSON in the place of a link to it, if it holds a chat template."""
    if file.is_file() and "chat_template" in (content := read_object(file)):
        del content["chat_template"]
        file.unlink()
        file.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


def _is(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _remove(place: Path, process: int) -> None:
    if os.getpid() == process:  # not a fork of it
        shutil.rmtree(place, ignore_errors=True)
