"""Where runs write in their datastores. Pure."""

from __future__ import annotations


def output_folder(template: str, *, name: str, run: int) -> str:
    """The folder of one run inside its output datastore, without slashes at either end."""
    return template.replace("{name}", name).replace("{run}", str(run)).strip("/")
