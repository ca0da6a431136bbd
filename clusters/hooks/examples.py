"""Example hooks: what most teams want done after a run. Each can be filled into the form of a new hook."""

from __future__ import annotations

from dataclasses import dataclass

from clusters.manifest.hook_spec import On


@dataclass(frozen=True)
class Example:
    """`title` and `description` are displayed; the rest fills the fields of the form."""

    name: str
    title: str
    description: str
    on: On
    command: str
    env: str = ""
    output_path: str = ""
    model: str = ""


SAVE = """\
python - <<'END'
import json, os, pathlib
facts = json.loads(os.environ["PORTAL_FACTS"])
kept = ("appcode", "cluster", "run", "image", "code", "input", "metrics", "finished")
text = json.dumps({key: facts[key] for key in kept}, indent=2)
pathlib.Path("/elearn/output/model-version.json").write_text(text + "\\n")
print(text)
END
"""
COPY = """\
cp -rv "${PORTAL_OUTPUT:?The run has kept no output.}/." /elearn/output/
"""
NOTIFY = """\
python - <<'END'
import os, urllib.request
request = urllib.request.Request(os.environ["URL"], os.environ["PORTAL_FACTS"].encode(), {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=60) as answer:
    print(answer.status, answer.reason)
END
"""

EXAMPLES = {
    each.name: each
    for each in (
        Example(
            "save-model",
            "Save a model version",
            "Registers what the run wrote as the next version of a model, with its origin and metrics",
            "success",
            SAVE,
            output_path="models/{name}/{run}",
            model="{name}",
        ),
        Example("copy-to", "Copy the output", "Copies what the run wrote to another datastore", "success", COPY),
        Example(
            "notify",
            "Notify",
            "Sends the facts of the run as JSON to an address, where tasks reach a network",
            "always",
            NOTIFY,
            env="URL=https://example.com/runs",
        ),
    )
}
