"""Options of trackers: services and libraries that show runs, to which metrics and samples of validations go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from burnish.options import EVALUATED, Address, NonNegative, Whole
from burnish.registry import ReadIf, options
from burnish.utils.addresses import secret_in

SHOWN = ReadIf("shows", why="never read without a tracker; set trackers.wandb={{}}")
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]


@options
class TrackerOptions:
    """Where a tracker shows the run."""

    project: Name = "burnish"
    """Project of the run."""
    name: Name | None = None
    """Name of the run; null takes the name of output_dir."""


@options
class SweepOptions(TrackerOptions):
    """The same, with what tells runs of a project apart."""

    group: Name | None = None
    """Group of the run, such as a sweep."""
    tags: list[Name] = Field(default_factory=list)
    """Tags of the run."""
    mode: Literal["online", "offline"] = "online"
    """offline writes below output_dir/trackers, for the library's own command or function to send."""


@options
class WandbOptions(SweepOptions):
    """Weights & Biases. WANDB_API_KEY, or `wandb login`, says who you are."""

    entity: Name | None = None
    """User or team of the project; null takes WANDB_ENTITY, or yours."""


@options
class SwanlabOptions(SweepOptions):
    """SwanLab. SWANLAB_API_KEY, or `swanlab login`, says who you are."""

    workspace: Name | None = None
    """Organisation of the project; null is yours."""


@options
class MlflowOptions:
    """MLflow. MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN, say who you are."""

    experiment: Name = "burnish"
    """Experiment of the run."""
    uri: Address | None = None
    """Tracking server, http://HOST:PORT; null takes MLFLOW_TRACKING_URI, or without that files below
    output_dir/trackers/mlflow."""
    name: Name | None = None
    """Name of the run; null takes the name of output_dir."""
    tags: dict[Name, Name] = Field(default_factory=dict)
    """Tags of the run."""

    @field_validator("uri")
    @classmethod
    def _uri_fits(cls, value: str | None) -> str | None:
        if value is not None and value != "databricks" and "://" not in value:
            raise ValueError(f"uri is {value}, which is no address; give http://HOST:PORT, or leave it out for files")
        if value is not None and (held := secret_in(value)):
            raise ValueError(
                f"uri contains {held}, which would be saved; set MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
            )
        return value


@options
class TrackioOptions(TrackerOptions):
    """Trackio. HF_TOKEN, or `hf auth login`, says who you are where a space is given."""

    space: Name | None = None
    """Space of the hub, as USER/NAME, that the run is shown in; null writes to TRACKIO_DIR on this machine."""
    group: Name | None = None
    """Group of the run, such as a sweep."""


@options
class ClearmlOptions(TrackerOptions):
    """ClearML. CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY, or `clearml-init`, say who you are."""

    tags: list[Name] = Field(default_factory=list)
    """Tags of the run."""
    mode: Literal["online", "offline"] = "online"
    """offline writes below output_dir/trackers/clearml, for Task.import_offline_session."""


@options
class TrackersOptions:
    """Where else metrics, samples of validations and alarms are shown. One that fails never stops or slows the run."""

    wandb: WandbOptions | None = None
    """Weights & Biases; null leaves it out."""
    swanlab: SwanlabOptions | None = None
    """SwanLab; null leaves it out."""
    mlflow: MlflowOptions | None = None
    """MLflow; null leaves it out."""
    trackio: TrackioOptions | None = None
    """Trackio; null leaves it out."""
    clearml: ClearmlOptions | None = None
    """ClearML; null leaves it out."""
    tensorboard: bool = False
    """Also write samples of validations, and alarms, for TensorBoard, beside the curves that it always gets."""
    samples: Annotated[Whole, EVALUATED, SHOWN] = 8
    """Prompts of a validation whose first sample is shown: text, picture, clip or sound."""
    wait: Annotated[NonNegative, SHOWN] = 30.0
    """Seconds at the end of a run in which trackers may send what is left; a stopped run waits 10 at most."""

    @property
    def shows(self) -> bool:
        """Whether there is any tracker."""
        return self.tensorboard or bool(self.libraries())

    def libraries(self) -> list[str]:
        """Trackers that are asked for and that need a library of their own, by the names of both."""
        return [
            name for name in ("wandb", "swanlab", "mlflow", "trackio", "clearml") if getattr(self, name) is not None
        ]
