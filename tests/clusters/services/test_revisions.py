"""Deploying, promoting, rolling back and scaling, as rows for the loop. Nothing is started here."""

import pytest
from django.core.exceptions import PermissionDenied

from clusters.model_registry.actions import move_alias
from clusters.model_registry.models import ModelAlias, ModelVersion
from clusters.services import actions, revisions
from clusters.services.manifest import DeploySpec, ScaleSpec
from clusters.services.models import Replica, Rollout
from portal.errors import Conflict, Invalid
from portal.manifests import parse
from portal.models import Event

pytestmark = pytest.mark.django_db(transaction=True)


def at(error):
    return {".".join(each.path): each.message for each in error.value.errors}


def serves(revision, *slots):
    """What the loop writes once a revision's replicas are up."""
    service = revision.service
    for slot in slots:
        Replica.objects.create(
            service=service, revision=revision, slot=slot, state="serving", address=f"127.0.0.1:{slot}"
        )


def promoted(service):
    """What the loop writes once the new revision has taken over and the old one is kept warm."""
    rollout = revisions.living(service)
    revisions.end(rollout, Rollout.Phase.PROMOTED, "")
    service.revisions.update(weight=0, mirrored=False)
    service.revisions.filter(pk=rollout.to_revision_id).update(weight=100)
    return service.revisions.get(pk=rollout.to_revision_id)


def weights(service):
    return {each.number: each.weight for each in service.revisions.all()}


def champion():
    return ModelAlias.objects.get(name="champion", until=None).version.number


def test_a_version_is_deployed_as_the_service_says_or_as_the_one_who_deploys_it(people, service):
    serves(promoted(service), 1)
    first = actions.deploy(service, DeploySpec(version=2), acting_user=people.alice)
    assert (first.kind, first.phase, first.by_hand, first.minutes) == ("rolling", "Starting", False, 0)
    assert (first.from_revision.number, first.to_revision.model, first.to_revision.weight) == (1, "digits/2", 0)
    said = DeploySpec(version=3, kind="canary", weight=25, minutes=3, promote="by-hand", reason="faster")
    second = actions.deploy(service, said, acting_user=people.alice)
    assert (second.kind, second.weight, second.minutes, second.by_hand, second.reason) == (
        "canary",
        25,
        3,
        True,
        "faster",
    )
    first.refresh_from_db()
    assert (first.phase, first.message) == ("Cancelled", "Version 3 came before it was done.")
    assert weights(service) == {1: 100, 2: 0, 3: 0}
    assert actions.deploy(service, said, acting_user=people.alice) == second
    assert service.rollouts.count() == 3
    service.refresh_from_db()
    assert service.acts_for == people.alice


def test_what_answers_already_is_not_deployed_again(people, service):
    promoted(service)
    assert actions.deploy(service, DeploySpec(), acting_user=people.bob) is None
    rollout = actions.deploy(service, DeploySpec(version=2), acting_user=people.bob)
    ended = actions.deploy(service, DeploySpec(version=1), acting_user=people.bob)
    assert (ended, ended.phase) == (rollout, "Cancelled")
    assert revisions.living(service) is None
    assert weights(service) == {1: 100, 2: 0}


def test_what_cannot_be_deployed_is_refused_and_nothing_changes(people, service, model):
    promoted(service)
    with pytest.raises(Invalid) as found:
        actions.deploy(service, DeploySpec(version=9), acting_user=people.bob)
    assert at(found) == {"version": "ops-demo has no model “digits” with a version 9."}
    ModelVersion.objects.filter(number=2).update(state="Changed", message="a.txt is another one.")
    with pytest.raises(Invalid) as found:
        actions.deploy(service, DeploySpec(version=2), acting_user=people.bob)
    assert list(at(found)) == ["version"]
    for act in (
        lambda user: actions.deploy(service, DeploySpec(version=3), acting_user=user),
        lambda user: actions.rollback(service, acting_user=user),
        lambda user: actions.promote(service, acting_user=user),
        lambda user: actions.scale(service, ScaleSpec(replicas=2), acting_user=user),
    ):
        for user in (people.victor, people.mallory):
            with pytest.raises(PermissionDenied):
                act(user)
    assert service.rollouts.count() == 1


def test_an_alias_that_moves_twice_leaves_the_second_version_to_come(people, service, model):
    serves(promoted(service), 1)
    for number in (2, 3):
        move_alias(model, "champion", number, acting_user=people.bob)
        actions.deploy(service, DeploySpec(), acting_user=people.bob)
    first, second = service.rollouts.order_by("number")[1:]
    assert (first.phase, second.phase, second.to_revision.model) == ("Cancelled", "Starting", "digits/3")
    assert (second.from_revision.number, weights(service)) == (1, {1: 100, 2: 0, 3: 0})


