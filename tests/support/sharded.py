"""Full weights of sharded ones."""

from typing import Any

from torch import Tensor


