"""Loads portal/network/outgoing.py by path for the agent's programs, which run without third-party packages: importing its
package would import Celery."""

from __future__ import annotations

import importlib.util
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from portal.network import outgoing as outgoing
else:
    _root = os.path.abspath(__file__).rsplit("/clusters/", 1)[0]
    _found = importlib.util.spec_from_file_location(
        "_outgoing", os.path.join(_root, "portal", "network", "outgoing.py")
    )
    outgoing = sys.modules["_outgoing"] = importlib.util.module_from_spec(_found)
    _found.loader.exec_module(outgoing)
