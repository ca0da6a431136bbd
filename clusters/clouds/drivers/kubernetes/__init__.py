"""The Kubernetes cloud: every role of a run is one object of the API server, every task one pod.

`names` and `manifests` say what is asked for, `states` what a pod's status means; these three are pure. `client` speaks to
the API server, `watch` follows it into a `mirror`, whose parts (`runs`, `parts`, `ends`, `attempts`, `troubles`, `damage`,
`capacity`) each remember one thing, and `cloud` puts them together as `base.Cloud`.
"""
