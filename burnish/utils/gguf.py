"""GGUF files: read once by transformers' own loader, and kept as a folder that everything else reads."""

from __future__ import annotations

import hashlib
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from burnish.utils.disk import writing
from burnish.utils.errors import UserError, first_line, listed

INSTEAD = "give the folder of the model that it was made from"


def is_gguf(path: Path) -> bool:
    """Whether a path is that of a GGUF file."""
    return path.suffix == ".gguf" and path.is_file()


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
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, trust_remote_code=False, **named)
        read, report = AutoModelForCausalLM.from_pretrained(
            file.parent, trust_remote_code=False, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True, **named,
        )  # fmt: skip
    except Exception as error:  # the library raises anything for what it can't read
        raise UserError(f"{option} is {file}, which transformers can't read: {first_line(error)}; {INSTEAD}") from error
    if report["missing_keys"]:
        raise UserError(f"{option} is {file}, which lacks {listed(sorted(report['missing_keys']))}; {INSTEAD}")
    read.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
