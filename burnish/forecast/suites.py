"""What validations sample, in a forecast: the first batch, and that of each suite with its own settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from burnish.evaluation.prompts import read_suite_prompts
from burnish.evaluation.suite import Suite
from burnish.tasks.job import Job
from burnish.tasks.suites import SuiteRunner, suites_of
from burnish.training.ranks import Ranks
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError


def suite_runners(assembly: Any, made_up: Callable[[int], Sequence[Prompt]]) -> Iterator[SuiteRunner]:
    """Those of a run, with made-up prompts where their own are not on this machine.

    Args:
        assembly: of the run.
        made_up: so many prompts.

    """
    for suite in suites_of(assembly.config):
        yield assembly.suite_runner(
            assembly, suite, _prompts(suite) or made_up(int(assembly.config.rollout.batch_size))
        )


def first_batch(job: Job, config: Any, ranks: Ranks) -> Any:
    """The first samples of a validation's job on the rank that has most of them, as many as are made at once."""
    prompts = len(job.prompts) // config.validation.n
    own = -(-prompts // ranks.size) * config.validation.n
    return job.select(slice(0, min(own, config.rollout.batch_size)))


def first_unit(runner: SuiteRunner) -> Any:
    """The job of a suite's first batch, which is as large as any."""
    return runner.unit_job(range(min(runner.unit, len(runner.prompts))))


def _prompts(suite: Suite) -> list[Prompt]:
    try:
        return read_suite_prompts(suite)
    except (UserError, OSError):
        return []
