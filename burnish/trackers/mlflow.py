"""MLflow, by its library mlflow (or mlflow-skinny)."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from burnish.trackers.base import GENERATIONS, SAMPLES, About, Notice, Sample
from burnish.trackers.media import kind_of, picture
from burnish.utils.feed_process import Outcome
from burnish.utils.json_text import flattened

MOST = 100  # parameters of a request
LONGEST = 500  # characters of a parameter that every server takes
LONGEST_NAME, LONGEST_TAG = 250, 5000  # characters of a tag, the same
STATES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class Mlflow:
    """A run of MLflow, the same one over all resumptions."""

    def __init__(self, about: About) -> None:
        options = about.options
        address = options["uri"] or os.environ.get("MLFLOW_TRACKING_URI")
        if address is None:  # files: a new database takes seconds to make, and is broken if killed meanwhile
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
            address = about.folder.as_uri()
        self._client: Any = MlflowClient(tracking_uri=address)
        self.url: str | None = address if address.startswith("http") else None
        if about.id is not None:
            self.id = about.id
            self._client.update_run(self.id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(options["experiment"])
        where = found.experiment_id if found else self._client.create_experiment(options["experiment"])
        self.id = self._client.create_run(where, run_name=about.name, tags=dict(options["tags"])).info.run_id
        config = {name: one if isinstance(one, str) else json.dumps(one) for name, one in flattened(about.config)}
        params = [Param(_allowed(name), text[:LONGEST]) for name, text in config.items()]
        for begin in range(0, len(params), MOST):
            self._client.log_batch(self.id, params=params[begin : begin + MOST])

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        now = round(time.time() * 1000)
        self._client.log_batch(self.id, metrics=[Metric(_allowed(name), v, now, step) for name, v in values.items()])

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        rows = []
        for number, one in enumerate(samples):
            made = one.said
            rows.append({"step": step, "input": one.prompt, "output": made, "score": one.score})
            if one.file is None:
                continue
            if kind_of(one.file) == "picture":
                self._client.log_image(self.id, picture(one.file), key=f"{SAMPLES}/{number}", step=step)
            else:
                self._client.log_artifact(self.id, str(one.file), f"{SAMPLES}/step_{step:06d}")
        self._client.log_text(self.id, json.dumps(rows, indent=1), f"{GENERATIONS}/step_{step:06d}.json")

    def alarm(self, notice: Notice) -> None:
        text = notice.said if notice.over else f"since update {notice.update}: {notice.said}"
        self._client.set_tag(self.id, _allowed(f"alarm.{notice.name}")[:LONGEST_NAME], text[:LONGEST_TAG])

    def close(self, outcome: Outcome) -> None:
        self._client.set_terminated(self.id, status=STATES[outcome])


def _allowed(name: str) -> str:
    """A name with the characters that MLflow takes; @ as verl writes it.

    Behind its group its parts are joined by dots: MLflow's files can't have both ``a/b`` and ``a/b/c``.
    """
    found = re.sub(r"[^/\w.\- :]", "_", re.sub(r"/+", "/", name.replace("@", "_at_"))).strip("/.")
    group, slash, rest = found.partition("/")
    return f"{group}{slash}{rest.replace('/', '.')}" or "_"
