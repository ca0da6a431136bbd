"""Who gets the next place when all are taken."""

from __future__ import annotations

import asyncio

import pytest

from clusters.router.admission import MOST_WAITING, Hall, NoPlace
from clusters.router.table import AT_ONCE, Replica, Revision, Service, Table


def test_whoever_was_refused_at_a_replica_goes_before_all_who_wait_and_is_not_one_too_many() -> None:
    async def story() -> None:
        hall, until = Hall(), asyncio.get_running_loop().time() + 10
        replicas = (Replica(1, "127.0.0.1:1"), Replica(2, "127.0.0.1:2"))
        hall.swap(Table([Service(7, "digits-ops", 1, revisions=(Revision(3, 1, 100, replicas=replicas),))]))
        had = [await hall.place(7, until) for _ in range(2 * AT_ONCE)]
        waiting = [asyncio.create_task(hall.place(7, until)) for _ in range(MOST_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(NoPlace):
            await hall.place(7, until)
        refused = next(each for each in had if each.replica.id == 1)
        hall.leave_out(refused)
        hall.leave(refused)
        again = asyncio.create_task(hall.place(7, until, again=True))
        await asyncio.sleep(0)
        hall.leave(next(each for each in had if each.replica.id == 2))
        assert (await again).replica.id == 2
        assert not any(each.done() for each in waiting)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(story())
