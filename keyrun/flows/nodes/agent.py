"""The `agent` node: a chat completion on any endpoint that speaks OpenAI's protocol."""

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from keyrun.flows import jsons
from keyrun.flows.errors import NodeFailed, NodeUnavailable
from keyrun.flows.scope import Given, scope
from keyrun.flows.secrets import kept_out
from keyrun.flows.templates import fillable
from keyrun.flows.web import Exchange
from keyrun.runtime.graphs.output_limit import OUTPUT
from keyrun.runtime.steps.current_step import current_step

BASE_URL = "https://api.openai.com/v1"


def agent(
    prompt: str | None = None,
    *,
    model: str,
    system: str | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
    json: bool = False,
    base_url_env: str = "OPENAI_BASE_URL",
    key_env: str = "OPENAI_API_KEY",
    max_output: int = OUTPUT,
    where: str = "agent",
) -> Callable[[Given], Coroutine[Any, Any, dict[str, Any]]]:
    """A node that asks a model and gives `{content, model, finish_reason, usage, tool_calls}`.

    `prompt` and `system` are templates, or `messages` are given as the protocol has them, with
    templates in them; `options` go into the request as they are (`temperature`, `tools` ...). With
    `json` the model is asked for JSON, and `content` is what that says. Where to ask and with which
    key is in the environment, in the variables that `base_url_env` and `key_env` name; the key may
    be missing for servers that need none, and is never stored or shown.
    """
    if (prompt is None) == (messages is None):
        raise ValueError("an agent needs a prompt, or messages, and not both")
    asked: list[Mapping[str, Any]] = list(messages or ())
    if prompt is not None:
        asked = [{"role": "system", "content": system}] if system is not None else []
        asked.append({"role": "user", "content": prompt})
    elif system is not None:
        raise ValueError("where messages are given, the system prompt is one of them")
    request: dict[str, Any] = {"model": model, **(options or {})}
    if json:
        request["response_format"] = {"type": "json_object"}
    parts = fillable(request, where)
    talk = fillable(asked, f"{where}.messages" if prompt is None else f"{where}.prompt")

    async def agent(given: Given) -> dict[str, Any]:
        known = scope(given)
        question = {**parts.fill(known), "messages": talk.fill(known)}
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
            content=jsons.dumps(question).encode(),
            max_output=max_output,
        )
        with kept_out({key_env: key or ""}):
            return _answer((await exchange.perform())["body"], json)

    return agent


def _answer(body: Any, json: bool) -> dict[str, Any]:
    match body:
        case {"choices": [{"message": dict() as message, **choice}, *_]}:
            content = message.get("content")
        case _:
            raise NodeFailed("the endpoint answered, and not with a chat completion")
    if json:
        try:
            content = jsons.loads(content or "")
        except ValueError as error:
            # A model that is asked again may well answer better.
            raise NodeUnavailable(f"the model was asked for JSON and gave none: {error}") from error
    return {
        "content": content,
        "model": body.get("model"),
        "finish_reason": choice.get("finish_reason"),
        "usage": body.get("usage") or {},
        "tool_calls": message.get("tool_calls") or [],
    }
