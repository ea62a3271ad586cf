"""What is particular to CUDA among torch's operators: mixing devices, waiting for the GPU, and autocast.

Names are those of operators without namespace, overload and the underscore of in-place variants. Lists are
held to a real GPU by tests/support/test_pretend_gpu.py, or read from torch's own header.
"""

import re
from pathlib import Path

import torch


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Pointwise operators that read a 0-dim CPU tensor as if it were a number. Every other operator refuses it.
CPU_SCALARS = words(
    "add sub rsub mul div true_divide floor_divide remainder fmod pow maximum minimum fmax fmin eq ne lt le gt ge "
    "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor atan2 hypot copysign xlogy logaddexp "
    "nextafter where"
)
# Operators whose argument of this name may be a 0-dim CPU tensor, and no other
SCALAR_ARGUMENTS = {
    "masked_fill": "value", "fill": "value", "index_fill": "value", "index_put": "values", "_index_put_impl": "values",
    "_foreach_mul": "other", "_foreach_add": "other", "_foreach_div": "other",
    "_fused_adamw": "lr", "_fused_adam": "lr",
}  # fmt: skip
INDEXING = frozenset(["index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"])
# Operators whose result is a number, or as long as the data say: the CPU waits for the GPU once at least
WAITING = words(
    "_local_scalar_dense nonzero masked_select _unique2 unique_dim unique_consecutive unique_dim_consecutive bincount "
    "equal allclose repeat_interleave"
)

HEADER = (Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h").read_text()


def listed(name: str) -> frozenset[str]:
    """Operators of a list of torch's header on autocast."""
    block = HEADER.split(f"#define {name}(_)")[1].split("\n\n")[0]
    return frozenset(re.findall(r"\b_\((\w+)", block))


# torch.autocast on CUDA: what runs in the lower precision, ...
LOWER = listed("AT_FORALL_LOWER_PRECISION_FP")
# ... what is computed in float32, whatever comes in (on the CPU most of these stay in the lower precision), ...
FLOAT32 = listed("AT_FORALL_FP32")
# ... the same unless the call names a dtype, ...
FLOAT32_UNLESS_TOLD = listed("AT_FORALL_FP32_SET_OPT_DTYPE") | {"norm"}
# ... and what takes the widest of what comes in
WIDEST = listed("AT_FORALL_PROMOTE")
# What Python calls is not always what torch intercepts: these run operators of FLOAT32 inside
FLOAT32_INSIDE = words("square rdiv rtruediv rpow normalize cross_entropy interpolate pairwise_distance")
# ... and these run products of LOWER alone
LOWER_INSIDE = words("multi_head_attention_forward")
PYTHON_NAMES = {"rmatmul": "matmul"}


def operator_name(name: str) -> str:
    """An operator without the underscore of its in-place variant."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def autocast_rule(name: str) -> str | None:
    """What CUDA's autocast does with a function of torch's Python interface: lower, float32, told, widest or None."""
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    elif name.endswith("_"):
        return None  # what works in place keeps its dtype
    name = PYTHON_NAMES.get(name, name)
    if name in LOWER or name in LOWER_INSIDE:
        return "lower"
    if name in FLOAT32 or name in FLOAT32_INSIDE:
        return "float32"
    if name in FLOAT32_UNLESS_TOLD:
        return "told"
    return "widest" if name in WIDEST else None
