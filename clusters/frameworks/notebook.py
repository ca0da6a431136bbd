"""Runs a Jupyter notebook from the first cell to the last, by our own program on nbclient, which comes with JupyterLab.

The source without outputs is part of the spec, so that a run stays reproducible whatever happens to the file it was read from.
After each cell the executed notebook is written to /elearn/output under its name: partial results survive a failed cell, whose
error is the last line of the run. Parameters are set as papermill does: in a cell after the one tagged “parameters”, or before
all others.

Not papermill: it uses the same nbclient, and what it adds (parameters, saving after each cell) is twenty lines here. Every image
would need it and its dependencies; it refuses notebooks that name no language; and when a kernel is killed (tried with 2.7) it
ends with a traceback, and the notebook does not show where.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import ClassVar

from clusters.frameworks.base import MASTER, MASTER_DONE, Addresses, Framework, Launch, Resources, Spec, prepared
from clusters.frameworks.programs import text
from portal.manifests import field_error

RUN = text("notebook_run.py")
# Maximum size of the packed notebook in bytes. It is passed as one environment variable, which Linux limits to 128 KiB.
MAX_PACKED = 96 * 1024


class Notebook(Framework):
    name = "notebook"
    title = "Notebook"
    modes = ("batch",)
    needs_command = False
    runs_notebook = True
    roles = (MASTER,)
    completions = (MASTER_DONE,)
    reserved_env: ClassVar[frozenset[str]] = frozenset({"PORTAL_NOTEBOOK"})

    def validate(self, spec: Spec) -> None:
        super().validate(spec)
        if spec.notebook is None:
            raise field_error("Name the notebook; “Run as cluster” of an application does.", "notebook")
        if len(packed(spec)) > MAX_PACKED:
            sentence = (
                f"Without its outputs, and packed, it has more than {MAX_PACKED // 1024} KiB; put data into files."
            )
            raise field_error(sentence, "notebook", "source")
        if not spec.output:
            raise field_error("Name a datastore: the notebook is kept there with its outputs.", "output")

    def launch(self, spec: Spec, role: str, addresses: Addresses, resources: Mapping[str, Resources]) -> Launch:
        return Launch(prepared(spec.command, ("python", "-c", RUN)), {"PORTAL_NOTEBOOK": packed(spec)})


def packed(spec: Spec) -> str:
    """Returns the spec's notebook in the form that notebook_run.py unpacks."""
    assert spec.notebook is not None
    said = {"path": spec.notebook.path, "source": spec.notebook.source, "parameters": dict(spec.notebook.parameters)}
    return base64.b64encode(zlib.compress(json.dumps(said).encode(), 9)).decode()
