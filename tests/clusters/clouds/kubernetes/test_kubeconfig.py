"""An untrusted kubeconfig can't make the portal run a program or read a file."""

import base64
import json

import pytest
import yaml
from cryptography import x509

from clusters.clouds.drivers.kubernetes.api import kubeconfig
from clusters.clouds.drivers.kubernetes.api.kubeconfig import Unusable
from tests.kube.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("keys"), "127.0.0.1")


@pytest.fixture(scope="module")
def certificate(authority):
    found = authority.issue("portal", file="portal")
    return [base64.b64encode(path.read_bytes()).decode() for path in found]


@pytest.fixture
def config(authority):
    """config(cluster={…}, user={…}, …) → text of a kubeconfig; defaults are valid."""

    def make(*, cluster=None, user=None, drop=(), **more):
        server = {
            "server": "https://kubernetes.example.com:6443",
            "certificate-authority-data": base64.b64encode(authority.path.read_bytes()).decode(),
        } | (cluster or {})
        found = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "main",
            "contexts": [{"name": "main", "context": {"cluster": "one", "user": "me", "namespace": "x"}}],
            "clusters": [{"name": "one", "cluster": {key: value for key, value in server.items() if key not in drop}}],
            "users": [{"name": "me", "user": user if user is not None else {"token": "abc.def"}}],
        } | more
        return yaml.safe_dump(found)

    return make


@pytest.mark.parametrize(
    ("claims", "ends"),
    [
        ({"exp": 1_800_000_000}, 1_800_000_000),
        ({"sub": "portal"}, None),
        ({"exp": "soon"}, None),
        ({"exp": 1e300}, None),
    ],
)
def test_a_token_says_when_it_ends(claims: object, ends: int | None) -> None:
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    found = kubeconfig.credentials_end({"users": [{"user": {"token": f"e30.{part}.x"}}]})
    assert (found and found.timestamp()) == ends
    assert kubeconfig.credentials_end({"users": [{"user": {"token": "opaque"}}]}) is None
    assert kubeconfig.credentials_end({"users": [{"user": {}}]}) is None


def test_a_client_certificate_says_when_it_ends(config, certificate):
    user = {"client-certificate-data": certificate[0], "client-key-data": certificate[1]}
    (loaded,) = x509.load_pem_x509_certificates(base64.b64decode(certificate[0]))
    assert kubeconfig.credentials_end(kubeconfig.read(config(user=user))) == loaded.not_valid_after_utc


def test_only_what_is_used_is_kept(config, authority):
    text = config(
        users=[{"name": "me", "user": {"token": "abc"}}, {"name": "other", "user": {"exec": {"command": "rm"}}}],
        preferences={"colors": True},
    )
    kept = kubeconfig.read(text)
    assert "rm" not in json.dumps(kept)
    assert kept["users"] == [{"name": "user", "user": {"token": "abc"}}]
    assert kubeconfig.address(kept) == "https://kubernetes.example.com:6443"
    assert kubeconfig.read(json.dumps(kept)) == kept


def test_a_client_certificate_is_kept_with_its_key(config, certificate):
    user = {"client-certificate-data": certificate[0], "client-key-data": certificate[1]}
    assert kubeconfig.read(config(user=user))["users"][0]["user"] == user


@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        ({"exec": {"command": "aws", "args": ["eks", "get-token"]}}, "run the program “aws”"),
        ({"exec": None, "token": "abc"}, "run the program"),
        ({"auth-provider": {"name": "gcp"}}, "the plug-in “gcp”"),
        ({"tokenFile": "/etc/passwd"}, "reads a file by “tokenFile”"),
        ({"client-certificate": "/etc/x", "client-key-data": "eA=="}, "reads a file by “client-certificate”"),
        ({"client-key": "/etc/shadow"}, "“client-key-data”; `kubectl config view --raw --flatten`"),
        ({"username": "admin", "password": "x"}, "”, which the portal does not know"),
        ({"token": "abc", "as": "system:admin"}, "“as”, which the portal does not know"),
        ({"token": "two words"}, "was all of it copied"),
        ({"token": ["x"]}, "not a text"),
        ({}, "has no credentials"),
        ({"client-certificate-data": "eA==", "client-key-data": "eA=="}, "not a private key"),
        ({"client-certificate-data": "%", "client-key-data": "eA=="}, "not written in base64"),
    ],
)
def test_credentials_that_are_no_plain_secrets_are_refused(config, user, sentence):
    with pytest.raises(Unusable, match=r".") as refused:
        kubeconfig.read(config(user=user))
    assert sentence in str(refused.value)


