"""The `http` node: a request to a server, with templates in all that is sent."""

from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any
from urllib.parse import urlencode

from keyrun.flows import jsons
from keyrun.flows.errors import NodeFailed
from keyrun.flows.scope import Given, scope
from keyrun.flows.secrets import kept_out
from keyrun.flows.templates import fillable
from keyrun.flows.web import Exchange
from keyrun.runtime.graphs.output_limit import OUTPUT
from keyrun.runtime.steps.current_step import current_step

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def http(
    url: str,
    *,
    method: str = "GET",
    params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    json: Any = None,
    form: Mapping[str, Any] | None = None,
    body: str | None = None,
    accept: Collection[int] = (),
    follow_redirects: bool = False,
    idempotency_header: str | None = "Idempotency-Key",
    env: Collection[str] = (),
    max_output: int = OUTPUT,
    where: str = "http",
) -> Callable[[Given], Coroutine[Any, Any, dict[str, Any]]]:
    """A node that sends a request and gives `{status, headers, body}`.

    `url`, `params`, `headers` and one of `json`, `form` and `body` may have templates in them;
    `env` names the variables of the environment that these may use as `env.NAME`. `accept` are
    statuses beyond 2xx that are an answer and not a failure. The idempotency key of the step is
    sent along under `idempotency_header`, so that a server can tell a repeated request.
    """
    if method.upper() not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if sum(each is not None for each in (json, form, body)) > 1:
        raise ValueError("a request has one body: give json, form or body, and not several")
    for status in accept:
        if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError(f"accept takes statuses from 200 to 599, got {status!r}")
    sent = {
        "url": url,
        "params": params,
        "headers": dict(headers or {}),
        "json": json,
        "form": form,
        "body": body,
    }
    parts = {name: fillable(value, f"{where}.{name}") for name, value in sent.items()}

    async def http(given: Given) -> dict[str, Any]:
        known = scope(given, env)
        filled = {name: part.fill(known) for name, part in parts.items()}
        lines = {name: _header(name, value) for name, value in filled["headers"].items()}
        if idempotency_header is not None:
            lines.setdefault(idempotency_header, current_step().idempotency_key)
        content, kind = _content(filled["json"] if json is not None else None, filled)
        if kind is not None and not any(name.lower() == "content-type" for name in lines):
            lines["Content-Type"] = kind
        exchange = Exchange(
            method=method.upper(),
            url=_text("the url", filled["url"]),
            headers=lines,
            params=_pairs("params", filled["params"]),
            content=content,
            accept=frozenset(accept),
            follow_redirects=follow_redirects,
            max_output=max_output,
        )
        with kept_out(known["env"]):
            return await exchange.perform()

    return http


def _content(json: Any, filled: dict[str, Any]) -> tuple[bytes | None, str | None]:
    if json is not None:
        return jsons.dumps(json).encode(), "application/json"
    if filled["form"] is not None:
        form = urlencode(_pairs("form", filled["form"]) or {}, doseq=True)
        return form.encode(), "application/x-www-form-urlencoded"
    if filled["body"] is not None:
        return _text("the body", filled["body"]).encode(), None
    return None, None


def _header(name: str, value: Any) -> str:
    text = _text(f"the header {name}", value)
    if not f"{name}{text}".isascii():
        raise NodeFailed(f"the header {name} must be ASCII; urlencode is a filter for what is not")
    return text


def _pairs(what: str, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What goes into a URL or a form, with the words for truth and nothing that are usual there."""
    if given is None:
        return None
    return {
        name: [_part(what, name, each) for each in value]
        if isinstance(value, list)
        else _part(what, name, value)
        for name, value in given.items()
    }


def _part(what: str, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else _text(f"{what}.{name}", value)


def _text(what: str, value: Any) -> str:
    if isinstance(value, str | int | float):
        return str(value)
    raise NodeFailed(f"{what} must be text, and its template gives a {type(value).__name__}")
