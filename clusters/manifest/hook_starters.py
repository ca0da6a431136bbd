"""Starter hooks: what most teams want done before or after a run. Pure.

A team uses one as it is, by a tick in the form of a cluster, or fills it into the form of a hook of its own and changes it. A
ticked one is a whole hook in the manifest, so nothing has to be saved first. `COPY_TO` and `NOTIFY` need an answer besides: the
datastore, and the address.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusters.manifest.hook_spec import HookSpec, On

COPY_TO, NOTIFY, ADDRESS = "copy-to", "notify", "URL"


@dataclass(frozen=True)
class Starter:
    """`title` and `description` are displayed; the rest fills the fields of the form of a hook."""

    name: str
    title: str
    description: str
    on: On
    command: str
    env: str = ""
    output_path: str = ""
    model: str = ""

    def hook(self, output: str = "", address: str = "") -> HookSpec:
        """The hook of a cluster. `output` is the datastore of `COPY_TO`, `address` that of `NOTIFY`; the others need none."""
        return HookSpec(
            name=self.name,
            on=self.on,
            command=self.command,
            env={ADDRESS: address} if self.name == NOTIFY else {},
            output=output or None if self.name == COPY_TO else None,
            output_path=self.output_path or None,
            model=self.model or None,
        )


def starter_of(hook: HookSpec) -> Starter | None:
    """The starter that `hook` is, unchanged but for its datastore or address; None if it is another hook."""
    starter = STARTERS.get(hook.name)
    if starter is None or why_not(hook.name, *answers_of(hook)) or starter.hook(*answers_of(hook)) != hook:
        return None
    return starter


def answers_of(hook: HookSpec) -> tuple[str, str]:
    """The datastore and the address of a hook; "" for none."""
    return hook.output or "", hook.env.get(ADDRESS, "")


def why_not(name: str, output: str, address: str) -> str:
    """What a starter still needs, in a sentence; "" for nothing."""
    if name == COPY_TO and not output:
        return "Choose the datastore to copy to."
    if name == NOTIFY and not address.startswith(("http://", "https://")):
        return "Give the address to notify, like https://example.com/runs."
    return ""


CHECK = """\
python - <<'END'
import os, pathlib, sys
if not os.environ["PORTAL_INPUT"]:
    sys.exit("The run reads no input; there is nothing to check.")
top = pathlib.Path(os.environ["PORTAL_INPUT"])
sizes = {each: each.stat().st_size for each in top.rglob("*") if each.is_file()}
print(len(sizes), "files,", sum(sizes.values()), "bytes")
for each, size in sizes.items():
    if not size:
        print("empty:", each.relative_to(top))
sys.exit(not any(sizes.values()) and "The input has no file with anything in it.")
END
"""
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
TELL = """\
python - <<'END'
import os, urllib.request
request = urllib.request.Request(os.environ["URL"], os.environ["PORTAL_FACTS"].encode(), {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=60) as answer:
    print(answer.status, answer.reason)
END
"""

STARTERS = {
    each.name: each
    for each in (
        Starter(
            "check-data",
            "Check the data",
            "Ends the run before it takes a GPU if there is nothing in its input",
            "before",
            CHECK,
        ),
        Starter(
            "save-model",
            "Save a model version",
            "Registers what the run wrote as the next version of a model, with its origin and metrics",
            "success",
            SAVE,
            output_path="models/{name}/{run}",
            model="{name}",
        ),
        Starter(COPY_TO, "Copy the output", "Copies what the run wrote to another datastore", "success", COPY),
        Starter(
            NOTIFY,
            "Notify",
            "Sends the facts of the run as JSON to an address, where tasks reach a network",
            "always",
            TELL,
            env=f"{ADDRESS}=https://example.com/runs",
        ),
    )
}
