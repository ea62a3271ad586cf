"""On PYTHONPATH it makes Python believe that Ray is not installed, in subprocesses, too."""

import sys

sys.modules["ray"] = None  # type: ignore[assignment]  # whoever imports it is told that there is no such module
