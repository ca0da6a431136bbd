"""The fixtures themselves: the servers answer, and the people of the tests satisfy the database's own rules."""

import pytest
from django.core.cache import cache
from django.db import IntegrityError, connection, transaction

from portal.models import Membership


def test_servers_answer(people, s3, bucket):
    assert sorted(people.ops.members.values_list("username", flat=True)) == ["alice", "bob", "victor"]
    assert bucket in [found["Name"] for found in s3.client.list_buckets()["Buckets"]]
    cache.set("greeting", "hello")
    assert cache.get("greeting") == "hello"


def test_the_database_keeps_at_least_one_owner(people):
    with pytest.raises(IntegrityError, match="1 to 4 owners"), transaction.atomic():
        Membership.objects.filter(user=people.alice).delete()
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
