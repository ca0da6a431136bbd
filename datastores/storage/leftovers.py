"""Drops multipart uploads that S3 clients left in buckets and that were idle for a day, because users would
pay for data that no listing shows. We decided against a bucket's lifecycle rule: not every store supports it, and it would
also end active uploads."""

from __future__ import annotations

import datetime as dt
import logging

from django.utils import timezone

from datastores.models import Storage, Upload
from datastores.storage import store
from datastores.storage.store import StorageAway

log = logging.getLogger(__name__)

GIVEN_UP = dt.timedelta(days=1)
# Buckets per round.
ROUND = 200


def drop_old() -> None:
    """In random order, so that all have their turn if there are more. May run twice or at once."""
    before = timezone.now() - GIVEN_UP
    for row in Storage.objects.exclude(own_key=None).order_by("?")[:ROUND]:
        # The portal itself drops those that it has begun.
        own = Upload.objects.filter(datastore__appcode_id=row.appcode_id, touched_at__gte=before)
        try:
            count = store.drop_uploads(row.bucket, before, frozenset(own.values_list("remote", flat=True)))
        except StorageAway as error:
            log.warning("uploads that were left in buckets cannot be given up now: %s", error)
            return
        if count:
            log.info("%d uploads that were left in bucket %s are given up", count, row.bucket)
