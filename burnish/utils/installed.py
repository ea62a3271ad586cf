"""Whether libraries that an option needs are installed, without importing them."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec


def missing(module: str | None, extra: str) -> str:
    """That a module is not installed, and the command that installs it; "" if nothing is missing."""
    if module is None or find_spec(module) is not None:
        return ""
    return f"needs {module}, which is not installed: pip install 'burnish[{extra}]'"


def optimizer_complaint(name: str) -> str:
    """What an optimizer lacks, and the command that installs it; "" if nothing."""
    if name == "muon" and tuple(map(int, version("torch").split(".")[:2])) < (2, 9):
        return f"needs PyTorch 2.9 or newer, but this is {version('torch')}: pip install --upgrade torch"
    return missing("bitsandbytes" if name == "adamw_8bit" else None, "optimizers")


def quantization_complaint(precision: str) -> str:
    """What a precision of frozen weights lacks, and the command that installs it; "" if nothing."""
    lacking = missing({"nf4": "bitsandbytes", "int8": "torchao", "fp8": "torchao"}.get(precision), "quantization")
    return lacking and f"{lacking}; fp8_cast needs no library"


ATTENTION = {  # modules that attention backends of diffusers and transformers need
    "flash": "flash_attn", "flash_attention_2": "flash_attn", "_flash_3": "flash_attn_interface",
    "flash_attention_3": "flash_attn_interface", "sage": "sageattention", "xformers": "xformers",
}  # fmt: skip


def attention_complaint(name: str) -> str:
    """What an attention backend lacks; "" if nothing."""
    needed = ATTENTION.get(name)
    if name == "sage":
        return "has no backward pass, so that nothing can be trained with it; use flash or xformers"
    if needed is None or find_spec(needed) is not None:
        return ""
    return f"needs {needed}, which is not installed; install it as its project says, or leave model.attention out"
