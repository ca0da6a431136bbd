"""Errors of a cloud. Their texts are shown to people."""


class CloudError(Exception):
    """The cloud cannot do this now; retry later. `after`: the seconds that the cloud asked to wait, None if it did not."""

    after: float | None = None


class Unanswered(CloudError):
    """No answer: the connection could not be made, broke, or was silent for too long."""


class CloudRefused(CloudError):
    """The cloud will never do this as requested; a retry is useless. The text says what to change."""


class NotOurs(CloudRefused):
    """The place of the run belongs to others. Nothing of the run exists there, and nothing was changed."""


class WatchExpired(CloudError):
    """The position is older than the cloud's history (HTTP 410): list again and compare."""
