"""The input of a cluster in its manifest, mounted at /elearn/input: a datastore, or the output of another cluster.

In JSON it is the name of a datastore, `"digits"`, or an object for everything else: `{"from": "prepare"}` or
`{"datastore": "digits", "path": "train"}`. Both parse to the same value, which is written in the shorter form.

`from` is a cluster of the same appcode, or one of its runs (`prepare/3`). The run is chosen when the reading run is
created: the one in progress, or else the last one that succeeded. So a run records for good what it has read. With
`when` always, a failed or stopped run also counts.

Input from S3 is copied. A version never changes, so it is copied once and shared read-only by all runs that read it,
where the cloud has a place for that; other input is copied for each run. The modes `cache` and `copy` force one of the
two. In mode `stream` nothing is copied: programs read S3 themselves, with their own keys.

In mode `shard` each computing task gets a part of the files. Of `folds` folds, the one named by `fold` is held out for
validation (clouds/drivers/parts.py chooses the files).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import (
    AfterValidator,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from datastores.specs import relative_path
from portal.manifests import Strict, field_error

FROM = "from:"
MAX_FOLDS = 1000
# Two names and a slash: ops-demo/digits.
MAX_NAME = 2 * 63 + 1
Mode = Literal["auto", "copy", "shard", "cache", "stream"]
# Set in tasks with streamed input (clouds/drivers/stream.py).
STREAM_ENV = frozenset(
    {
        "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_REGION", "PORTAL_INPUT",
    }
)  # fmt: skip
# Modes in which each task sees a copy of all files.
WHOLE = ("auto", "copy")
WORDS: dict[Mode, str] = {
    "shard": "each task its part",
    "cache": "copied once for all runs",
    "stream": "read by the program itself",
}
_SOURCE = re.compile(r"[a-z][a-z0-9-]{0,62}(/[1-9][0-9]{0,8})?")


def _source(value: str) -> str:
    if not _SOURCE.fullmatch(value):
        raise ValueError("Name a cluster of this appcode, for example prepare, or a run of it, prepare/3.")
    return value


class InputSpec(Strict):
    """The name of a datastore of the appcode, or an object: a `datastore`, or the cluster whose output is read (`from`)."""

    datastore: Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)] | None = Field(
        default=None, description="Its name; of one that another appcode shares, ops-demo/digits."
    )
    from_: Annotated[str, StringConstraints(max_length=73), AfterValidator(_source)] | None = Field(
        default=None,
        alias="from",
        examples=["prepare"],
        description="A cluster, for its run that is under way or else the last one that succeeded; or one run, prepare/3. "
        "It is waited for until it has succeeded.",
    )
    path: Annotated[str, AfterValidator(relative_path)] = Field(
        default="", description="A folder of the datastore, or of the output that is read; all of it where it is empty."
    )
    version: Annotated[str, StringConstraints(min_length=1, max_length=40)] | None = Field(
        default=None,
        examples=["2026-11-22"],
        description="Of the datastore: the run fails when something else lies there.",
    )
    mode: Mode = Field(
        default="auto",
        description="Each task sees all files, or each that computes its part of them (shard). Of S3: copied once for all "
        "runs that read the same (cache), for each run (copy), a version once where the cloud has room for it (auto), or read by "
        "the program itself by S3 (stream): AWS_ENDPOINT_URL and keys for just that are in its environment, and its URL in "
        "PORTAL_INPUT.",
    )
    when: Literal["succeeded", "always"] = Field(
        default="succeeded",
        description="Of what a cluster wrote: only what a run wrote that has succeeded, or also of one that failed or was "
        "stopped, as it was then (always).",
    )
    fold: int | None = Field(
        default=None, ge=1, le=MAX_FOLDS, description="Held out: its files are in validation/, all others in train/."
    )
    folds: int | None = Field(default=None, ge=2, le=MAX_FOLDS)

    @model_validator(mode="before")
    @classmethod
    def _name(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if not 1 <= len(value) <= MAX_NAME:
            raise ValueError(f"A name has 1 to {MAX_NAME} characters.")
        return {"datastore": value}

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.datastore is None) == (self.from_ is None):
            raise field_error("Name a datastore, or the cluster whose output is read.", "datastore")
        if self.datastore and ":" in self.datastore:
            raise field_error("A datastore's name has no ':'.", "datastore")
        if self.version and self.from_:
            raise field_error("Datastores have versions; of a cluster name the run, for example prepare/3.", "version")
        if self.datastore and self.when != "succeeded":
            raise field_error("A datastore is no run, so it neither succeeds nor fails.", "when")
        if (self.fold is None) != (self.folds is None):
            missing = "fold" if self.fold is None else "folds"
            raise field_error("Say both: which fold is held out, and how many there are.", missing)
        if self.mode == "stream" and self.folds:
            raise field_error("What is streamed is not divided; copy it, or hold a fold out by the program.", "folds")
        if self.mode == "stream" and self.version:
            raise field_error(
                "What is streamed is read while the run goes on, so nothing keeps it to a version; copy or cache it.",
                "version",
            )
        if self.fold and self.folds and self.fold > self.folds:
            raise field_error(f"There are {self.folds} folds, from 1 on.", "fold")
        return self

    @model_serializer
    def _short(self) -> Any:
        if self.is_name:
            return self.datastore
        fields = {field.alias or name: getattr(self, name) for name, field in type(self).model_fields.items()}
        return {
            key: value
            for key, value in fields.items()
            if value not in (None, "") and (key, value) not in (("mode", "auto"), ("when", "succeeded"))
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        name = {"type": "string", "minLength": 1, "maxLength": MAX_NAME}
        if handler.mode == "serialization":
            # A custom serializer has no schema; use the validation schema.
            whole = cls.model_json_schema(mode="validation")["anyOf"][1]
        else:
            whole = handler.resolve_ref_schema(handler(core))
        return {"description": cls.__doc__, "anyOf": [name, {**whole, "description": "What a name cannot say."}]}

    @property
    def is_name(self) -> bool:
        """True if the name of a datastore expresses the whole value."""
        return self.datastore is not None and not (self.path or self.version or self.is_divided or self.mode != "auto")

    @property
    def is_divided(self) -> bool:
        """True if tasks see only a part of the files."""
        return self.mode == "shard" or bool(self.folds)

    @property
    def manner(self) -> str:
        """For users: how the input reaches the tasks; "" for the default."""
        words = [WORDS[self.mode]] if self.mode in WORDS else []
        return ", ".join([*words, *([f"fold {self.fold} of {self.folds} held out"] if self.folds else [])])

    @property
    def words(self) -> str:
        """For users, in one line: "digits/train", "prepare/3"."""
        version = f"@{self.version}" if self.version else ""
        return "/".join(part for part in (self.datastore or self.from_, self.path) if part) + version

    @property
    def where(self) -> str:
        """The value of a form's choice: the name of a datastore, or `from:` and a cluster; JSON where neither suffices."""
        if self.when != "succeeded":
            return json.dumps({"from": self.from_, "when": self.when})
        return self.datastore or f"{FROM}{self.from_}"


def input_of(spec: Mapping[str, Any]) -> InputSpec | None:
    """The input of a spec in JSON, or of a part of one; None if it has none."""
    return InputSpec.stored(spec["input"]) if spec.get("input") else None


def read_where(text: str) -> Any:
    """The inverse of `where` and `write_text`: one form field as JSON of a manifest; None for nothing."""
    if text.startswith("{"):
        try:
            return orjson.loads(text)
        except ValueError:
            return text
    return ({"from": text.removeprefix(FROM)} if text.startswith(FROM) else text) or None


def write_text(value: InputSpec | None) -> str:
    """The whole value for one form field: as `where`, or as JSON where `where` loses something; "" for None."""
    if value is None:
        return ""
    document = value.model_dump(mode="json", by_alias=True)
    return value.where if read_where(value.where) == document else json.dumps(document, ensure_ascii=False)
