"""Whether what values of options need is installed, found without importing it."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

from burnish.utils.errors import UserError

QUANTIZED = "pip install 'burnish[quantization]', or set fp8_cast, which needs no library"
BY_HAND = "install it as its project says, or leave model.attention out"
NEEDED = {  # the module that a value needs, and how to get it
    **{name: (name, f"pip install 'burnish[{name}]'") for name in ("wandb", "swanlab", "mlflow", "trackio", "clearml")},
    "adamw_8bit": ("bitsandbytes", "pip install 'burnish[optimizers]'"),
    "nf4": ("bitsandbytes", QUANTIZED), "int8": ("torchao", QUANTIZED), "fp8": ("torchao", QUANTIZED),
    "flash": ("flash_attn", BY_HAND), "flash_attention_2": ("flash_attn", BY_HAND),
    "_flash_3": ("flash_attn_interface", BY_HAND), "flash_attention_3": ("flash_attn_interface", BY_HAND),
    "xformers": ("xformers", BY_HAND), "math_verify": ("math_verify", "pip install 'burnish[math]'"),
    "mcp": ("mcp", "pip install 'burnish[mcp]'"),
    **{name: (name, "pip install 'burnish[data]'") for name in ("datasets", "pyarrow")},
}  # fmt: skip


def lacking(name: str) -> str:
    """What a tracker, an optimizer, a precision, an attention backend or a file lacks here, and the way out; ""."""
    if name == "muon" and tuple(map(int, version("torch").split(".")[:2])) < (2, 9):
        return f"needs PyTorch 2.9 or newer, but this is {version('torch')}: pip install --upgrade torch"
    module, way_out = NEEDED.get(name, ("", ""))
    return f"needs {module}, which is not installed: {way_out}" if module and find_spec(module) is None else ""


def require(name: str, who: str) -> None:
    """Refuse what needs a library that is not installed.

    Args:
        name: as of ``lacking``.
        who: needs it, for the message.

    Raises:
        UserError: with the way to install it.
    """
    if complaint := lacking(name):
        raise UserError(f"{who} {complaint}")
