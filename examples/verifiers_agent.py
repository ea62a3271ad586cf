"""Environments of verifiers (0.4 and later) as an agent that Burnish starts: the policy plays, their reward comes back.

It runs in an environment with verifiers, and knows nothing of Burnish:

    python -m venv verifiers-env && verifiers-env/bin/pip install verifiers uv
    verifiers-env/bin/python verifiers_agent.py ENV --tasks 100 > tasks.jsonl        the prompts to train on
    burnish train verifiers.yaml

ENV is ``env`` of verifiers' own configuration as JSON, with the harness and the runtime of each role, such as
{"taskset": {"id": "my-taskset"}, "agent": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}}
"""

import argparse
import asyncio
import itertools
import json
import os
import sys
from typing import Any

import verifiers.v1 as vf

os.environ["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"  # where its harnesses find uv


async def play(env: Any, index: int) -> float:
    """The reward of one episode of a task."""
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    (task,) = env.taskset.include(idx=[str(index)])
    async with env.serving():
        episode = await env.run_episode(task, vf.ModelContext(model="policy", client=client))
    failures = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if failures:
        raise RuntimeError(f"{failures[0].type}: {failures[0].message}")
    return float(sum(trace.reward for trace in episode.traces))


def main() -> None:
    """Print tasks, or play the one that standard input names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("env", type=json.loads)
    parser.add_argument("--tasks", type=int, help="print so many tasks as records")
    given = parser.parse_args()
    env = vf.load_environment(vf.resolve_env_config(given.env))
    if given.tasks is None:
        print(asyncio.run(play(env, json.load(sys.stdin)["task"])))
        return
    for task in itertools.islice(env.taskset, given.tasks):
        print(json.dumps({"prompt": task.data.prompt_text or "(begins with the environment)", "task": task.data.idx}))


if __name__ == "__main__":
    main()
