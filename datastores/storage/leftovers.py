"""Parts that clients of S3 have left in buckets: an upload for which nothing came for a day is given up, so that nobody pays for
ever for what no listing shows. A rule of the bucket's own lifecycle was refused: not every store keeps such rules, and it would
end those that go on, too."""

from __future__ import annotations

import datetime as dt
import logging

from django.utils import timezone

from datastores.models import Storage, Upload
from datastores.storage import store
from datastores.storage.store import StorageAway

log = logging.getLogger(__name__)

GIVEN_UP = dt.timedelta(days=1)
# Buckets of one round.
ROUND = 200


def drop_old() -> None:
    """In any order, so that all have their turn where there are more. May run twice or at once."""
    before = timezone.now() - GIVEN_UP
    for row in Storage.objects.exclude(own_key=None).order_by("?")[:ROUND]:
        # Those that began in the portal it ends by itself.
        own = Upload.objects.filter(datastore__appcode_id=row.appcode_id, touched_at__gte=before)
        try:
            count = store.drop_uploads(row.bucket, before, frozenset(own.values_list("remote", flat=True)))
        except StorageAway as error:
            log.warning("uploads that were left in buckets cannot be given up now: %s", error)
            return
        if count:
            log.info("%d uploads that were left in bucket %s are given up", count, row.bucket)
