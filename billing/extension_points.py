"""Where the apps above, which billing may not import, register facts that it needs. Each registers once, in
`AppConfig.ready`."""

from __future__ import annotations

from collections.abc import Callable, Collection

from portal.extension_points import ExtensionPoint

# Returns those of the consumers that run until a person ends them. A forecast counts them to the end of the month.
without_end: ExtensionPoint[Callable[[Collection[str]], Collection[str]]] = ExtensionPoint()
