"""What a cloud may answer instead: each of these is shown to people, in its own words."""


class CloudError(Exception):
    """The cloud cannot do this now; repeat later. The text is shown to people. `after` is how many seconds the cloud asked
    to wait, None when it did not say."""

    after: float | None = None


class Unanswered(CloudError):
    """Nobody was there: no connection could be made, or it was lost or silent for too long before an answer came."""


class CloudRefused(CloudError):
    """The cloud will never do this as asked; repeating is useless. The text says what to change."""


class NotOurs(CloudRefused):
    """The place that a run was to have belongs to somebody else. Nothing of the run is there, and nothing was changed."""


class WatchExpired(CloudError):
    """The position is older than what the cloud remembers (HTTP 410): list again and compare."""
