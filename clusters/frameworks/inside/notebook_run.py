"""Runs a notebook, as `python -c` inside a task: cells in order, their output in the log, and after each cell the notebook with
its outputs in /elearn/output.

The kernel is the Python that runs this. When a cell fails or the kernel dies, the last lines name the cell and the reason.
"""

import base64
import json
import os
import sys
import zlib
from typing import Any

from clusters.frameworks.inside.hiding import hidden

# jsonschema loads it to check IRIs, which the schema of notebooks does not have: most of the time that these take to load.
with hidden("rfc3987_syntax"):
    import nbformat as untyped_nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

nbformat: Any = untyped_nbformat
OUTPUT, HOME = "/elearn/output", "/elearn/home"


class Client(NotebookClient):  # type: ignore[misc, unused-ignore]
    """Prints the output of cells as it arrives."""

    def process_message(self, msg: "dict[str, Any]", cell: Any, cell_index: int) -> Any:
        content = msg.get("content", {})
        if msg.get("msg_type") == "stream":
            print(content.get("text", ""), end="", flush=True)
        elif "text/plain" in content.get("data", {}):
            print(content["data"]["text/plain"], flush=True)
        return super().process_message(msg, cell, cell_index)


def with_parameters(notebook: Any, parameters: "dict[str, Any]") -> None:
    """Adds a cell that sets the parameters, after the one tagged “parameters”, or first."""
    if not parameters:
        return
    tags = [cell.get("metadata", {}).get("tags", []) for cell in notebook.cells]
    place = next((at + 1 for at, each in enumerate(tags) if "parameters" in each), 0)
    source = "# Parameters\n" + "".join(f"{name} = {value!r}\n" for name, value in parameters.items())
    cell = nbformat.v4.new_code_cell(source.rstrip(), metadata={"tags": ["injected-parameters"]})
    notebook.cells.insert(place, cell)


def folder_of(path: str) -> str:
    """Returns the working directory of the cells: the notebook's folder if its home is mounted, else the output."""
    beside = os.path.dirname(os.path.join(HOME, path))
    return beside if os.path.isdir(beside) else OUTPUT


def main() -> None:
    said = json.loads(zlib.decompress(base64.b64decode(os.environ.pop("PORTAL_NOTEBOOK"))))
    notebook = nbformat.reads(said["source"], as_version=4)
    with_parameters(notebook, said["parameters"])
    path = os.path.join(OUTPUT, os.path.basename(said["path"]))
    count = sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in notebook.cells)
    at, current = 0, nbformat.v4.new_code_cell()

    def begins(cell: Any, cell_index: int) -> None:
        nonlocal at, current
        at, current = at + 1, cell
        print(f"--- cell {at} of {count}", flush=True)
        nbformat.write(notebook, path)

    client = Client(
        notebook,
        timeout=None,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": folder_of(said["path"])}},
        on_cell_execute=begins,
    )
    try:
        client.execute()
    except CellExecutionError as error:
        print(f"Cell {at} of {count} failed: {error.ename}: {error.evalue}", file=sys.stderr, flush=True)
        sys.exit(1)
    except DeadKernelError:
        why = f"The kernel died in cell {at} of {count}; it may have needed more memory."
        print(why, file=sys.stderr, flush=True)
        # Shows the error at its cell in the saved notebook.
        died = nbformat.v4.new_output("error", ename="DeadKernelError", evalue=why, traceback=[why])
        current.outputs.append(died)
        sys.exit(1)
    finally:
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
