"""The behaviour of simulated nodes: rules for kwok, which acts as every kubelet.

A pod on such a node starts at once and runs until annotations say how it ends:

    plane/exit-code: "0"               its containers end with this code: Succeeded or Failed
    plane/reason: OOMKilled            the reason beside that code; otherwise Completed or Error, as the kubelet writes it
    plane/waiting: ImagePullBackOff    it does not start, for this reason, while the annotation exists
    plane/lingers: "yes"               when deleted, its program uses its full grace period while the annotation exists

A container with PLANE_SECONDS in its environment ends by itself with code 0 that many seconds after its pod began.
A task whose command ends with a line `true` ends by itself, as it would anywhere. So does one with a command so long that it is
stored outside its pod (frameworks/parallel.py). A pod template may contain the annotations. Pods are assumed not to restart
(restartPolicy: Never). A deleted pod first reports how its containers ended (143, SIGTERM) and then disappears, as with a real
kubelet. Times are those of the simulation.
"""

from __future__ import annotations

import json
from typing import Any

# Nodes with this label are simulated; a node that loses it falls silent.
SIMULATED = "plane/simulated"
EXIT_CODE = "plane/exit-code"
REASON = "plane/reason"
WAITING = "plane/waiting"
LINGERS = "plane/lingers"


def config() -> str:
    """Returns the configuration file for kwok: one JSON document per rule, which is valid YAML."""
    # kwok's configuration requires all of these if it has any.
    options = {
        "podPlayStageParallelism": 16,
        "nodePlayStageParallelism": 8,
        "nodeLeaseParallelism": 4,
        "podsOnNodeSyncParallelism": 4,
        "nodeLeaseDurationSeconds": 40,
        "enablePodsOnNodeSyncListPager": True,
    }
    documents = [
        {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": options},
        _stage("Node", "node-ready", [(_READY, "NotIn", "True")], _NODE_READY),
        _stage(
            "Pod", "pod-waits", [_ALIVE, (_PHASE, "In", "Pending"), (_note(WAITING), "Exists"), _NOT_SAID], _POD_WAITS
        ),
        _stage("Pod", "pod-starts", [_ALIVE, (_PHASE, "In", "Pending"), (_note(WAITING), "DoesNotExist")], _POD_STARTS),
        _stage("Pod", "pod-ends", [_ALIVE, (_PHASE, "In", "Running"), (_note(EXIT_CODE), "Exists")], _POD_ENDS),
        _stage(
            "Pod", "pod-ends-itself", [_ALIVE, (_PHASE, "In", "Running"), (_COMMAND, "In", "true")], _POD_ENDS_ITSELF
        ),
        _stage(
            "Pod",
            "pod-ends-in-time",
            [_ALIVE, (_PHASE, "In", "Running"), (_SECONDS, "Exists")],
            _POD_ENDS_ITSELF,
            at=_UNTIL,
        ),
        _stage(
            "Pod",
            "pod-is-ended",
            [_DELETED, (_PHASE, "In", "Pending", "Running"), (_note(LINGERS), "DoesNotExist")],
            _POD_IS_ENDED,
        ),
        # A grace period of 0 means that the kubelet is done; finalizers may keep the object longer.
        _stage("Pod", "pod-goes", [_DELETED, (_PHASE, "In", "Succeeded", "Failed"), (_GRACE, "In", "true")], None),
    ]
    return "\n---\n".join(json.dumps(document) for document in documents)


def _stage(kind: str, name: str, when: list[tuple[str, ...]], status: str | None, *, at: str = "") -> dict[str, Any]:
    """`at`: the expression of a time before which nothing happens."""
    expressions = [
        {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
        for key, operator, *values in when
    ]
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": expressions},
            **({"delay": {"durationFrom": {"expressionFrom": at}}} if at else {}),
            "next": {"delete": True} if status is None else {"statusTemplate": status},
        },
    }


def _note(name: str) -> str:
    return f'.metadata.annotations["{name}"]'


_READY = '.status.conditions.[] | select( .type == "Ready" ) | .status'
_PHASE = ".status.phase"
_COMMAND = (
    '.spec.containers.[] | select( .name == "task" ) | .command // [""] | last '
    '| if startswith("exec env -u TASK_COMMAND ") then "true" else ( split("\\n") | last | split(" ") | first ) end'
)
_SECONDS = '.spec.containers.[] | .env // [] | .[] | select( .name == "PLANE_SECONDS" ) | .value'
_UNTIL = f"( .status.startTime | fromdateiso8601 ) + ( [ {_SECONDS} ] | first | tonumber ) | todateiso8601"
_GRACE = "( .metadata.deletionGracePeriodSeconds // 0 ) > 0"
_ALIVE = (".metadata.deletionTimestamp", "DoesNotExist")
_DELETED = (".metadata.deletionTimestamp", "Exists")
_NOT_SAID = (".status.containerStatuses.[].state.waiting.reason", "DoesNotExist")

