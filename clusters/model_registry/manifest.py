"""Manifests of models and their versions. Pure.

A version's files are in the output of a run, which is then its origin, or in a folder of a datastore. A hook describes a
version in model-version.json, for files that its run or the hook itself wrote.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from clusters.manifest.hook_spec import ModelName
from portal.manifests import AppcodeName, Manifest, Strict, field_error
from portal.manifests.appcode import Line
from portal.manifests.kept import Kept

Format = Literal["saved-model", "keras", "onnx", "sklearn", "python", "other"]
FORMATS: dict[Format, str] = {
    "saved-model": "TensorFlow SavedModel",
    "keras": "Keras (.keras)",
    "onnx": "ONNX (.onnx)",
    "sklearn": "scikit-learn (.skops)",
    "python": "A Python class of one's own",
    "other": "Something else",
}
MAX_DESCRIPTION, MAX_REASON, MAX_ALIAS = 500, 300, 40
MAX_SAMPLE_BYTES = 64 * 1024
# Everything that a run may report, and its hooks get as PORTAL_METRICS, fits.
MAX_METRICS, MAX_TENSORS, MAX_DIMENSIONS = 1000, 200, 16
# The file in which hooks describe a version.
SAID = "model-version.json"
_RUN = re.compile(r"[a-z][a-z0-9-]{0,62}/[1-9][0-9]{0,8}")
_ALIAS = re.compile(r"[a-z][a-z0-9_-]*")


def checked_alias(value: str) -> str:
    """Raises ValueError."""
    if not _ALIAS.fullmatch(value) or len(value) > MAX_ALIAS:
        raise ValueError(
            f"Use at most {MAX_ALIAS} lower-case letters, digits, '-' and '_', and start with a letter, for example champion."
        )
    return value


def _sample(value: Any) -> Any:
    if value is not None and not isinstance(value, dict | list):
        raise ValueError("Give a request as JSON, an object or a list.")
    try:
        said = orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise ValueError(f"This cannot be kept as JSON: {error}.") from None
    if len(said) > MAX_SAMPLE_BYTES:
        raise ValueError(f"A sample request has at most {MAX_SAMPLE_BYTES // 1024} KiB.")
    # orjson has replaced NaN, which JSON does not have, by null.
    return orjson.loads(said)


def _metrics(value: dict[str, float | None]) -> dict[str, float | None]:
    if len(value) > MAX_METRICS or any(not 0 < len(name) <= 500 for name in value):
        raise ValueError(f"At most {MAX_METRICS} metrics, whose names have at most 500 characters.")
    return {name: each if each is None or math.isfinite(each) else None for name, each in value.items()}


def _run(value: str) -> str:
    if not _RUN.fullmatch(value):
        raise ValueError("Name a cluster and the number of its run, for example train/3.")
    return value


Folder = Annotated[str, StringConstraints(max_length=2000)]
Description = Annotated[Line, StringConstraints(max_length=MAX_DESCRIPTION)]


class Tensor(Strict):
    name: Annotated[str, StringConstraints(max_length=200)]
    dtype: Annotated[str, StringConstraints(max_length=40)] = Field(examples=["float32"])
    shape: Annotated[list[Annotated[int, Field(ge=-1, lt=2**63)] | None], Field(max_length=MAX_DIMENSIONS)] | None = (
        Field(
            description="null for a dimension of any size; null as a whole where it is not known.",
            examples=[[None, 64]],
        )
    )


class Signature(Strict):
    """Inputs and outputs of a model. `outputs` is null if only running the model would show them."""

    inputs: Annotated[list[Tensor], Field(max_length=MAX_TENSORS)]
    outputs: Annotated[list[Tensor], Field(max_length=MAX_TENSORS)] | None


class ModelMetadata(Strict):
    name: Annotated[ModelName, Kept("A model keeps its name: programs find it by that.")]
    appcode: AppcodeName
    description: Annotated[Line, StringConstraints(max_length=200)] = Field(
        default="", examples=["Reads handwritten digits"]
    )


class ModelManifest(Manifest):
    """`{"kind":"model","metadata":{"name","appcode","description"}}`."""

    kind: Literal["model"] = "model"
    metadata: ModelMetadata


class About(Strict):
    """The description of a version, apart from where its files are."""

    path: Folder = Field(
        default="",
        description="The folder of the model: in the output of the run, or from the top of the datastore. It may be left out "
        "where only one model lies below.",
    )
    format: Format | None = Field(default=None, description="Found out by the names of the files where it is null.")
    description: Description = ""
    metrics: Annotated[dict[str, float | None], AfterValidator(_metrics)] | None = Field(
        default=None,
        description="The last values that the run has told where it is null.",
        examples=[{"accuracy": 0.97}],
    )
    signature: Signature | None = Field(default=None, description="Read from the files where it is null.")
    sample: Annotated[Any, AfterValidator(_sample)] = Field(
        default=None, description="A request that it answers, as JSON.", examples=[{"instances": [[0, 1]]}]
    )


class ModelVersionSpec(About):
    run: Annotated[str, AfterValidator(_run)] | None = Field(
        default=None, description="A run of the appcode that has ended.", examples=["train/3"]
    )
    datastore: Annotated[str, StringConstraints(max_length=63)] | None = Field(
        default=None, description="A datastore of the appcode, of S3 or a folder of this machine."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.run is None) == (self.datastore is None):
            raise field_error("Name a run or a datastore, one of the two.", "run")
        return self


class ModelVersionMetadata(Strict):
    model: ModelName
    appcode: AppcodeName


class ModelVersionManifest(Manifest):
    """`{"kind":"modelVersion","metadata":{"model","appcode"},"spec":{…}}`."""

    kind: Literal["modelVersion"] = "modelVersion"
    metadata: ModelVersionMetadata
    spec: ModelVersionSpec


class Said(About):
    """model-version.json as hooks write it. Other fields are ignored here; they are for its readers."""

    model_config = ConfigDict(extra="ignore")

    output: Literal["run", "hook"] = Field(default="run", description="Whose output `path` lies in.")


class AliasMove(Strict):
    version: int = Field(ge=1, le=2**31 - 1)
    reason: Annotated[Line, StringConstraints(max_length=MAX_REASON)] = Field(
        default="", examples=["Better on the images of May"]
    )
