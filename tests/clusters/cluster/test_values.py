"""Values that a link fills into the form."""

from __future__ import annotations

from typing import Any

import pytest

from clusters.cluster.form.values import set_values

COMMAND = 'python train.py --learning-rate 0.1 --batch-size=64 model.depth=3 --name "a b" | tee log --learning-rate'


@pytest.mark.parametrize(
    ("said", "env", "command"),
    [
        ("LR=0.3", "LR=0.3 | SEED=1", COMMAND),
        ("lr=1e-3", "LR=1e-3 | SEED=1", COMMAND),
        ("batch_size=128", "LR=0.1 | SEED=1", COMMAND.replace("64", "128")),
        ("model.depth=5", "LR=0.1 | SEED=1", COMMAND.replace("depth=3", "depth=5")),
        # It is there twice, a value with a space, no variable, and what no link may say.
        ("learning-rate=0.3", None, COMMAND),
        ("name=c", None, COMMAND),
        ("EPOCHS=3", None, COMMAND),
        ("LD_PRELOAD=x.so", None, COMMAND),
        ("SEED=$(id)", None, COMMAND),
        ("SEED=1 | PATH=x", None, COMMAND),
        ("batch-size=64;id", None, COMMAND),
        ("SEED", None, COMMAND),
    ],
)
def test_a_link_changes_what_is_there_to_plain_values(said: str, env: str | None, command: str) -> None:
    filled, unknown = set_values({"env": "LR=0.1 | SEED=1", "command": COMMAND, "name": "x"}, [said])
    assert filled == {"env": env or "LR=0.1 | SEED=1", "command": command, "name": "x"}
    assert unknown == ([] if env else [said.partition("=")[0]])


def test_the_form_is_filled_and_nothing_starts(make_cluster: Any, people: Any, as_person: Any) -> None:
    cluster = make_cluster("show1", phase="Failed", command="train --lr 0.1", env={"SEED": "1"})
    client, run = as_person(people.alice), cluster.current_run_id
    for page in ("/clusters/ops-demo/show1/change?", "/clusters/new?clone=ops-demo/show1&"):
        shown = client.get(f"{page}set=lr=0.3&set=SEED=7&set=EPOCHS=3")
        form = shown.context["form"]
        assert (form["command"].value(), form["env"].value()) == ("train --lr 0.3", "SEED=7")
        assert "no variable or option “EPOCHS”" in shown.content.decode()
    cluster.refresh_from_db()
    assert (cluster.current_run_id, cluster.spec["env"]) == (run, {"SEED": "1"})
    assert as_person(people.mallory).get("/clusters/ops-demo/show1/change?set=lr=0.3").status_code == 404