def test_requests_that_were_moved_already_stay_where_they_are_answered_until_the_next_version_does(people, service):
    serves(promoted(service), 1, 2)
    rollout = actions.deploy(service, DeploySpec(version=2), acting_user=people.bob)
    serves(rollout.to_revision, 3)
    revisions.to_phase(rollout, Rollout.Phase.SHIFTING, "")
    service.revisions.filter(number=1).update(weight=67)
    service.revisions.filter(number=2).update(weight=33)
    actions.deploy(service, DeploySpec(version=3), acting_user=people.bob)
    assert weights(service) == {1: 67, 2: 33, 3: 0}
    assert service.revisions.get(number=2).wanted == 1
    actions.rollback(service, acting_user=people.bob)
    assert weights(service) == {1: 100, 2: 0, 3: 0}
    assert service.revisions.get(number=2).wanted == 0


def test_a_disabled_service_is_deployed_without_a_comparison(people, service):
    promoted(service)
    actions.disable_service(service, acting_user=people.bob)
    rollout = actions.deploy(service, DeploySpec(version=2, kind="canary"), acting_user=people.bob)
    service.refresh_from_db()
    assert (service.desired, rollout.kind) == ("running", "rolling")


def test_a_canary_is_promoted_by_hand_once_it_answers(people, service):
    with pytest.raises(Conflict, match="does not answer yet"):
        actions.promote(service, acting_user=people.bob)
    promoted(service)
    with pytest.raises(Conflict, match="No rollout"):
        actions.promote(service, acting_user=people.bob)
    rollout = actions.deploy(service, DeploySpec(version=2, kind="canary"), acting_user=people.bob)
    revisions.to_phase(rollout, Rollout.Phase.COMPARING, "")
    for _ in range(2):
        found = actions.promote(service, acting_user=people.bob)
        assert (found.phase, found.message) == ("Shifting", f"Promoted by {people.bob.display_name}.")
    assert Event.objects.filter(verb="service.promoted").count() == 1


def test_a_canary_that_is_rolled_back_leaves_and_the_alias_stays(people, service, model):
    serves(promoted(service), 1)
    move_alias(model, "champion", 2, acting_user=people.bob)
    rollout = actions.deploy(service, DeploySpec(kind="canary", weight=20), acting_user=people.bob)
    revisions.to_phase(rollout, Rollout.Phase.COMPARING, "")
    service.revisions.filter(number=1).update(weight=80)
    service.revisions.filter(number=2).update(weight=20)
    ended = actions.rollback(service, "wrong labels.", acting_user=people.alice)
    assert (ended.phase, ended.message) == (
        "RolledBack",
        f"Rolled back by {people.alice.display_name}: wrong labels.",
    )
    assert weights(service) == {1: 100, 2: 0}
    assert service.revisions.get(number=2).wanted == 0
    assert champion() == 2


def test_a_version_that_waits_for_somebody_is_agreed_to_or_declined(people, service, model):
    promoted(service)

    def waits():
        return revisions.begin_rollout(
            service, model.versions.get(number=2), kind="rolling", weight=10, minutes=10, by_hand=False, reason="", by=None,
            gated=True,
        )  # fmt: skip

    gated = waits()
    assert (gated.phase, gated.to_revision.wanted) == ("Gated", 0)
    declined = actions.rollback(service, acting_user=people.bob)
    assert (declined.phase, declined.message) == ("Cancelled", f"Declined by {people.bob.display_name}.")
    service.refresh_from_db()
    gated = waits()
    agreed = actions.deploy(service, DeploySpec(version=2, kind="canary", weight=5), acting_user=people.bob)
    agreed.refresh_from_db()
    assert (agreed, agreed.phase, agreed.kind, agreed.weight) == (gated, "Starting", "canary", 5)
    assert agreed.to_revision.wanted == 1


def test_what_is_still_warm_answers_again_at_once_and_its_alias_names_it(people, service, model):
    one = promoted(service)
    serves(one, 1, 2)
    move_alias(model, "champion", 2, acting_user=people.bob)
    actions.deploy(service, DeploySpec(), acting_user=people.bob)
    two = promoted(service)
    serves(two, 3, 4)
    service.refresh_from_db()
    route = service.route
    back = actions.rollback(service, "it is slower", acting_user=people.alice)
    assert (back.phase, back.from_revision, back.to_revision, back.reason) == ("Promoted", two, one, "it is slower")
    assert weights(service) == {1: 100, 2: 0}
    service.refresh_from_db()
    assert service.route == route + 1
    assert champion() == 1
    # A second rollback returns to the newer revision.
    actions.rollback(service, acting_user=people.alice)
    assert weights(service) == {1: 0, 2: 100}
    assert champion() == 2


