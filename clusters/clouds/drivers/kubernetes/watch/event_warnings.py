"""Explains pods that do not start, by Events about them and their volumes. For display only. No network calls."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Set
from dataclasses import replace

from clusters.clouds.drivers.base import Seen, TaskSeen
from clusters.clouds.drivers.kubernetes.watch import reasons
from clusters.clouds.drivers.kubernetes.watch.objects import Object, Pod
from clusters.clouds.drivers.kubernetes.watch.owned import Parts
from clusters.clouds.drivers.kubernetes.watch.workloads import Why

# Older Events are outdated: controllers repeat current ones at least this often.
EVENT_AGE = dt.timedelta(minutes=10)
# Namespace and name.
Claim = tuple[str, str]


class Troubles:
    """`pods`: the known pods, updated in place. Ignores Events outside of `namespaces`."""

    def __init__(self, pods: dict[str, Pod], namespaces: Set[str], parts: Parts) -> None:
        self._pods, self._namespaces, self._parts = pods, namespaces, parts
        self._of_pods: dict[str, Why] = {}
        # By claim: why it has no volume, and the pods that wait for it.
        self._of_claims: dict[Claim, str] = {}
        self._claimed: defaultdict[Claim, set[str]] = defaultdict(set)

    def note_event(self, event: Object, now: dt.datetime) -> list[Seen]:
        at = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
        if at is None or now - dt.datetime.fromisoformat(at) > EVENT_AGE:
            return []
        about, text = event["involvedObject"], event.get("message") or ""
        if about.get("namespace") not in self._namespaces:
            return []
        if event["reason"] == "FailedCreate":
            return self._parts.note_refusal((about["kind"], about["namespace"], about["name"]), text)
        if about["kind"] == "Pod":
            return self._note_pod(about.get("uid", ""), reasons.pod_trouble(event["reason"], text))
        if about["kind"] == "PersistentVolumeClaim" and event["reason"] == "ProvisioningFailed":
            return self._note_claim(about, text)
        return []

    def explained(self, pod: Object, seen: TaskSeen) -> TaskSeen:
        """Adds what Events reported to a pending pod."""
        if seen.reason == "Starting" and (why := self._of_pods.get(seen.uid)):
            return replace(seen, reason=why[0], message=why[1])
        if seen.reason in reasons.NO_NODE and "volume" in seen.message:
            for claim in self._claims_of(pod, seen.uid):
                if trouble := self._of_claims.get(claim):
                    return replace(seen, message=reasons.waits_for_volume(seen.message, trouble))
        return seen

    def forget(self, uid: str) -> None:
        """Forgets a pod that has started or is gone."""
        self._of_pods.pop(uid, None)

    def _note_pod(self, uid: str, why: Why | None) -> list[Seen]:
        pod = self._pods.get(uid)
        if why is None or pod is None or pod.seen.phase != "Pending" or not pod.seen.node:
            return []
        before, self._of_pods[uid] = self._of_pods.get(uid), why
        if pod.seen.reason != "Starting" and (pod.seen.reason, pod.seen.message) != before:
            return []
        seen = replace(pod.seen, reason=why[0], message=why[1])
        if seen == pod.seen:
            return []
        self._pods[uid] = replace(pod, seen=seen)
        return [seen]

    def _note_claim(self, about: Object, text: str) -> list[Seen]:
        claim = (about["namespace"], about["name"])
        if self._of_claims.get(claim) == text:
            return []
        self._of_claims[claim] = text
        news: list[Seen] = []
        for uid in list(self._claimed.get(claim, ())):
            pod = self._pods.get(uid)
            if pod is None or pod.seen.reason not in reasons.NO_NODE:
                self._claimed[claim].discard(uid)
                continue
            seen = replace(pod.seen, message=reasons.waits_for_volume(pod.seen.message, text))
            if seen != pod.seen:
                self._pods[uid] = replace(pod, seen=seen)
                news.append(seen)
        return news

    def _claims_of(self, pod: Object, uid: str) -> list[Claim]:
        found = [
            (pod["metadata"]["namespace"], each["persistentVolumeClaim"]["claimName"])
            for each in pod["spec"].get("volumes") or []
            if "persistentVolumeClaim" in each
        ]
        for claim in found:
            self._claimed[claim].add(uid)
        return found
