"""Every metric that the code can write is explained."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = re.compile(
    r'"((?:actor|critic|old_policy|train|perf|timing_s|training|variance_proxy|val-aux|response_length|pipeline)'
    r'/[a-z0-9_]+(?:/[a-z0-9_]+)*)"'
)
INNER = {"actor/skipped", "actor/empty", "actor/ratio_square"}  # turned into others before they are written


def explained() -> set[str]:
    """Names in the page's tables: what stands in backticks, a bare one with the section of the name before it."""
    found = set()
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if not line.startswith("| `"):
            continue
        section = ""
        for name in re.findall(r"`([^`]+)`", line.split("|")[1]):
            prefix = name.split("/")[0]
            if prefix in {"actor", "critic", "old_policy", "train", "perf", "timing_s", "training", "variance_proxy",
                          "val-aux", "val-core", "response_length", "rollout_corr", "pipeline"}:  # fmt: skip
                section = name.rpartition("/")[0] if prefix != "train" else "train"
                found.add(name)
            else:
                found.add(f"{section}/{name}")
    return found


def test_every_metric_is_explained():
    known = explained()
    written: dict[str, str] = {}
    for file in sorted((ROOT / "burnish").rglob("*.py")):
        for name in NAME.findall(file.read_text()):
            written.setdefault(name, str(file.relative_to(ROOT)))
    assert len(written) > 50
    assert {"critic/rewards/std_mean", "actor/ratio_std", "timing_s/gen", "train/kept_groups"} <= known
    missing = {name: file for name, file in written.items() if name not in known | INNER}
    assert not missing, f"docs/metrics.md does not explain {missing}"
