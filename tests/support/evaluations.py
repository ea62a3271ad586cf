"""Evaluations of a suite, as validations and burnish eval leave them."""

from pathlib import Path

from burnish.evaluation.records import Folder, Header, result_of

HEADER_OF = Header(
    suite="mine", version=1, changed=[], digest="d", prompts_digest="p", prompts=12, n=1, primary_metric="ocr",
    aggregation="tasks", unit=4, settings={}, source="run", model={}, wrong=[], unwatched=[],
)  # fmt: skip


def evaluated(run: Path, update: int, value: float, header: Header = HEADER_OF) -> Folder:
    """A complete evaluation by a validation."""
    return evaluation(run / "validation" / f"{update:06d}" / "suites" / header.suite, value, header)


def evaluation(place: Path, value: float, header: Header = HEADER_OF) -> Folder:
    """A complete evaluation in a folder; every prompt got ``value`` more than its number says."""
    folder = Folder(place)
    for unit in folder.begin(header):
        folder.append([
            {"index": i, "sample": 0, "unit": unit, "key": f"k{i}", "task": "<b>" if i % 2 else "even",
             "values": {"ocr": i / 20 + value}} for i in header.rows(unit)
        ])  # fmt: skip
    folder.finish(result_of(*folder.complete()))
    return folder