_NODE_READY = """
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- {lastHeartbeatTime: {{ $now | Quote }}, lastTransitionTime: {{ $now | Quote }}, message: {{ .message | Quote }},
   reason: {{ .reason | Quote }}, status: {{ .status | Quote }}, type: {{ .type | Quote }}}
{{ end }}
addresses:
- {address: {{ NodeIP | Quote }}, type: InternalIP}
- {address: {{ NodeName | Quote }}, type: Hostname}
nodeInfo:
  {architecture: amd64, operatingSystem: linux, kubeletVersion: v1.36.3, kubeProxyVersion: "", containerRuntimeVersion: simulated,
   kernelVersion: "", osImage: "", bootID: "", machineID: "", systemUUID: ""}
"""

_POD_WAITS = """
{{ $now := Now }}
{{ $reason := index .metadata.annotations "plane/waiting" }}
startTime: {{ $now | Quote }}
conditions:
- {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: Ready, status: "False", reason: ContainersNotReady, lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: "False", reason: ContainersNotReady, lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: false
  started: false
  restartCount: 0
  state: {waiting: {reason: {{ $reason | Quote }}, message: {{ printf "%s: %s" $reason .image | Quote }}}}
{{ end }}
"""

_POD_STARTS = """
{{ $now := Now }}
{{ $uid := .metadata.uid }}
startTime: {{ or .status.startTime $now | Quote }}
phase: Running
conditions:
- {type: PodReadyToStartContainers, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: Ready, status: "True", reason: "", lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: "True", reason: "", lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: {{ .image | Quote }}
  containerID: {{ printf "simulated://%s/%s" $uid .name | Quote }}
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
initContainerStatuses:
{{ range .spec.initContainers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: {{ .image | Quote }}
  containerID: {{ printf "simulated://%s/%s" $uid .name | Quote }}
  ready: true
  restartCount: 0
  {{ if eq ( or .restartPolicy "" ) "Always" }}
  started: true
  state: {running: {startedAt: {{ $now | Quote }}}}
  {{ else }}
  started: false
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
  {{ end }}
{{ end }}
{{ $ips := NodeIPsWith .spec.nodeName }}
{{ with $ips }}
hostIP: {{ index . 0 | Quote }}
hostIPs: [{ip: {{ index . 0 | Quote }}}]
{{ end }}
{{ $ips = PodIPsWith .spec.nodeName ( or .spec.hostNetwork false ) ( or .metadata.uid "" ) ( or .metadata.name "" )
   ( or .metadata.namespace "" ) }}
{{ with $ips }}
podIP: {{ index . 0 | Quote }}
podIPs: [{ip: {{ index . 0 | Quote }}}]
{{ end }}
"""

# Containers end with $code and $reason, sidecars then with 0. A container that never ran has no end.
_ENDED = """
{{ $now := Now }}
{{ $ready := "PodFailed" }}
{{ if eq $code "0" }}{{ $ready = "PodCompleted" }}{{ end }}
phase: {{ if eq $code "0" }}Succeeded{{ else }}Failed{{ end }}
conditions:
- {type: Ready, status: "False", reason: {{ $ready | Quote }}, lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: "False", reason: {{ $ready | Quote }}, lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .status.containerStatuses }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: {{ .imageID | Quote }}
  ready: false
  started: false
  restartCount: 0
  {{ if .state.running }}
  containerID: {{ .containerID | Quote }}
  state: {terminated: {exitCode: {{ $code }}, reason: {{ $reason | Quote }}, startedAt: {{ .state.running.startedAt | Quote }},
          finishedAt: {{ $now | Quote }}, containerID: {{ .containerID | Quote }}}}
  {{ else }}
  state: {terminated: {exitCode: 137, reason: ContainerStatusUnknown}}
  {{ end }}
{{ end }}
initContainerStatuses:
{{ range .status.initContainerStatuses }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: {{ .imageID | Quote }}
  containerID: {{ .containerID | Quote }}
  ready: false
  started: false
  restartCount: 0
  {{ if .state.running }}
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ .state.running.startedAt | Quote }},
          finishedAt: {{ $now | Quote }}, containerID: {{ .containerID | Quote }}}}
  {{ else }}
  state:
{{ YAML .state 2 }}
  {{ end }}
{{ end }}
"""

_POD_ENDS = (
    """
{{ $code := index .metadata.annotations "plane/exit-code" }}
{{ $reason := "Error" }}
{{ if eq $code "0" }}{{ $reason = "Completed" }}{{ end }}
{{ $reason = or ( index .metadata.annotations "plane/reason" ) $reason }}
"""
    + _ENDED
)

_POD_ENDS_ITSELF = '{{ $code := "0" }}{{ $reason := "Completed" }}' + _ENDED
_POD_IS_ENDED = '{{ $code := "143" }}{{ $reason := "Error" }}' + _ENDED
