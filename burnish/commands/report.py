"""burnish report: the page about a run, written anew from what is in its folder."""

from __future__ import annotations

from burnish.config.run_folder import RunFolder
from burnish.report import write_report
from burnish.utils import terminal
from burnish.utils.errors import UserError


def report(run: str) -> int:
    """Write report.html into the folder of a run, finished or under way."""
    folder = RunFolder(run)
    if not folder.has_run():
        raise UserError(f"{run} is not the folder of a run; give one that burnish train wrote (output_dir)")
    terminal.console().print(f"The report is {write_report(folder)}", soft_wrap=True, markup=False, highlight=False)
    return 0
