"""Options of trackers: services and libraries that show runs, to which metrics and samples of validations go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from burnish.options import EVALUATED, NonNegative, Rules, Whole
from burnish.registry import ReadIf, fields, options
from burnish.utils.addresses import SECRET, secret_in

if TYPE_CHECKING:
    from burnish.config.run import RunConfig

SHOWN = ReadIf(
    lambda section, run: section.tensorboard or section.libraries(),
    why="never read without a tracker; set trackers.wandb={{}}",
)
LACKS = {"mlflow": ["mode"], "trackio": ["mode", "tags"]}  # options that a library has nothing for
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]


@options
class TrackerOptions:
    """How a tracker shows the run. Who you are is said by the library's own login, or variables of the environment."""

    project: Name = "burnish"
    """Project of the run; MLflow's experiment."""
    name: Name | None = None
    """Name of the run; null takes the name of output_dir."""
    group: Name | None = None
    """Group of the run, such as a sweep; a tag in MLflow and ClearML, which have no groups."""
    tags: list[Name] = Field(default_factory=list)
    """Tags of the run."""
    mode: Literal["online", "offline"] = "online"
    """offline writes below output_dir/trackers, for the library's own command or function to send."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of what opens the run, by name: entity of wandb.init, workspace of swanlab.init, space_id of
    trackio.init, tracking_uri of MlflowClient, and so on."""

    @field_validator("arguments")
    @classmethod
    def _hold_no_secret(cls, value: dict[str, Any]) -> dict[str, Any]:
        held = [name for name, one in value.items() if SECRET.search(name) or (isinstance(one, str) and secret_in(one))]
        if held:
            raise ValueError(
                f"arguments has {held[0]} with a secret, which would be saved; set the library's variable of the "
                "environment, such as WANDB_API_KEY or MLFLOW_TRACKING_PASSWORD"
            )
        return value


@options
class TrackersOptions:
    """Where else metrics, samples of validations and alarms are shown. One that fails never stops or slows the run."""

    wandb: TrackerOptions | None = None
    """Weights & Biases; null leaves it out."""
    swanlab: TrackerOptions | None = None
    """SwanLab; null leaves it out."""
    mlflow: TrackerOptions | None = None
    """MLflow: the server of MLFLOW_TRACKING_URI, or files below output_dir/trackers/mlflow; null leaves it out."""
    trackio: TrackerOptions | None = None
    """Trackio: in TRACKIO_DIR on this machine, or in a space; null leaves it out."""
    clearml: TrackerOptions | None = None
    """ClearML; null leaves it out."""
    tensorboard: bool = False
    """Also write samples of validations, and alarms, for TensorBoard, beside the curves that it always gets."""
    samples: Annotated[Whole, EVALUATED, SHOWN] = 8
    """Prompts of a validation whose first sample is shown: text, picture, clip or sound."""
    wait: Annotated[NonNegative, SHOWN] = 30.0
    """Seconds at the end of a run in which trackers may send what is left; a stopped run waits 10 at most."""

    def libraries(self) -> list[str]:
        """Trackers that are asked for and that need a library of their own, by the names of both."""
        return [name for name in fields(self) if isinstance(getattr(self, name), TrackerOptions)]

    def contradictions(self, run: RunConfig) -> Rules:
        plain = TrackerOptions()
        return [
            (
                getattr(getattr(self, name), option) != getattr(plain, option),
                f"trackers.{name}.{option} is given, but {name} has no such thing; leave it out",
            )
            for name in self.libraries()
            for option in LACKS.get(name, ())
        ]
