"""The notebook that a cluster runs from its first cell to its last. Pure."""

from __future__ import annotations

import json
import keyword
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue, StringConstraints

from clusters.manifest.env import no_nul
from portal.manifests import Strict

MAX_PARAMETERS = 100


def notebook_path(value: str) -> str:
    """Validates and returns the path. Raises ValueError."""
    if not value.endswith(".ipynb") or value.startswith("/") or {"", ".", ".."} & set(no_nul(value).split("/")):
        raise ValueError("Give a path below the home, without a leading '/' and without '..', that ends in .ipynb.")
    return value


def _parameter(value: str) -> str:
    if not value.isidentifier() or keyword.iskeyword(value):
        raise ValueError(f"“{value[:60]}” is no name of a variable of Python.")
    return value


def _storable(value: dict[str, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        is_one = "\\u0000" not in text and bool(text.encode())
    except ValueError:
        is_one = False
    if not is_one:
        raise ValueError("Use finite numbers, and text without NUL characters.")
    return value


def plain_notebook(text: str) -> str:
    """The notebook without outputs and attachments. Raises ValueError unless it is a Python notebook."""
    try:
        notebook = json.loads(text)
        language = notebook["metadata"].get("kernelspec", {}).get("language") or "python"
        cells = [{key: value for key, value in cell.items() if key != "attachments"} for cell in notebook["cells"]]
        is_one = notebook["nbformat"] == 4 and all(isinstance(cell["cell_type"], str) for cell in cells)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_one = False
    if not is_one:
        raise ValueError("This is no notebook (nbformat 4); open and save it in JupyterLab.")
    if language != "python":
        raise ValueError("Only notebooks in Python are run.")
    for cell in cells:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    return json.dumps({**notebook, "cells": cells}, separators=(",", ":"))


class NotebookSpec(Strict):
    """A notebook that is run from its first cell to its last. Outputs in `source` are dropped."""

    path: Annotated[str, StringConstraints(max_length=400), AfterValidator(notebook_path)] = Field(
        examples=["work/train.ipynb"],
        description="Below the home that it was read from; its outputs are kept under its name.",
    )
    source: Annotated[str, AfterValidator(plain_notebook)] = Field(description="The text of the file.")
    parameters: Annotated[
        dict[Annotated[str, AfterValidator(_parameter)], JsonValue],
        Field(max_length=MAX_PARAMETERS),
        AfterValidator(_storable),
    ] = Field(
        default_factory=dict,
        examples=[{"epochs": 3}],
        description="Set behind the cell that is tagged “parameters”, or first.",
    )
