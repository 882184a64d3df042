"""Problems: how errors look on the wire (RFC 9457), and how a Python client raises them again."""

import builtins
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import keyrun.errors
from keyrun._errors import KeyrunError
from keyrun.control.roles import NotAllowed
from keyrun.control.shapes import JSON, WIRE, Misplaced
from keyrun.runtime.errors import CallFailed
from keyrun.runtime.values import CircuitStatus, Failure, QuarantineCause
from keyrun.storage.payload import PayloadError, PayloadTypeError

MEDIA_TYPE = "application/problem+json"


class Refused(Exception):
    """Raised if a request is refused before an operation begins."""

    def __init__(
        self,
        status: int,
        name: str,
        detail: str,
        *,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.name = name
        self.headers = headers


ATTRIBUTES: dict[str, Any] = {
    "run_id": str | None,
    "key": str | None,
    "step": str | None,
    "reason": str | None,
    "failure": Failure,
    "cause": QuarantineCause,
    "status": CircuitStatus,
    "timeout": float,
    "pid": int | None,
}
"""The attributes of errors that go over the wire, with their types."""

STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (NotAllowed, 403),
    (keyrun.errors.Backpressure, 429),
    (keyrun.errors.TransientError, 503),
    (keyrun.errors.NoOwner, 503),
    (keyrun.errors.StoreReadOnly, 421),
    (keyrun.errors.StoreLocked, 421),
    (keyrun.errors.StoreLost, 421),
    (keyrun.errors.StoreClosed, 503),
    (keyrun.errors.StoreFull, 507),
    (keyrun.errors.StoreError, 503),
    (keyrun.errors.UnknownRun, 404),
    (keyrun.errors.UnknownGroup, 404),
    (keyrun.errors.UnknownWorkflow, 404),
    (keyrun.errors.UnknownEntity, 404),
    (keyrun.errors.UnknownMethod, 404),
    (keyrun.errors.InputMismatch, 409),
    (keyrun.errors.RunEnded, 409),
    (keyrun.errors.GateNotWaiting, 409),
    (keyrun.errors.RunFailed, 409),
    (keyrun.errors.RunCancelled, 409),
    (keyrun.errors.RunQuarantined, 409),
    (keyrun.errors.CallFailed, 409),
    (keyrun.errors.CallCycle, 409),
    (keyrun.errors.CallTimeout, 409),
    (keyrun.errors.ResultTimeout, 409),
    (Misplaced, 422),
    (PayloadError, 422),
    (PayloadTypeError, 422),
    (KeyrunError, 422),
    (ValueError, 422),
    (TypeError, 422),
)
"""The status code of errors. The first class that fits decides."""

RETRY_AFTER = 1
"""Seconds after which a caller may repeat a call that found the queue full or the owner closing."""


def status_of(error: BaseException) -> int:
    """Return the status code of an error."""
    if isinstance(error, Refused):
        return error.status
    return next((code for cls, code in STATUS if isinstance(error, cls)), 500)


def name_of(error: BaseException) -> str:
    """Return the name of the nearest public class of an error."""
    if isinstance(error, Refused):
        return error.name
    public = vars(keyrun.errors)
    for cls in type(error).__mro__:
        if public.get(cls.__name__) is cls or cls.__module__ == "builtins":
            return cls.__name__
    return "Exception"


def problem(error: BaseException, *, status: int | None = None) -> dict[str, Any]:
    """Return the problem object of an error."""
    code = status or status_of(error)
    name = name_of(error)
    found: dict[str, Any] = {
        "type": f"urn:keyrun:{name}",
        "title": HTTPStatus(code).phrase,
        "status": code,
        "detail": _hidden(error) if _is_internal(error, code) else str(error),
        "error": name,
    }
    for attribute, declared in ATTRIBUTES.items():
        value = getattr(error, attribute, None)
        if value is not None and isinstance(error, KeyrunError):
            found[attribute if attribute != "status" else "circuit"] = JSON.writer(declared)(value)
    return found


def _is_internal(error: BaseException, code: int) -> bool:
    known = KeyrunError | Refused | keyrun.errors.TransientError
    return code >= 500 and not isinstance(error, known)


def _hidden(error: BaseException) -> str:
    """Return the text of an error of Keyrun's own code, which may hold secrets."""
    return f"an internal error ({type(error).__name__}); the log of the server has the details"


def write_error(error: BaseException) -> list[Any]:
    """Return the form of an error for Python clients."""
    attributes = {
        name: WIRE.writer(declared)(value)
        for name, declared in ATTRIBUTES.items()
        if isinstance(error, KeyrunError) and (value := getattr(error, name, None)) is not None
    }
    detail = str(error) if status_of(error) != 500 else _hidden(error)
    return [name_of(error), detail, attributes]


def read_error(data: list[Any]) -> Exception:
    """Return the error that `write_error` wrote."""
    name, detail, attributes = data
    cls = getattr(keyrun.errors, name, None) or getattr(builtins, name, RuntimeError)
    if not (isinstance(cls, type) and issubclass(cls, Exception)):
        cls = RuntimeError
    error: Exception = cls.__new__(cls)
    error.args = (detail,)
    if issubclass(cls, KeyrunError):
        error.__dict__.update(dict.fromkeys(("run_id", "key", "step")))
        error.__dict__.update(read_attributes(attributes))
    return error


def raised_by(error: CallFailed) -> Exception:
    """Return the exception that a method of an entity raised, if its class is builtin. Classes of
    the application do not travel: return the error that describes the exception."""
    module, _, name = (error.failure.error_type or "").rpartition(".")
    cls = getattr(builtins, name, None) if module in ("", "builtins") else None
    if not (isinstance(cls, type) and issubclass(cls, Exception)):
        return error
    raised: Exception = cls.__new__(cls)
    raised.args = (error.failure.reason.partition(f" raised {name}: ")[2],)
    return raised


def read_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of an error."""
    return {
        name: WIRE.reader(ATTRIBUTES[name])(value)
        for name, value in attributes.items()
        if name in ATTRIBUTES
    }
