"""What an S3 server's errors mean: each becomes one helpful sentence, at the field that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from botocore import exceptions
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError, ReadTimeoutError

from datastores.drivers.base import DriverError, NotThere
from datastores.drivers.patience import ANSWER_BYTES, TooLong
from portal.network import outgoing

Raised = TypeVar("Raised", bound=BaseException)

# The server's error code → (invalid field, sentence).
_WORDS = {
    "NoSuchBucket": ("bucket", "There is no such bucket on this server."),
    "InvalidBucketName": ("bucket", "The server does not take this as the name of a bucket."),
    "InvalidAccessKeyId": ("access_key", "The server does not know this access key."),
    "SignatureDoesNotMatch": ("secret_key", "The secret key does not belong to this access key."),
    "AccessDenied": ("bucket", "The server knows this key, and it may not do that in this bucket."),
    "AllAccessDisabled": ("bucket", "The server has closed this bucket."),
    "ExpiredToken": ("access_key", "This access key has expired."),
    "RequestTimeTooSkewed": ("server", "The server's clock and ours differ too much."),
    "AuthorizationHeaderMalformed": ("region", "The bucket lies in another region."),
    "PermanentRedirect": ("region", "The bucket lies in another region."),
    "IllegalLocationConstraintException": ("region", "The bucket lies in another region."),
    "EntityTooLarge": ("", "The server does not take files of this size."),
    "QuotaExceeded": ("", "The bucket is full."),
    "XMinioStorageFull": ("", "The server's disks are full."),
    "SlowDown": ("", "The server is overloaded; try again in a minute."),
}
_ABSENT = {"NoSuchKey", "NoSuchUpload", "404", "NotFound"}
_DENIED = {"403", "Forbidden"}


@contextmanager
def driver_errors(server: str) -> Iterator[None]:
    """Converts botocore's exceptions to DriverErrors. `server` is the address in the settings."""
    where = server.split("://", 1)[1]
    try:
        yield
    except exceptions.ClientError as error:
        raise _from_answer(error) from error
    except exceptions.SSLError as error:
        raise DriverError(f"{where} has no certificate that we trust, or speaks no TLS.", "server") from error
    except (exceptions.ConnectTimeoutError, exceptions.ReadTimeoutError, ReadTimeoutError) as error:
        raise DriverError(f"Unreachable: {where} does not answer in time.", "server") from error
    except exceptions.EndpointConnectionError as error:
        raise DriverError(f"Unreachable: {_why(error)} at {where}.", "server") from error
    except (exceptions.HTTPClientError, HTTPError) as error:
        if _cause(error, TooLong):
            sentence = f"{where} answers with more than {ANSWER_BYTES // 2**20} MiB, as no S3 server does."
            raise DriverError(sentence, "server") from error
        if closed := _cause(error, outgoing.Closed):
            raise DriverError(str(closed), "server") from error
        raise DriverError(f"The connection to {where} broke.", "server") from error
    # Invalid numbers and times raise ValueError.
    except (exceptions.BotoCoreError, ResponseParserError, KeyError, ValueError) as error:
        raise DriverError(f"{where} answers, but not as an S3 server does.", "server") from error


def code_of(error: exceptions.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _from_answer(error: exceptions.ClientError) -> DriverError:
    word = code_of(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if word in _WORDS:
        field, sentence = _WORDS[word]
        return DriverError(sentence, field)
    if word in _ABSENT:
        return NotThere("There is no such file any more.")
    if word in _DENIED:
        return DriverError("The server refuses these keys.", "access_key")
    if status in (301, 307):
        return DriverError("The bucket lies in another region.", "region")
    if status >= 500:
        return DriverError(
            "The server answers with an error of its own; is this an S3 server, and is it well?", "server"
        )
    if not word:
        return DriverError("The server answers, but not as an S3 server does.", "server")
    # The message comes from the server and may be anything; its code is short, and the server's operator knows it.
    return DriverError(f"The server answers “{word[:60]}”.", "server")


def _why(error: BaseException) -> str:
    text = repr(_cause(error, OSError) or error.__cause__ or error.__context__ or error)
    if "Name or service" in text or "NameResolution" in text or "name resolution" in text:
        return "there is no server of this name"
    return "the connection is refused" if "refused" in text else "nothing answers"


def _cause(error: BaseException, kind: type[Raised]) -> Raised | None:
    """The first exception of `kind` among an error, its causes, and what botocore wrapped in it."""
    left: list[BaseException | None] = [error]
    while left:
        item = left.pop()
        if isinstance(item, kind):
            return item
        if item is not None:
            left += [getattr(item, "kwargs", {}).get("error"), item.__cause__]
    return None
