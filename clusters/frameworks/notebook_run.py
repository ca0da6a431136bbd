"""Runs a notebook, as `python -c` inside a task: each cell in its order, what it prints in the log, and the notebook with its
outputs in /elearn/output after each of them.

Its kernel is the Python that runs this. When a cell fails, or the kernel dies, the last lines say which cell and why.
"""

import base64
import json
import os
import sys
import zlib
from typing import Any

import nbformat as untyped_nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

nbformat: Any = untyped_nbformat
OUTPUT, HOME = "/elearn/output", "/elearn/home"


class Client(NotebookClient):  # type: ignore[misc, unused-ignore]
    """Prints what cells print, as they do."""

    def process_message(self, msg: "dict[str, Any]", cell: Any, cell_index: int) -> Any:
        content = msg.get("content", {})
        if msg.get("msg_type") == "stream":
            print(content.get("text", ""), end="", flush=True)
        elif "text/plain" in content.get("data", {}):
            print(content["data"]["text/plain"], flush=True)
        return super().process_message(msg, cell, cell_index)


def with_parameters(notebook: Any, parameters: "dict[str, Any]") -> None:
    """Sets them in a cell of their own, behind the one that is tagged “parameters”, or first of all."""
    if not parameters:
        return
    tags = [cell.get("metadata", {}).get("tags", []) for cell in notebook.cells]
    place = next((at + 1 for at, each in enumerate(tags) if "parameters" in each), 0)
    source = "# Parameters\n" + "".join(f"{name} = {value!r}\n" for name, value in parameters.items())
    cell = nbformat.v4.new_code_cell(source.rstrip(), metadata={"tags": ["injected-parameters"]})
    notebook.cells.insert(place, cell)


def folder_of(path: str) -> str:
    """Where its cells are run: beside the notebook where its home is mounted, else where what they write is kept."""
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
        # Whoever opens the notebook sees it at its cell.
        died = nbformat.v4.new_output("error", ename="DeadKernelError", evalue=why, traceback=[why])
        current.outputs.append(died)
        sys.exit(1)
    finally:
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
