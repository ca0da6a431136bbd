"""What the fork server of the example programs loads; nobody else imports it."""

import sys

from tests.examples.programs import EXAMPLES

sys.path.insert(0, str(EXAMPLES))
import digits  # noqa: F401
