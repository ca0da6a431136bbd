"""Detection of slow tasks from the steps that they print."""

from clusters.clouds.drivers.marks import Marker
from clusters.scalars.pace import pace, stragglers


def logged(*lines: tuple[float, str]) -> tuple[bytes, bytes]:
    """A log and its marks, from (second, text) pairs."""
    marker, data, marked = Marker(), b"", b""
    for second, text in lines:
        marked += marker.add(f"{text}\n".encode(), int((1_000_000 + second) * 1e6))
        data += f"{text}\n".encode()
    return data, marked


def test_a_pace_is_that_of_the_steps_that_are_printed():
    data, marked = logged(*((n / 2, f"step {n}: loss = 0.1") for n in range(41)))
    assert pace(data, 0, marked) == 2
    # The tail of a longer log, whose first line may be cut.
    cut = data.index(b"step 20") + 3
    assert pace(data[cut:], cut, marked) == 2
    # After a restart only the new steps count; the first seconds give no pace yet.
    again, marks_again = logged((0, "step 900"), (1, "restored"), *((n, f"step {2 * n}") for n in range(2, 12)))
    assert pace(again, 0, marks_again) == 2
    assert pace(*(lambda log: (log[0], 0, log[1]))(logged((0, "step 1"), (2, "step 9")))) is None
    assert pace(b"step 1\nstep 2\n", 0, b"") is None


def test_who_makes_less_than_half_of_the_median_of_its_role_falls_behind():
    workers = {("worker", n): 2.0 + n / 10 for n in range(8)}
    assert stragglers(workers) == []
    (slow,) = stragglers(workers | {("worker", 3): 0.5, ("master", 0): 0.1})
    assert (slow.name, slow.pace, slow.median) == ("worker-3", 0.5, 2.3)
    assert stragglers({("worker", 0): 1.0, ("worker", 1): 0.1}) == []
