"""The `agent` node: request a chat completion from any endpoint with the protocol of OpenAI."""

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from keyrun.flows import jsons
from keyrun.flows.errors import NodeFailed, NodeUnavailable
from keyrun.flows.scope import Given, scope
from keyrun.flows.secrets import kept_out
from keyrun.flows.templates import as_list, as_mapping, as_text, renderable
from keyrun.flows.web import Exchange
from keyrun.runtime.graphs.output_limit import OUTPUT
from keyrun.runtime.steps.current_step import current_step

BASE_URL = "https://api.openai.com/v1"


def agent(
    prompt: str | None = None,
    *,
    model: str,
    system: str | None = None,
    messages: Sequence[Mapping[str, Any]] | str | None = None,
    options: Mapping[str, Any] | str | None = None,
    json: bool = False,
    base_url_env: str = "OPENAI_BASE_URL",
    key_env: str = "OPENAI_API_KEY",
    max_output: int = OUTPUT,
    where: str = "agent",
) -> Callable[[Given], Coroutine[Any, Any, dict[str, Any]]]:
    """Return a node that asks a language model over the chat protocol of OpenAI. Its output is
    `{content, model, finish_reason, usage, tool_calls, message}`.

    - `prompt`, `system`: templates of the user's and the system's message.
    - `messages`: the messages instead, with templates, or one template that gives the whole list.
      `message` in the output is the answer as a message, for the next request.
    - `model`: the name of the model.
    - `options`: further fields of the request, for example `temperature` or `tools`.
    - `json`: Ask for JSON. `content` is the decoded value.
    - `base_url_env`, `key_env`: the environment variables with the address and the key of the
      server. The key may be missing. Keyrun never stores or shows it.
    - `max_output`: the number of bytes that the answer may have.
    - `where`: the name of the node in errors.
    """
    if (prompt is None) == (messages is None):
        raise ValueError("an agent requires either 'prompt' or 'messages'")
    if messages is not None and system is not None:
        raise ValueError("'system' is for 'prompt'; make the system prompt the first of 'messages'")
    talk = None if messages is None else renderable(_plain(messages), f"{where}.messages")
    asked = [
        (role, f"{where}.{field}", renderable(text, f"{where}.{field}"))
        for role, field, text in (("system", "system", system), ("user", "prompt", prompt))
        if text is not None
    ]
    chosen = renderable(model, f"{where}.model")
    more = renderable(_plain(options or {}), f"{where}.options")

    async def agent(given: Given) -> dict[str, Any]:
        known = scope(given)
        request = {
            "model": as_text(chosen.render(known), f"{where}.model"),
            **as_mapping(more.render(known), f"{where}.options"),
        }
        if json:
            request["response_format"] = {"type": "json_object"}
        if talk is not None:
            request["messages"] = as_list(talk.render(known), f"{where}.messages")
        else:
            request["messages"] = [
                {"role": role, "content": as_text(text.render(known), at)}
                for role, at, text in asked
            ]
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": current_step().idempotency_key,
        }
        if key := os.environ.get(key_env):
            headers["Authorization"] = f"Bearer {key}"
        base = os.environ.get(base_url_env) or BASE_URL
        exchange = Exchange(
            method="POST",
            url=f"{base.rstrip('/')}/chat/completions",
            headers=headers,
            content=jsons.dumps(request).encode(),
            max_output=max_output,
        )
        with kept_out({key_env: key or ""}):
            return _answer((await exchange.perform())["body"], json)

    return agent


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return dict(value) if isinstance(value, Mapping) else list(value)


def _answer(body: Any, json: bool) -> dict[str, Any]:
    match body:
        case {"choices": [{"message": dict() as message, **choice}, *_]}:
            content = message.get("content")
        case _:
            raise NodeFailed("the endpoint did not answer with a chat completion")
    if json:
        try:
            content = jsons.loads(content or "")
        except ValueError as error:
            # The model may do better when it is asked again.
            raise NodeUnavailable(f"the model did not answer with JSON: {error}") from error
    return {
        "content": content,
        "model": body.get("model"),
        "finish_reason": choice.get("finish_reason"),
        "usage": body.get("usage") or {},
        "tool_calls": message.get("tool_calls") or [],
        "message": message,
    }