def test_a_key_must_belong_to_its_certificate(config, authority, certificate):
    other = base64.b64encode(authority.issue("other", file="other")[1].read_bytes()).decode()
    with pytest.raises(Unusable, match="does not belong"):
        kubeconfig.read(config(user={"client-certificate-data": certificate[0], "client-key-data": other}))


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        ({"certificate-authority": "/etc/ssl/ca.crt"}, "reads a file by “certificate-authority”"),
        ({"certificate-authority-data": "eA=="}, "not a certificate in PEM"),
        ({"proxy-url": "socks5://10.0.0.1:1080"}, "by HTTP proxies without a password"),
        ({"proxy-url": "http://me:secret@10.0.0.1:3128"}, "by HTTP proxies without a password"),
        ({"proxy-urls": "http://10.0.0.1"}, "“proxy-urls”, which the portal does not know. Take it out if"),
        ({"server": "file:///etc/passwd"}, "not an address"),
        ({"server": "https://me:secret@example.com"}, "not an address"),
        ({"server": "https://example.com:99999"}, "not an address"),
        ({"server": ""}, "not an address"),
        ({"server": "http://example.com"}, "could read and change everything"),
        ({"insecure-skip-tls-verify": True}, "could read and change everything"),
    ],
)
def test_servers_that_are_no_plain_addresses_are_refused(config, cluster, sentence):
    with pytest.raises(Unusable, match=r".") as refused:
        kubeconfig.read(config(cluster=cluster))
    assert sentence in str(refused.value)


def test_an_unchecked_certificate_has_to_be_allowed(config):
    text = config(cluster={"insecure-skip-tls-verify": True})
    assert kubeconfig.read(text, insecure=True)["clusters"][0]["cluster"] == {
        "server": "https://kubernetes.example.com:6443",
        "insecure-skip-tls-verify": True,
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "not a kubeconfig"),
        ("just words", "not a kubeconfig"),
        ("[1, 2]", "not a kubeconfig"),
        ("kind: Secret", "not a kubeconfig"),
        ("a: [1\nb", "not YAML in line"),
        ("!!python/object/apply:os.system [id]", "not YAML"),
        ("[" * 5000, "not YAML"),
        ("x" * 300_000, "longer than 256 KiB"),
        ("kind: Config", "no current context"),
        ("current-context: main", "no context “main”"),
        ("current-context: [1]", "not a text"),
        ("current-context: main\ncontexts: {}", "no context “main”"),
        ("current-context: main\ncontexts: [{name: main, context: {cluster: x}}]", "no cluster “x”"),
    ],
)
def test_what_is_no_kubeconfig_is_said_to_be_none(text, sentence):
    with pytest.raises(Unusable, match=r".") as refused:
        kubeconfig.read(text)
    assert sentence in str(refused.value)


def test_another_context_can_be_chosen(config):
    contexts = [
        {"name": name, "context": {"cluster": "one", "user": user}} for name, user in (("main", "me"), ("b", "you"))
    ]
    users = [{"name": "me", "user": {"token": "mine"}}, {"name": "you", "user": {"token": "yours"}}]
    kept = kubeconfig.read(config(contexts=contexts, users=users), "b")
    assert (kept["current-context"], kept["users"][0]["user"]) == ("b", {"token": "yours"})
    with pytest.raises(Unusable, match="no context “c”"):
        kubeconfig.read(config(), "c")
