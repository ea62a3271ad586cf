"""What stands in for a processor in a process of ``burnish.tasks.language.readers``; it imports no torch."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from burnish.types.media import Media
from burnish.types.prompt import Prompt

SIZE = 1000  # bytes of the pixels of a prompt


def asked(text: str) -> Prompt:
    """A prompt with a picture, of line 3."""
    return Prompt(text=text, images=(Media.encoded(text.encode()),), where="data.jsonl:3")


def load(argument: Any) -> Any:
    config, _ = argument
    log = Path(config.log)

    def read(prompt: Any) -> tuple[str, Any]:
        with log.open("a") as file:
            file.write(f"{os.getpid()} {prompt.text}\n")
        match prompt.text.split()[0]:
            case "dies":
                os._exit(7)
            case "hangs":
                time.sleep(60)
            case "broken":
                return f"{prompt.name} shows what can't be read", None
        number = int(prompt.text.split()[1])
        ids = np.arange(3, dtype=np.int64).view(np.uint8), "int64", (3,)
        pixels = np.full(SIZE, number, np.uint8), "uint8", (10, SIZE // 10)
        return "", ({"pixels": 0}, {"pixels": pixels}, {}, {"ids": ids, "positions": (ids[0], "int64", (1, 3))})

    return read


def refuse(argument: Any) -> Any:
    raise ValueError("no processor here")
