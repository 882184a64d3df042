"""The `http` node: send a request, with templates in everything that is sent."""

from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any
from urllib.parse import urlencode

from keyrun.flows import jsons
from keyrun.flows.errors import NodeFailed
from keyrun.flows.scope import Given, scope
from keyrun.flows.secrets import kept_out
from keyrun.flows.templates import as_mapping, as_text, renderable
from keyrun.flows.web import Exchange
from keyrun.runtime.graphs.output_limit import OUTPUT
from keyrun.runtime.steps.current_step import current_step

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def http(
    url: str,
    *,
    method: str = "GET",
    params: Mapping[str, Any] | str | None = None,
    headers: Mapping[str, Any] | str | None = None,
    json: Any = None,
    form: Mapping[str, Any] | str | None = None,
    body: str | None = None,
    accept: Collection[int] = (),
    follow_redirects: bool = False,
    idempotency_header: str | None = "Idempotency-Key",
    env: Collection[str] = (),
    max_output: int = OUTPUT,
    where: str = "http",
) -> Callable[[Given], Coroutine[Any, Any, dict[str, Any]]]:
    """Return a node that sends an HTTP request. Its output is `{status, headers, body}`.

    - `url`, `params`, `headers`: the request, with templates. `params` and `headers` may each be
      one template that gives the whole mapping.
    - `json`, `form`, `body`: the content of the request, with templates. Pass at most one of them.
      `form` may be one template that gives the whole mapping.
    - `accept`: further statuses that are not a failure. By default only 2xx is accepted.
    - `follow_redirects`: Follow redirects.
    - `idempotency_header`: the header with the idempotency key of the step, by which a server can
      recognise a repeated request. None sends no such header.
    - `env`: the names of environment variables that templates can use as `env.NAME`.
    - `max_output`: the number of bytes that the answer may have.
    - `where`: the name of the node in errors.
    """
    if method.upper() not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    bodies = {"json": json, "form": form, "body": body}
    given_bodies = [name for name, value in bodies.items() if value is not None]
    if len(given_bodies) > 1:
        raise ValueError(
            f"a request has one body, got {' and '.join(given_bodies)}; keep one of them"
        )
    for status in accept:
        if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError(f"accept requires statuses from 200 to 599, got {status!r}")
    sent = {"url": url, "params": params or {}, "headers": headers or {}, **bodies}
    parts = {name: renderable(_plain(value), f"{where}.{name}") for name, value in sent.items()}

    async def http(given: Given) -> dict[str, Any]:
        known = scope(given, env)
        rendered = {name: part.render(known) for name, part in parts.items()}
        lines = {
            name: _header(name, value, where)
            for name, value in as_mapping(rendered["headers"], f"{where}.headers").items()
        }
        if idempotency_header is not None:
            lines.setdefault(idempotency_header, current_step().idempotency_key)
        content, kind = _content({name: rendered[name] for name in given_bodies}, where)
        if kind is not None and not any(name.lower() == "content-type" for name in lines):
            lines["Content-Type"] = kind
        exchange = Exchange(
            method=method.upper(),
            url=as_text(rendered["url"], f"{where}.url"),
            headers=lines,
            params=_pairs(rendered["params"], f"{where}.params"),
            content=content,
            accept=frozenset(accept),
            follow_redirects=follow_redirects,
            max_output=max_output,
        )
        with kept_out(known["env"]):
            return await exchange.perform()

    return http


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _content(body: dict[str, Any], where: str) -> tuple[bytes | None, str | None]:
    """Return the body of a request and its content type."""
    match body:
        case {"json": value}:
            return jsons.dumps(value).encode(), "application/json"
        case {"form": value}:
            form = urlencode(_pairs(value, f"{where}.form"), doseq=True)
            return form.encode(), "application/x-www-form-urlencoded"
        case {"body": value}:
            return as_text(value, f"{where}.body").encode(), None
    return None, None


def _header(name: str, value: Any, where: str) -> str:
    text = as_text(value, f"{where}.headers.{name}")
    if not f"{name}{text}".isascii():
        raise NodeFailed(
            f"the header {name!r} must be ASCII; use the filter urlencode for the rest"
        )
    return text


def _pairs(given: Any, where: str) -> dict[str, Any]:
    """Return the names and values of a query or a form. A value may be a list."""
    return {
        name: [_part(each, f"{where}.{name}") for each in value]
        if isinstance(value, list)
        else _part(value, f"{where}.{name}")
        for name, value in as_mapping(given, where).items()
    }


def _part(value: Any, where: str) -> str:
    """Return a value with the words that are usual for true, false and null in a query."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else as_text(value, where)
