"""What the apps above tell billing, which may not import them: each registers what it knows once, in `AppConfig.ready`."""

from __future__ import annotations

from collections.abc import Callable, Collection

from portal.hooks import Hook

# Of some consumers, those that go on until somebody ends them: a forecast reckons with them to the end of the month.
without_end: Hook[Callable[[Collection[str]], Collection[str]]] = Hook()
