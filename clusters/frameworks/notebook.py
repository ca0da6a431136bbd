"""A Jupyter notebook run from its first cell to its last, by a program of ours that knows nbclient, which JupyterLab brings.

The notebook's text is part of the spec, without its outputs, so that a run means the same for ever, whatever becomes of the file
that it was read from. What is run is written to /elearn/output after each cell, under the notebook's name: what was reached is
kept when a cell fails, too, and then its error is what the run says last. Parameters are set as papermill does, in a cell of
their own behind the one that is tagged “parameters”, or before all others.

Not papermill itself: it runs notebooks by the same nbclient, and what it has beside that (parameters, the notebook kept after
each cell) are twenty lines here. It would have to be in every image, with its dependencies; it refuses notebooks that name no
language; and when a kernel is killed (tried with 2.7) it ends with a traceback, and the notebook does not say where.
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
# Packed it has to be passed to a program, of which Linux takes 128 KiB.
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
    """What notebook_run.py unpacks."""
    assert spec.notebook is not None
    said = {"path": spec.notebook.path, "source": spec.notebook.source, "parameters": dict(spec.notebook.parameters)}
    return base64.b64encode(zlib.compress(json.dumps(said).encode(), 9)).decode()
