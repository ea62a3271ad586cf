"""How long the board takes to open a run of many updates and prompts in headless Chromium, and how it scrolls.

python benchmarks/board.py --updates 1000 --prompts 100
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.support.boards import board, long_run
from tests.support.browser import browser

SCROLLED = """
new Promise((done) => {
  const place = document.querySelector('.rows') || document.scrollingElement;
  let last = performance.now(), longest = 0, steps = 0;
  const step = () => {
    const now = performance.now();
    longest = Math.max(longest, now - last);
    last = now;
    place.scrollTop += 120;
    if (++steps < 90) requestAnimationFrame(step); else done(longest);
  };
  requestAnimationFrame(step);
})
"""


def main() -> None:
    """Print seconds until each view is there, and the longest frame while it is scrolled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--prompts", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        long_run(root / "long", args.updates, args.prompts)
        with board(root) as port, browser() as page:
            for name, where, there in (
                ("runs", "", "document.querySelector('.run a')"),
                ("overview", "#/run?run=long", "document.querySelector('figure.chart')"),
                ("overview again", "#/run?run=long", "document.querySelector('figure.chart')"),
                ("curves", "#/run?run=long&tab=curves", "document.querySelector('figure.chart')"),
                ("prompts", "#/run?run=long&tab=prompts", "document.querySelector('.inner .row')"),
            ):
                page.open("about:blank")
                begun = time.perf_counter()
                page.open(f"http://127.0.0.1:{port}/{where}")
                page.until(there)
                opened = time.perf_counter() - begun
                longest = page.ask(SCROLLED) if where.endswith(("curves", "prompts")) else 0
                print(f"{name:<16}{opened:6.2f} s" + (f"   longest frame {longest:.0f} ms" if longest else ""))


if __name__ == "__main__":
    main()
