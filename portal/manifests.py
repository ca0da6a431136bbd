"""What all manifests have in common: strict frozen values, and errors that say which field to mend.

A form, a REST body and a manifest file all become the same value; nothing else reaches an action, so they accept and refuse
the same things. Whether a name in it exists is the database's business; what can be judged from the value is judged there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from portal.errors import FieldError, Invalid

# Of an object that was wanted, so many are named.
MOST_KEYS = 4
DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


class Strict(BaseModel):
    """A frozen value whose JSON keys are camelCase (the Kubernetes convention) and which refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Manifest(Strict):
    """`{"kind", "metadata", "spec"}`; `status` is ours and is ignored when it comes back."""

    @model_validator(mode="before")
    @classmethod
    def _drop_status(cls, value: Any) -> Any:
        return {key: item for key, item in value.items() if key != "status"} if isinstance(value, dict) else value


def dns_label(value: str) -> str:
    """`value` when it may stand in a host name and starts with a letter; for a field's AfterValidator."""
    if not DNS_LABEL.fullmatch(value):
        raise ValueError("Use lower-case letters, digits and '-'; start with a letter and end with a letter or digit.")
    return value


AppcodeName = Annotated[str, StringConstraints(min_length=1, max_length=63)]
DnsLabel = Annotated[str, StringConstraints(min_length=1, max_length=63), AfterValidator(dns_label)]


def field_error(message: str, *path: str) -> ValueError:
    """A ValueError for a rule over several fields that carries the path of the field to mend (see `mistakes`)."""
    error = ValueError(message)
    error.field_path = path  # type: ignore[attr-defined]
    return error


Value = TypeVar("Value", bound=BaseModel)


def parse(model: type[Value], body: Any, /, **address: str) -> Value:
    """`body` as a `model`. What the address of a request says may be left out of the metadata, and not contradicted.

    Raises Invalid; what was sent stays out of its sentences.
    """
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


def mistakes(error: ValidationError) -> list[FieldError]:
    """What pydantic found, by paths of JSON keys, e.g. ("spec", "orgNode")."""
    out = []
    for item in error.errors(include_url=False, include_input=False):
        cause = (item.get("ctx") or {}).get("error")
        path = tuple(str(part) for part in item["loc"] if part != "[key]")
        path += tuple(getattr(cause, "field_path", ()))
        said = str(cause) if cause is not None else sentence(item["type"], item["msg"], item.get("ctx") or {})
        out.append(FieldError(path, said))
    return out


def _object(facts: Mapping[str, Any]) -> str:
    """The keys of the object that is wanted, required ones first: {"size": …, "storageClass": …}."""
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
    """Pydantic's words as one would say them beside a field."""
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