def test_what_is_cold_is_made_again_as_it_was(people, service, service_manifest):
    promoted(service)
    with pytest.raises(Conflict, match="No revision answered before"):
        actions.rollback(service, acting_user=people.bob)
    assert not actions.can_roll_back(service)
    changed = service_manifest(env={"THREADS": "4"})
    actions.change_service(service, changed, acting_user=people.bob)
    promoted(service)
    assert actions.can_roll_back(service)
    back = actions.rollback(service, acting_user=people.bob)
    assert (back.phase, back.kind, back.to_revision.number, back.to_revision.spec["env"]) == (
        "Starting",
        "rolling",
        3,
        {},
    )
    promoted(service)
    ModelVersion.objects.update(state="Changed", message="a.txt is another one.")
    with pytest.raises(Conflict, match=r"cannot be made again: .*a\.txt is another one"):
        actions.rollback(service, acting_user=people.bob)


def test_a_rollback_fails_of_a_first_rollout_and_of_a_disabled_service(people, service):
    assert not actions.can_roll_back(service)
    with pytest.raises(Conflict, match="Nothing answered before revision 1"):
        actions.rollback(service, acting_user=people.bob)
    actions.disable_service(service, acting_user=people.bob)
    with pytest.raises(Conflict, match="start it first"):
        actions.rollback(service, acting_user=people.bob)


def test_a_changed_definition_is_rolled_out_and_a_changed_number_only_scales(people, service, service_manifest):
    promoted(service)
    change = actions.change_service
    change(service, service_manifest(), acting_user=people.bob)
    assert not Event.objects.filter(verb="service.changed").exists()

    change(service, service_manifest(replicas={"least": 2, "most": 4}), acting_user=people.bob)
    service.refresh_from_db()
    assert (service.rollouts.count(), service.revisions.get().wanted, service.scale["replicas"]) == (1, 2, 2)

    same = {"least": 2, "most": 4}
    change(service, service_manifest(replicas=same, env={"A": "b"}), acting_user=people.alice)
    rollout = revisions.living(service)
    assert (rollout.to_revision.model, rollout.to_revision.spec["env"], rollout.created_by) == (
        "digits/1",
        {"A": "b"},
        people.alice,
    )
    change(service, service_manifest(model="digits/3", replicas=same, env={"A": "b"}), acting_user=people.bob)
    assert revisions.living(service).to_revision.model == "digits/3"

    for wrong, field in (
        (service_manifest("other"), "metadata.name"),
        (service_manifest(appcode="flight-x"), "metadata.appcode"),
        (service_manifest(model="letters/1"), "spec.model"),
        (service_manifest(image="absent"), "spec.image"),
    ):
        with pytest.raises(Invalid) as found:
            change(service, wrong, acting_user=people.bob)
        assert list(at(found)) == [field]
    with pytest.raises(PermissionDenied):
        change(service, service_manifest(env={"A": "c"}), acting_user=people.victor)


def test_a_version_goes_on_answering_when_its_alias_has_moved_and_only_the_definition_changes(
    people, service, model, service_manifest
):
    promoted(service)
    move_alias(model, "champion", 2, acting_user=people.bob)
    actions.change_service(service, service_manifest(env={"A": "b"}), acting_user=people.bob)
    assert revisions.living(service).to_revision.model == "digits/1"


@pytest.mark.parametrize(
    ("asked", "least", "most", "count"),
    [
        ({"replicas": 3}, 3, 3, 3),
        ({"least": 2, "most": 5}, 2, 5, 2),
        ({"most": 4}, 1, 4, 1),
        ({"target": 9}, 1, 1, 1),
        ({"replicas": 0}, 0, 1, 0),
        ({"least": 0}, 0, 1, 1),
    ],
)
def test_a_service_is_scaled_to_a_number_or_a_range(people, service, asked, least, most, count):
    promoted(service)
    actions.scale(service, parse(ScaleSpec, asked), acting_user=people.bob)
    service.refresh_from_db()
    assert (service.spec["replicas"]["least"], service.spec["replicas"]["most"]) == (least, most)
    assert (service.revisions.get().wanted, service.scale["replicas"]) == (count, count)
    assert service.rollouts.count() == 1


def test_a_number_of_replicas_that_never_fits_is_refused(people, service, service_manifest):
    with pytest.raises(Invalid) as found:
        actions.scale(service, ScaleSpec(least=3), acting_user=people.bob)
    assert at(found) == {"most": "At least 3 are more than at most 1."}
    actions.change_service(service, service_manifest(flavor="one-gpu"), acting_user=people.bob)
    for spec, field in ((ScaleSpec(replicas=50), "replicas"), (ScaleSpec(most=50), "most")):
        with pytest.raises(Invalid) as found:
            actions.scale(service, spec, acting_user=people.bob)
        assert "quota of ops-demo" in at(found)[field]
