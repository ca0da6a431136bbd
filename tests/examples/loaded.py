"""Modules that the fork server of the example programs preloads. Nothing else imports this file."""

import sys

from tests.examples.programs import EXAMPLES

sys.path.insert(0, str(EXAMPLES))
import digits  # noqa: F401
