"""portal/outgoing.py for programs of the agent, which run without other people's packages: loaded by its path, because the
package around it brings Celery."""

from __future__ import annotations

import importlib.util
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from portal import outgoing as outgoing
else:
    _root = os.path.abspath(__file__).rsplit("/clusters/", 1)[0]
    _found = importlib.util.spec_from_file_location("_outgoing", os.path.join(_root, "portal", "outgoing.py"))
    outgoing = sys.modules["_outgoing"] = importlib.util.module_from_spec(_found)
    _found.loader.exec_module(outgoing)
