"""The agent node: what a chat endpoint is asked, and what is made of its answer."""

from typing import Any

import pytest

from keyrun import FailureKind
from keyrun.flows.nodes.agent import agent
from tests.flows.nodes import failure_of, run_node
from tests.flows.server import Reply, Server


def completion(content: str | None, **message: Any) -> Reply:
    choice = {"message": {"role": "assistant", "content": content, **message}}
    return Reply(
        body={
            "model": "small-1",
            "choices": [{**choice, "finish_reason": "stop"}],
            "usage": {"total_tokens": 12},
        }
    )


@pytest.fixture
async def chat(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A stub of a chat endpoint."""
    monkeypatch.setenv("OPENAI_BASE_URL", server.url + "/v1/")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    server.replies = [completion("Hello Ann")]
    return server


async def test_a_prompt_is_asked_and_the_answer_given(chat: Server) -> None:
    node = agent(
        "Greet {{ input.name }}",
        model="small",
        system="Be {{ input.mood }}.",
        options={"temperature": 0, "max_tokens": "{{ input.most }}"},
    )
    answer = await run_node(node, {"name": "Ann", "mood": "brief", "most": 10})
    assert answer == {
        "content": "Hello Ann",
        "model": "small-1",
        "finish_reason": "stop",
        "usage": {"total_tokens": 12},
        "tool_calls": [],
        "message": {"role": "assistant", "content": "Hello Ann"},
    }
    (request,) = chat.requests
    assert (request.method, request.target) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == "Bearer sk-secret"
    assert len(request.headers["idempotency-key"]) == 32
    assert request.json == {
        "model": "small",
        "temperature": 0,
        "max_tokens": 10,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Greet Ann"},
        ],
    }


async def test_messages_can_be_given_as_they_are(chat: Server) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "{{ output }}"}]
    await run_node(agent(messages=said, model="m"), output="b")
    assert chat.requests[0].json["messages"][1] == {"role": "assistant", "content": "b"}


async def test_json_is_asked_for_and_parsed(chat: Server) -> None:
    chat.replies = [completion('{"urgent": true}')]
    answer = await run_node(agent("?", model="m", json=True))
    assert answer["content"] == {"urgent": True}
    assert chat.requests[0].json["response_format"] == {"type": "json_object"}


async def test_a_model_that_gives_no_json_is_asked_again(chat: Server) -> None:
    chat.replies = [completion("Sure! Here it is"), completion("[1]")]
    answer = await run_node(agent("?", model="m", json=True))
    assert answer["content"] == [1]


async def test_tool_calls_are_given_as_they_came(chat: Server) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    chat.replies = [completion(None, tool_calls=calls)]
    answer = await run_node(agent("?", model="m", options={"tools": []}))
    assert (answer["content"], answer["tool_calls"]) == (None, calls)


async def test_a_server_without_keys_is_asked_without_one(
    chat: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    await run_node(agent("?", model="m"))
    assert "authorization" not in chat.requests[0].headers


async def test_the_variables_can_have_other_names(
    chat: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_URL", chat.url)
    monkeypatch.setenv("LOCAL_KEY", "k2")
    await run_node(agent("?", model="m", base_url_env="LOCAL_URL", key_env="LOCAL_KEY"))
    assert chat.requests[0].target == "/chat/completions"
    assert chat.requests[0].headers["authorization"] == "Bearer k2"


async def test_a_busy_endpoint_is_asked_again_with_the_same_key(chat: Server) -> None:
    chat.replies = [Reply(status=429), completion("fine")]
    assert (await run_node(agent("?", model="m")))["content"] == "fine"
    first, second = chat.requests
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(status=401, body={"error": "bad key"}), "answered 401"),
        (Reply(body={"choices": []}), "did not answer with a chat completion"),
        (Reply(body="hello"), "did not answer with a chat completion"),
    ],
)
async def test_what_is_no_answer_is_permanent_and_never_shows_the_key(
    chat: Server, reply: Reply, said: str
) -> None:
    chat.replies = [reply]
    failure = await failure_of(agent("?", model="m"))
    assert failure.kind is FailureKind.PERMANENT_ERROR
    assert said in failure.reason
    assert "sk-secret" not in failure.reason + str(failure.traceback)


@pytest.mark.parametrize(
    "options", [{}, {"prompt": "a", "messages": []}, {"messages": [], "system": "b"}]
)
def test_an_agent_needs_a_prompt_or_messages(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="messages"):
        agent(model="m", **options)
