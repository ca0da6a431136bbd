"""The base of all manifests: strict frozen values, and errors that name the invalid field.

A form, a REST body and a manifest file all become the same value, and actions accept nothing else, so all three accept
and refuse the same things. The value is validated on its own; whether names exist is checked against the database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Self, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from portal.errors import FieldError, Invalid

# Keys named in the message for a missing object.
MOST_KEYS = 4
DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


class Strict(BaseModel):
    """A frozen value with camelCase JSON keys (the Kubernetes convention) that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    @classmethod
    def stored(cls, value: Any) -> Self:
        """Reads what the database keeps, and ignores unknown keys: during a rolling upgrade, the next release writes some."""
        return cls.model_validate(value, extra="ignore")

    @classmethod
    def known(cls, value: Any) -> dict[str, Any]:
        """What `stored` reads, in JSON."""
        return cls.stored(value).model_dump(mode="json", by_alias=True)


class Manifest(Strict):
    """`{"kind", "metadata", "spec"}`; `status` is ours, and is ignored in requests."""

    @model_validator(mode="before")
    @classmethod
    def _drop_status(cls, value: Any) -> Any:
        return {key: item for key, item in value.items() if key != "status"} if isinstance(value, dict) else value


def dns_label(value: str) -> str:
    """An AfterValidator: returns `value` if it is valid in a host name and starts with a letter."""
    if not DNS_LABEL.fullmatch(value):
        raise ValueError("Use lower-case letters, digits and '-'; start with a letter and end with a letter or digit.")
    return value


def stripped(value: Any) -> Any:
    """A BeforeValidator: removes spaces around text."""
    return value.strip() if isinstance(value, str) else value


AppcodeName = Annotated[str, StringConstraints(min_length=1, max_length=63)]
DnsLabel = Annotated[str, StringConstraints(min_length=1, max_length=63), AfterValidator(dns_label)]


def field_error(message: str, *path: str) -> ValueError:
    """A ValueError for a rule over several fields, with the path of the invalid field (see `mistakes`)."""
    error = ValueError(message)
    error.field_path = path  # type: ignore[attr-defined]
    return error


Value = TypeVar("Value", bound=BaseModel)


def parse(model: type[Value], body: Any, /, **address: str) -> Value:
    """Parses `body` as a `model`. Metadata may leave out what the URL contains, but not contradict it. Raises Invalid,
    whose messages never contain the input."""
    if address and isinstance(body, dict) and isinstance(body.get("metadata", {}), dict):
        body = {**body, "metadata": {**address, **body.get("metadata", {})}}
    try:
        value = model.model_validate(body)
    except ValidationError as error:
        raise Invalid(mistakes(error)) from None
    for key, said in address.items():
        if getattr(value.metadata, key) != said:  # type: ignore[attr-defined]
            raise Invalid.at("metadata", key, message=f"The address of this request says “{said}”.")
    return value


def public_path(model: Any, path: Sequence[str]) -> tuple[str, ...]:
    """The path by JSON keys, as users know them: names of fields become their aliases, keys of dictionaries stay."""
    said = []
    for part in path:
        key, model = _below(model, part)
        said.append(key)
    return tuple(said)


def _below(kind: Any, part: str) -> tuple[str, Any]:
    """The JSON key that `part` means in a value of type `kind`, and the type of what is there; None if it is unknown."""
    kinds = (
        [each for each in get_args(kind) if each is not type(None)]
        if get_origin(kind) in (Union, UnionType)
        else [kind]
    )
    for each in kinds:
        if get_origin(each) is Annotated:
            return _below(get_args(each)[0], part)
        if get_origin(each) in (dict, list, tuple):
            return part, get_args(each)[get_origin(each) is dict]
        if isinstance(each, type) and issubclass(each, BaseModel):
            for name, field in each.model_fields.items():
                if part in (name, field.alias):
                    return field.alias or name, field.annotation
    return part, None


def mistakes(error: ValidationError) -> list[FieldError]:
    """The errors of pydantic, by paths of JSON keys, e.g. ("spec", "orgNode")."""
    out = []
    for item in error.errors(include_url=False, include_input=False):
        cause = (item.get("ctx") or {}).get("error")
        path = tuple(str(part) for part in item["loc"] if part != "[key]")
        path += tuple(getattr(cause, "field_path", ()))
        said = str(cause) if cause is not None else sentence(item["type"], item["msg"], item.get("ctx") or {})
        out.append(FieldError(path, said))
    return out


def _object(facts: Mapping[str, Any]) -> str:
    """The keys of the expected object, required ones first: {"size": …, "storageClass": …}."""
    name = facts.get("class_name")
    found = next((each for each in _all_below(Strict) if each.__name__ == name), None)
    if found is None:
        return "{…}"
    fields = sorted(found.model_fields.items(), key=lambda item: not item[1].is_required())
    keys = [f'"{field.alias or name}": …' for name, field in fields[:MOST_KEYS]]
    return f"{{{', '.join([*keys, *(['…'] if len(fields) > MOST_KEYS else [])])}}}"


def _all_below(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in kind.__subclasses__():
        yield each
        yield from _all_below(each)


def sentence(kind: str, message: str, facts: Mapping[str, Any]) -> str:
    """Pydantic's message as a sentence beside a field."""
    plain = {
        "missing": "Fill this in.",
        "extra_forbidden": "There is no such field.",
        "unexpected_keyword_argument": "There is no such field.",
        "string_too_short": "Fill this in.",
        "too_short": "Fill this in.",
        **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "Give a whole number."),
        **dict.fromkeys(("decimal_parsing", "decimal_type"), "Give a number, for example 500.00."),
        **dict.fromkeys(("float_parsing", "float_type", "finite_number"), "Give a number."),
        **dict.fromkeys(("bool_parsing", "bool_type"), "Say true or false."),
        "dict_type": "Give an object, {…}.",
        **dict.fromkeys(("model_type", "model_attributes_type"), f"Give an object, {_object(facts)}."),
        "string_type": "Give text.",
        "list_type": "Give a list, […].",
        **dict.fromkeys(("date_type", "date_parsing", "date_from_datetime_parsing"), "Give a day like 2027-03-31."),
    }
    limits = {
        "less_than_equal": "At most {le}.",
        "greater_than_equal": "At least {ge}.",
        "greater_than": "More than {gt}.",
        "less_than": "Less than {lt}.",
        "string_too_long": "At most {max_length} characters.",
        "too_long": "At most {max_length}"
        + (" entries." if facts.get("field_type") in ("List", "Dictionary", "Tuple") else " characters."),
        "literal_error": "One of {expected}.",
        "decimal_max_places": "At most {decimal_places} decimal places.",
    }
    if kind in limits:
        return limits[kind].format(**facts)
    return plain.get(kind, message[:1].upper() + message[1:] + ("" if message.endswith(".") else "."))
