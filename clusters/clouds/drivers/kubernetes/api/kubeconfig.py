"""Sanitizes a kubeconfig from a person: one server and one set of credentials, with everything inline.

A kubeconfig may name programs to run and files to read, and loading it does both with the portal's rights. So only what is listed
here is taken over: a server, its certificate authority, a token or a client certificate. The rest is not stored; anything whose
omission would change the meaning is refused. Pure.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

LARGEST = 256 * 1024

_PROGRAMS = {
    "exec": "It would make the portal run the program “{}” to sign in",
    "auth-provider": "It signs in by the plug-in “{}”",
}
_FILES = {
    "certificate-authority": "certificate-authority-data",
    "client-certificate": "client-certificate-data",
    "client-key": "client-key-data",
    "tokenFile": "token",
}
_ADVICE = "Use the token of a service account, or a client certificate, written into the kubeconfig itself."
# Accepted keys of a cluster and a user; `extensions` and the like are notes of other programs.
_CLUSTER = ("server", "certificate-authority-data", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
_UNKNOWN = {"cluster": "Take it out if the cluster can be reached without it.", "user": _ADVICE}
_USER = ("token", "client-certificate-data", "client-key-data")
_NOTES = ("extensions", "disable-compression")


class Unusable(ValueError):
    """The text is a sentence for the person who gave the kubeconfig."""


def read(text: str, context: str = "", *, insecure: bool = False) -> dict[str, Any]:
    """Returns the part of a kubeconfig that `context` (default: its current one) names, ready to be stored. Raises Unusable.

    `insecure` accepts a server without certificate checks. Idempotent: reading the result returns the same.
    """
    found = _parse(text)
    name = context or _text(found, "current-context", "It")
    if not name:
        raise Unusable("It has no current context; say which one to use.")
    chosen = _named(found, "contexts", "context", name)
    server = _named(found, "clusters", "cluster", _text(chosen, "cluster", f"Context “{name}”"))
    user = _named(found, "users", "user", _text(chosen, "user", f"Context “{name}”"))
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": "cluster", "user": "user"}}],
        "clusters": [{"name": "cluster", "cluster": _server(server, insecure=insecure)}],
        "users": [{"name": "user", "user": _user(user)}],
    }


def credentials_end(config: Mapping[str, Any]) -> dt.datetime | None:
    """Returns when the credentials of a sanitized kubeconfig expire: `exp` of a JWT (its signature is not verified here), or the
    end of a client certificate. None for other tokens, and without credentials."""
    user = (config.get("users") or [{}])[0].get("user", {})
    try:
        if certificate := user.get("client-certificate-data"):
            return x509.load_pem_x509_certificates(base64.b64decode(certificate))[0].not_valid_after_utc
        claims = str(user.get("token") or "").split(".")[1]
        ends = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"]
        return dt.datetime.fromtimestamp(ends, dt.UTC)
    except (IndexError, LookupError, TypeError, ValueError, OverflowError, OSError):
        return None


def address(config: Mapping[str, Any]) -> str:
    return str(config["clusters"][0]["cluster"]["server"])


def _parse(text: str) -> dict[str, Any]:
    if len(text) > LARGEST:
        raise Unusable(f"It is longer than {LARGEST // 1024} KiB.")
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        raise Unusable(f"It is not YAML{f' in line {mark.line + 1}' if mark else ''}.") from error
    if not isinstance(found, dict) or found.get("kind", "Config") != "Config":
        raise Unusable("It is not a kubeconfig: that is a YAML or JSON file with clusters, users and contexts.")
    return found


def _named(found: Mapping[str, Any], plural: str, singular: str, name: str) -> dict[str, Any]:
    items = found.get(plural)
    for item in items if isinstance(items, list) else []:
        if isinstance(item, dict) and item.get("name") == name and isinstance(item.get(singular), dict):
            inner: dict[str, Any] = item[singular]
            return inner
    raise Unusable(f"It has no {singular} “{name}”.")


def _text(found: Mapping[str, Any], key: str, whose: str) -> str:
    value = found.get(key, "")
    if not isinstance(value, str):
        raise Unusable(f"{whose} has a {key} that is not a text.")
    return value


def _server(found: Mapping[str, Any], *, insecure: bool) -> dict[str, Any]:
    _refuse_others(found, "cluster", _CLUSTER)
    server = _text(found, "server", "The cluster").rstrip("/")
    try:
        parts = urlsplit(server)
        usable = parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.username is not None or parts.query or parts.fragment:
        raise Unusable("Its server is not an address like https://kubernetes.example.com:6443.")
    kept: dict[str, Any] = {"server": server}
    if proxy := _text(found, "proxy-url", "The cluster"):
        kept["proxy-url"] = _proxy(proxy)
    unchecked = found.get("insecure-skip-tls-verify", False)
    if (unchecked or parts.scheme == "http") and not insecure:
        raise Unusable(
            "Whoever is on the way could read and change everything: the server's certificate would not be checked. Give "
            "its certificate-authority-data, or allow it under “Insecure” for a cluster that is only for trying out."
        )
    if unchecked:
        return {**kept, "insecure-skip-tls-verify": True}
    if authority := _data(found, "certificate-authority-data"):
        _certificates(authority, "certificate-authority-data")
        kept["certificate-authority-data"] = base64.b64encode(authority).decode()
    if name := _text(found, "tls-server-name", "The cluster"):
        kept["tls-server-name"] = name
    return kept


def _proxy(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.username is not None or parts.path.rstrip("/") or parts.query or parts.fragment:
        raise Unusable(
            "Its proxy-url is not an address like http://proxy.example.com:3128. The portal reaches clusters by HTTP proxies "
            "without a password."
        )
    return text.rstrip("/")


def _user(found: Mapping[str, Any]) -> dict[str, Any]:
    for key, sentence in _PROGRAMS.items():
        if key in found:
            inner = found[key] if isinstance(found[key], dict) else {}
            raise Unusable(f"{sentence.format(inner.get('command') or inner.get('name') or '?')}. {_ADVICE}")
    _refuse_others(found, "user", _USER)
    if token := _text(found, "token", "The user"):
        if not token.isascii() or not token.isprintable() or " " in token:
            raise Unusable("Its token has spaces or special characters; was all of it copied?")
        return {"token": token}
    certificate, private_key = _data(found, "client-certificate-data"), _data(found, "client-key-data")
    if not certificate or not private_key:
        raise Unusable(f"It has no credentials. {_ADVICE}")
    try:
        private = load_pem_private_key(private_key, password=None)
    except (ValueError, TypeError) as error:
        raise Unusable("Its client-key-data is not a private key in PEM without a password.") from error
    if private.public_key() != _certificates(certificate, "client-certificate-data")[0].public_key():
        raise Unusable("Its client-key-data does not belong to its client-certificate-data.")
    return {
        "client-certificate-data": base64.b64encode(certificate).decode(),
        "client-key-data": base64.b64encode(private_key).decode(),
    }


def _refuse_others(found: Mapping[str, Any], what: str, known: tuple[str, ...]) -> None:
    for key in found:
        if key in _FILES:
            raise Unusable(
                f"Its {what} reads a file by “{key}”, which would be one of the portal's own machine. Write its content into "
                f"“{_FILES[key]}”; `kubectl config view --raw --flatten` does that."
            )
        if key not in (*known, *_NOTES):
            raise Unusable(f"Its {what} has “{key}”, which the portal does not know. {_UNKNOWN[what]}")


def _data(found: Mapping[str, Any], key: str) -> bytes:
    try:
        return base64.b64decode("".join(_text(found, key, "It").split()), validate=True)
    except binascii.Error as error:
        raise Unusable(f"Its {key} is not written in base64.") from error


def _certificates(data: bytes, key: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise Unusable(f"Its {key} is not a certificate in PEM.") from error
