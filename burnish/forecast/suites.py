"""The suites of a run's validations, in a forecast: the first batch of each, sampled with the suite's own settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from burnish.evaluation.prompts import read_suite_prompts
from burnish.evaluation.suite import Suite
from burnish.tasks.suites import SuiteRunner, runner_of, suites_of
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError


def suite_runners(assembly: Any, made_up: Callable[[int], list[Prompt]]) -> Iterator[SuiteRunner]:
    """Those of a run, with made-up prompts where their own are not on this machine.

    Args:
        assembly: of the run.
        made_up: so many prompts.

    Raises:
        UserError: a suite is not there, or for other models.
    """
    for suite in suites_of(assembly.config):
        runner = runner_of(assembly, suite, _prompts(suite) or made_up(int(assembly.config.rollout.batch_size)))
        runner.check_task()
        yield runner


def first_unit(runner: SuiteRunner) -> Any:
    """The job of a suite's first batch, which is as large as any."""
    return runner.unit_job(range(min(runner.unit, len(runner.prompts))))


def _prompts(suite: Suite) -> list[Prompt]:
    try:
        return read_suite_prompts(suite)
    except (UserError, OSError):
        return []
