"""``python -m burnish`` is ``burnish``."""

from __future__ import annotations

import sys

from burnish.cli import main

if __name__ == "__main__":
    sys.exit(main())
