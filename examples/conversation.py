"""A conversation of several turns with a model that uses tools. A person approves each tool call.

The model and the tools are stubs. The process is stopped and started again in the middle. Run it:
python examples/conversation.py
"""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from stub import Answer, serving

import keyrun
from keyrun import GateNotWaiting, Graph, Runtime

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "book")
]
QUESTION = {"question": "Book a sunny weekend in Rome.", "tools": TOOLS}
PLAN = [("weather", {"city": "Rome"}), ("book", {"city": "Rome", "nights": 2})]


def answer(method: str, path: str, body: Any) -> Answer:
    """Answer as the model, which calls one tool after the other and then sums up, or as a tool."""
    if path == "/tools/weather":
        return 200, {"forecast": f"sunny in {body['city']}"}
    if path == "/tools/book":
        return 200, {"booked": body["nights"]}
    results = [each["content"] for each in body["messages"] if each["role"] == "tool"]
    message: dict[str, Any] = {"role": "assistant", "content": "; ".join(results)}
    if len(results) < len(PLAN):
        name, arguments = PLAN[len(results)]
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call-{len(results)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return 200, {"model": body["model"], "choices": [{"message": message}]}


async def decide(runtime: Runtime, gate: str, *, approve: bool) -> None:
    """Approve or reject a tool call as soon as the run waits for it."""
    while True:
        try:
            if approve:
                await runtime.approve("trip-1", gate, by="Ann")
            else:
                await runtime.reject("trip-1", gate, by="Ann", comment="too expensive")
        except GateNotWaiting:
            await trio.sleep(0.05)
        else:
            return


async def main() -> None:
    flow = Graph.from_file(Path(__file__).with_suffix(".yaml"))
    with serving(answer) as server, TemporaryDirectory() as folder:
        os.environ |= {"OPENAI_BASE_URL": f"{server}/v1", "TOOLS_URL": f"{server}/tools"}
        async with keyrun.open_runtime(folder, workflows=[flow]) as rt:
            await rt.submit(flow, QUESTION, key="ann", run_id="trip-1")
            await decide(rt, "review", approve=True)
        # Another process could continue here. The conversation so far is in the store.
        async with keyrun.open_runtime(folder, workflows=[flow]) as rt:
            run = await rt.submit(flow, QUESTION, key="ann", run_id="trip-1")
            await decide(rt, "review#2", approve=False)
            result = await run.result()
    for message in result["messages"]:
        calls = [call["function"]["name"] for call in message.get("tool_calls", ())]
        print(f"{message['role']}: {message['content'] or calls}")


if __name__ == "__main__":
    trio.run(main)
