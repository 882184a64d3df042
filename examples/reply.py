"""An agent with an approval gate: a model drafts a reply, and a person decides if it is sent.

The model is a stub that speaks the protocol of chat endpoints. Run it: python examples/reply.py
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from stub import Answer, serving

import keyrun
from keyrun import GateNotWaiting, Graph, Runtime

outbox: list[Any] = []
drafts: list[Any] = []


def answer(method: str, path: str, body: Any) -> Answer:
    if path == "/v1/chat/completions":
        asked = body["messages"][-1]["content"]
        said = "Of course, it is on its way." if "where" in asked else "We are sorry."
        choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return 200, {"model": body["model"], "choices": [choice], "usage": {"total_tokens": 9}}
    kept = outbox if path == "/outbox" else drafts
    kept.append(body)
    return 201, {"number": len(kept)}


async def look(runtime: Runtime, run_id: str, *, fine: bool) -> None:
    """Decide as a person, as soon as the run waits at the gate `review`."""
    while True:
        try:
            if fine:
                await runtime.approve(run_id, "review", by="Ann")
            else:
                await runtime.reject(run_id, "review", by="Ann", comment="too short")
        except GateNotWaiting:
            await trio.sleep(0.05)  # the model is not done yet
        else:
            return


async def main() -> None:
    reply = Graph.from_file(Path(__file__).with_suffix(".yaml"))
    with serving(answer) as server, TemporaryDirectory() as folder:
        os.environ |= {"OPENAI_BASE_URL": f"{server}/v1", "MAIL_URL": server}
        async with keyrun.open_runtime(folder, workflows=[reply]) as rt:
            mail = {"from": "Bo", "text": "where is my order?"}
            await rt.submit(reply, mail, key="bo", run_id="mail-1")
        # The process may end here, and another one goes on.
        async with keyrun.open_runtime(folder, workflows=[reply]) as rt:
            first = await rt.submit(reply, mail, key="bo", run_id="mail-1")
            await look(rt, "mail-1", fine=True)
            await first.result()
            mail = {"from": "Cy", "text": "it is broken!"}
            second = await rt.submit(reply, mail, key="cy", run_id="mail-2")
            await look(rt, "mail-2", fine=False)
            await second.result()
    print(outbox)
    print(drafts)


if __name__ == "__main__":
    trio.run(main)
