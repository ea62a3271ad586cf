"""Options of trackers: services and libraries that show runs, to which metrics and samples of validations go."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from burnish.options import NonNegative, Whole
from burnish.registry import options
from burnish.utils.addresses import secret_in

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
Address = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f]+$")]


@options
class WandbOptions:
    """Weights & Biases. WANDB_API_KEY, or `wandb login`, says who you are."""

    project: Name = "burnish"
    """Project of the run."""
    entity: Name | None = None
    """User or team of the project; null takes WANDB_ENTITY, or yours."""
    name: Name | None = None
    """Name of the run; null takes the name of output_dir."""
    group: Name | None = None
    """Group of the run, such as a sweep."""
    tags: list[Name] = Field(default_factory=list)
    """Tags of the run."""
    mode: Literal["online", "offline"] = "online"
    """offline writes below output_dir/trackers/wandb, for wandb sync."""


@options
class SwanlabOptions:
    """SwanLab. SWANLAB_API_KEY, or `swanlab login`, says who you are."""

    project: Name = "burnish"
    """Project of the run."""
    workspace: Name | None = None
    """Organisation of the project; null is yours."""
    name: Name | None = None
    """Name of the run; null takes the name of output_dir."""
    group: Name | None = None
    """Group of the run, such as a sweep."""
    tags: list[Name] = Field(default_factory=list)
    """Tags of the run."""
    mode: Literal["online", "offline"] = "online"
    """offline writes below output_dir/trackers/swanlab, for swanlab sync."""


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
class TrackioOptions:
    """Trackio. HF_TOKEN, or `hf auth login`, says who you are where a space is given."""

    project: Name = "burnish"
    """Project of the run."""
    space: Name | None = None
    """Space of the hub, as USER/NAME, that the run is shown in; null writes to TRACKIO_DIR on this machine."""
    name: Name | None = None
    """Name of the run; null takes the name of output_dir."""
    group: Name | None = None
    """Group of the run, such as a sweep."""


@options
class ClearmlOptions:
    """ClearML. CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY, or `clearml-init`, say who you are."""

    project: Name = "burnish"
    """Project of the run."""
    name: Name | None = None
    """Name of the run; null takes the name of output_dir."""
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
    names: Literal["verl", "lightrft"] = "verl"
    """Names that trackers and TensorBoard get metrics under; metrics.jsonl keeps verl's."""
    samples: Whole = 8
    """Prompts of a validation whose first sample is shown: text, picture, clip or sound."""
    wait: NonNegative = 30.0
    """Seconds at the end of a run in which trackers may send what is left; a stopped run waits 10 at most."""

    def libraries(self) -> list[str]:
        """Trackers that are asked for and that need a library of their own, by the names of both."""
        return [
            name for name in ("wandb", "swanlab", "mlflow", "trackio", "clearml") if getattr(self, name) is not None
        ]

    @model_validator(mode="after")
    def _are_read(self) -> Self:
        if self.tensorboard or self.libraries():
            return self
        for name, default in (("samples", 8), ("wait", 30.0)):
            if getattr(self, name) != default:
                raise ValueError(f"{name} is never read without a tracker; leave it out, or set trackers.wandb={{}}")
        return self
