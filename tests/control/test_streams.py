"""Streams of events: ids, gaps, heartbeats, and subscribers that do not read."""

import json
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest
import trio

from keyrun.control import event_ring, streams
from keyrun.control.owner import Owner
from keyrun.control.roles import ITSELF
from keyrun.control.table import OPERATIONS
from keyrun.runtime.events.types import EventKind, RunEvent
from tests.control.world import Client, Exchange, greet, served, wait_for_go


def events_of(text: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream, each with its `id` and its `event`."""
    found = []
    for block in text.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            data = json.loads(fields["data"])
            found.append({**data, "id": fields.get("id"), "event": fields.get("event")})
    return found


def kinds_of(text: bytes) -> list[str]:
    return [each["kind"] for each in events_of(text)]


async def run(client: Client, run_id: str, word: str = "ann") -> None:
    await (await client.rt.submit(greet, word, key=run_id, run_id=run_id)).result()


async def test_events_are_streamed(autojump_clock: Any) -> None:
    async with served() as client, client.stream("/v1/events") as stream:
        await stream.until(b"retry: 2000")
        headers = dict(stream.start["headers"])
        assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
        assert headers[b"cache-control"] == b"no-store"
        await run(client, "r")
        text = await stream.until(b"run_succeeded")
        assert kinds_of(text) == [
            "run_submitted",
            "run_started",
            "step_started",
            "step_completed",
            "run_succeeded",
        ]
        last = events_of(text)[-1]
        assert last["event"] == "run_succeeded"
        assert last["run_id"] == "r"
        assert last["at"].endswith("Z")


async def test_a_stream_is_filtered(autojump_clock: Any) -> None:
    async with served() as client:
        target = "/v1/events?kinds=run_succeeded&kinds=run_failed"
        async with client.stream(target) as ends, client.stream("/v1/events?run_id=b") as one:
            await ends.until(b"retry")
            await one.until(b"retry")
            await run(client, "a")
            await run(client, "b")
            text = await ends.until(b'"run_id":"b"')
            assert [(each["kind"], each["run_id"]) for each in events_of(text)] == [
                ("run_succeeded", "a"),
                ("run_succeeded", "b"),
            ]
            found = events_of(await one.until(b"run_succeeded"))
            assert {each["run_id"] for each in found} == {"b"}
            assert len(found) == 5


async def test_a_stream_resumes_after_the_last_event_that_was_received(
    autojump_clock: Any,
) -> None:
    async with served() as client:
        async with client.stream("/v1/events") as stream:
            await stream.until(b"retry")
            await run(client, "a")
            text = await stream.until(b"run_succeeded")
        started = next(each for each in events_of(text) if each["kind"] == "run_started")
        await run(client, "b")
        headers = [("last-event-id", started["id"])]
        async with client.stream("/v1/events", headers=headers) as stream:
            text = await stream.until(b'"kind":"run_succeeded","at"')
            text = await stream.until(b'"run_id":"b"')
        found = [(each["kind"], each["run_id"]) for each in events_of(text)]
        assert found[:3] == [("step_started", "a"), ("step_completed", "a"), ("run_succeeded", "a")]
        assert found[3] == ("run_submitted", "b")


async def test_a_stream_that_is_cut_anywhere_resumes_without_a_gap_or_a_repeat(
    autojump_clock: Any,
) -> None:
    async with served() as client:
        async with client.stream("/v1/events") as stream:
            await stream.until(b"retry")
            await run(client, "a")
            text = await stream.until(b"run_succeeded")
        whole = events_of(text)
        assert len({each["id"] for each in whole}) == len(whole) == 5
        for at, event in enumerate(whole):
            headers = [("last-event-id", event["id"])]
            async with client.stream("/v1/events", headers=headers) as stream:
                await stream.until(b"retry")
                await run(client, f"end-{at}")
                text = await stream.until(f'"run_id":"end-{at}"'.encode())
            assert [each for each in events_of(text) if each["run_id"] == "a"] == whole[at + 1 :]


async def test_a_stream_that_is_filtered_and_cut_resumes_without_a_gap(
    autojump_clock: Any,
) -> None:
    async with served() as client:
        target = "/v1/events?kinds=step_started&kinds=step_completed"
        async with client.stream(target) as stream:
            await stream.until(b"retry")
            await run(client, "a")
            started, completed = events_of(await stream.until(b"step_completed"))
        headers = [("last-event-id", started["id"])]
        async with client.stream(target, headers=headers) as stream:
            assert events_of(await stream.until(b"step_completed")) == [completed]
        async with client.stream("/v1/events?kinds=run_started", headers=headers) as stream:
            await run(client, "b")
            text = await stream.until(b"run_started")
        assert [each["run_id"] for each in events_of(text)] == ["b"]


async def test_a_subscriber_that_resumes_has_its_old_id_until_it_has_the_events_that_follow(
    autojump_clock: Any,
) -> None:
    async with served() as client:
        async with client.stream("/v1/events") as stream:
            assert b"\nid: " in (await stream.until(b"\n\n")).partition(b"\n\n")[0]
            await run(client, "a")
            first = events_of(await stream.until(b"run_succeeded"))[0]
        for last_id in (first["id"], "00000000-5"):
            headers = [("last-event-id", last_id)]
            async with client.stream("/v1/events", headers=headers) as stream:
                assert (await stream.until(b"data")).startswith(b"retry: 2000\n\nid: ")


@pytest.mark.parametrize(
    "last_id",
    [
        "",
        "x",
        "00000000-5",
        "-",
        "{epoch}-",
        "{epoch}-99",
        "{epoch}-99.1",
        "{epoch}-0.1",
        "{epoch}-x",
    ],
)
async def test_an_id_that_is_unknown_marks_a_gap(last_id: str, autojump_clock: Any) -> None:
    async with served() as client:
        epoch = client.api._performer.runtime.ring.epoch
        headers = [("last-event-id", last_id.replace("{epoch}", epoch))]
        async with client.stream("/v1/events", headers=headers) as stream:
            (event,) = events_of(await stream.until(b"event: missed"))
            assert (event["kind"], event["missed"]) == ("missed", None)
            await run(client, "a")
            await stream.until(b"run_submitted")


async def test_another_process_marks_a_gap(autojump_clock: Any) -> None:
    """Also if it has an event at the same position."""
    async with served() as client:
        async with client.stream("/v1/events") as stream:
            await stream.until(b"retry")
            await run(client, "a")
            last = events_of(await stream.until(b"run_succeeded"))[-1]["id"]
    async with served() as client, client.stream("/v1/events") as other:
        await run(client, "b")
        await run(client, "c")
        await other.until(b"run_succeeded")
        async with client.stream("/v1/events", headers=[("last-event-id", last)]) as stream:
            with trio.fail_after(60):
                (event,) = events_of(await stream.until(b"event: missed"))
            assert (event["kind"], event["missed"]) == ("missed", None)


async def test_a_subscriber_that_does_not_read_misses_events_and_is_told(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served() as client:
        ring = client.api._performer.runtime.ring
        ring.size = 10
        ring._slots = [None] * 10
        async with client.stream("/v1/events") as stream:
            await stream.until(b"retry")
            stream.stop_reading()
            for number in range(20):
                await run(client, f"r{number}")
            stream._may_send.set()
            text = await stream.until(b'"kind":"missed"')
            missed = next(each for each in events_of(text) if each["kind"] == "missed")
            assert missed["missed"] > 10
            await run(client, "last")
            text = await stream.until(b'"run_id":"last"')
        assert len(ring._slots) == 10


async def test_a_buffer_limits_how_far_a_subscriber_may_be_behind(autojump_clock: Any) -> None:
    async with served() as client:
        async with client.stream("/v1/events?buffer=2") as stream:
            await stream.until(b"retry")
            stream.stop_reading()
            for number in range(3):
                await run(client, f"r{number}")
            stream._may_send.set()
            await stream.until(b'"kind":"missed"')
        answer = await client.call("GET", "/v1/events?buffer=0")
        assert answer.status == 422


async def test_a_quiet_stream_has_a_heartbeat(autojump_clock: Any) -> None:
    async with served() as client, client.stream("/v1/events") as stream:
        begun = trio.current_time()
        await stream.until(b"\n\n:\n\n")
        await stream.until(b"\n\n:\n\n:\n\n")
        assert trio.current_time() - begun == pytest.approx(2 * streams.HEARTBEAT)


async def test_a_stream_ends_when_the_runtime_closes(autojump_clock: Any) -> None:
    async with trio.open_nursery() as nursery:
        async with served() as client:
            stream = Exchange("GET", "/v1/events")
            nursery.start_soon(client.api, stream.scope, stream.receive, stream.send)
            await stream.until(b"retry")
    assert stream.over
    assert stream.answer.body.endswith(b"event: end\ndata: {}\n\n")


async def test_the_engine_builds_no_events_when_the_last_subscriber_has_left(
    autojump_clock: Any,
) -> None:
    async with served() as client:
        subscribers = client.rt._partition.state.host.subscribers
        async with client.stream("/v1/events") as stream:
            await stream.until(b"retry")
            assert subscribers._wanted
        await trio.sleep(event_ring.LINGER + 1)
        await run(client, "a")
        await trio.testing.wait_all_tasks_blocked()
        assert not subscribers._wanted
        async with client.stream("/v1/events") as stream:
            await stream.until(b"retry")
            await run(client, "b")
            assert b'"run_id":"a"' not in await stream.until(b"run_succeeded")


async def test_all_subscribers_share_one_subscription_and_one_text(autojump_clock: Any) -> None:
    async with served() as client:
        owner: Owner = client.api._performer
        followers = [await owner.follow({}, ITSELF) for _ in range(50)]
        for each in followers:
            await each.next(1)
        assert len(client.rt._partition.state.host.subscribers._listeners) == 1
        await run(client, "a")
        texts = [await each.next(1) for each in followers]
        assert len({id(text) for text in texts}) == 1
        for each in followers:
            each.close()


def published(number: int) -> Any:
    """Return an event of a busy runtime: the two of a step in one, or a run that failed."""
    about = (f"r{number}", "k", "greet")
    if number % 2_500 == 0:
        return RunEvent(EventKind.RUN_FAILED, 1.0, *about)
    return (
        (1.0, 2.0, about, "shout", 1)
        if number % 2
        else RunEvent(EventKind.RUN_STARTED, 1.0, *about)
    )


async def busy(client: Client, seconds: int, per_second: int = 5_000) -> int:
    """Publish events as a runtime does, and return their number."""
    subscribers = client.rt._partition.state.host.subscribers
    events = [published(number) for number in range(seconds * per_second)]
    for at in range(0, len(events), per_second // 100):
        subscribers.publish(events[at : at + per_second // 100])
        await trio.sleep(0.01)
    return sum(2 if type(each) is tuple else 1 for each in events)


class Page:
    """A page that reads a sample of the events."""

    def __init__(self) -> None:
        self.arrived: list[tuple[float, dict[str, Any]]] = []
        self.largest = 0

    async def read(self, owner: Owner, **arguments: Any) -> None:
        follower = await owner.follow({"most_per_second": 200, **arguments}, ITSELF)
        while text := await follower.next(60):
            self.largest = max(self.largest, len(text))
            self.arrived += [(trio.current_time(), each) for each in events_of(text)]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [each for _, each in self.arrived if each["kind"] != "missed"]

    @property
    def others(self) -> int:
        missed = [each for _, each in self.arrived if each["kind"] == "missed"]
        assert all(each["sampled"] for each in missed)
        return sum(each["missed"] for each in missed)

    def most_in_a_second(self) -> int:
        times = [at for at, each in self.arrived if each["kind"] != "missed"]
        return max(sum(at <= each < at + 0.999 for each in times) for at in set(times))


async def test_pages_receive_200_of_5000_events_per_second_and_the_number_of_the_rest(
    autojump_clock: Any,
) -> None:
    async with served() as client:
        pages = [Page() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for each in pages:
                nursery.start_soon(each.read, client.api._performer)
            await trio.testing.wait_all_tasks_blocked()
            count = await busy(client, 10)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        for each in pages:
            assert each.most_in_a_second() <= 200
            assert len(each.events) >= 1_900
            assert len(each.events) + each.others == count
            assert each.largest < 50 * 400
            newest = max(int(event["run_id"][1:]) for event in each.events)
            assert newest == 10 * 5_000 - 1


async def test_a_sample_of_rare_kinds_has_all_events(autojump_clock: Any) -> None:
    async with served() as client:
        page, of_run = Page(), Page()
        async with trio.open_nursery() as nursery:
            owner = client.api._performer
            nursery.start_soon(partial(page.read, owner, kinds=["run_failed", "step_completed"]))
            nursery.start_soon(partial(of_run.read, owner, run_id="r7"))
            rare = Page()
            nursery.start_soon(partial(rare.read, owner, kinds=["run_failed"]))
            await trio.testing.wait_all_tasks_blocked()
            await busy(client, 10)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert len(rare.events) == 20
        assert [each["kind"] for each in of_run.events] == ["step_started", "step_completed"]
        assert of_run.others == rare.others == 0
        assert len(page.events) + page.others == 10 * 5_000 // 2 + 20


async def test_a_sample_that_is_cut_resumes_and_says_what_it_left_out(autojump_clock: Any) -> None:
    async with served() as client:
        async with client.stream("/v1/events?most_per_second=4") as stream:
            await stream.until(b"retry")
            await run(client, "a")
            text = await stream.until(b"run_succeeded")
        missed, *_, last = events_of(text)
        assert (missed["kind"], missed["missed"], missed["sampled"]) == ("missed", 4, True)
        assert last["kind"] == "run_succeeded"
        await run(client, "b")
        headers = [("last-event-id", last["id"])]
        target = "/v1/events?most_per_second=200"
        async with client.stream(target, headers=headers) as stream:
            text = await stream.until(b"run_succeeded")
        assert [each["run_id"] for each in events_of(text)] == ["b"] * 5


@pytest.mark.parametrize("most", ["0", "10001", "x"])
async def test_a_rate_of_events_is_checked(most: str, autojump_clock: Any) -> None:
    async with served() as client:
        answer = await client.call("GET", f"/v1/events?most_per_second={most}")
        assert answer.status == 422
        assert "most_per_second must be" in answer.json["detail"]


async def test_a_python_client_receives_a_sample_and_the_number_of_the_rest(
    autojump_clock: Any,
) -> None:
    async with served() as client:
        owner: Owner = client.api._performer
        found: list[tuple[float, Any]] = []

        async def read() -> None:
            stream = await owner.stream(OPERATIONS["events"], {"most_per_second": 200}, ITSELF)
            async with aclosing(stream):
                async for event in stream:
                    found.append((trio.current_time(), event))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            count = await busy(client, 4)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        missed = [each for _, each in found if each.kind == "missed"]
        assert all(each.sampled for each in missed)
        times = [at for at, each in found if each.kind != "missed"]
        assert sum(each.missed for each in missed) + len(times) == count
        assert 600 < len(times) <= 4 * 250
        assert max(sum(at <= each < at + 0.999 for each in times) for at in set(times)) <= 200


async def test_the_progress_of_a_run_is_streamed_until_its_end(autojump_clock: Any) -> None:
    async with served() as client:
        await client.rt.submit(wait_for_go, key="k", run_id="r")
        async with client.stream("/v1/runs/r/watch") as stream:
            await stream.until(b'"state":"waiting"')
            await client.rt.signal("r", "go")
            text = await stream.until(b"event: end")
        assert events_of(text)[-2]["state"] == "succeeded"
        assert stream.over


async def test_the_ends_of_a_group_are_streamed_also_if_the_first_comes_late(
    autojump_clock: Any,
) -> None:
    async with served() as client:
        members = [
            {"workflow": "wait_for_go", "key": "a", "member_id": "slow"},
            {"workflow": "wait_for_go", "key": "b", "member_id": "slower"},
        ]
        await client.good("POST", "/v1/groups/g", {"members": members})
        async with client.stream("/v1/groups/g/outcomes") as stream:
            await stream.until(b":\n\n")
            for run_id in [each.run_id for each in await client.rt.runs()]:
                await trio.sleep(100)
                await client.rt.signal(run_id, "go", 5)
            text = await stream.until(b"event: end")
        found = events_of(text)[:-1]
        assert [(each["member_id"], each["result"]) for each in found] == [
            ("slow", 5),
            ("slower", 5),
        ]
        assert text.count(b":\n\n:\n\n") >= 5


async def test_events_are_read_without_a_stream(autojump_clock: Any) -> None:
    async with served() as client:
        first = await client.good("GET", "/v1/recent-events")
        assert (first["events"], first["missed"]) == ([], 0)
        await run(client, "a")
        cursor = first["cursor"]
        found = await client.good("GET", f"/v1/recent-events?after={cursor}")
        kinds = ["run_submitted", "run_started", "step_started", "step_completed", "run_succeeded"]
        assert [each["kind"] for each in found["events"]] == kinds
        assert found["missed"] == 0
        again = await client.good("GET", f"/v1/recent-events?after={found['cursor']}")
        assert (again["events"], again["missed"]) == ([], 0)
        few = await client.good("GET", f"/v1/recent-events?after={cursor}&limit=2")
        assert [each["kind"] for each in few["events"]] == ["run_succeeded"]
        assert few["missed"] == 4
        await run(client, "b")
        target = f"/v1/recent-events?after={cursor}&run_id=b&kinds=run_started"
        (one,) = (await client.good("GET", target))["events"]
        assert (one["run_id"], one["kind"]) == ("b", "run_started")
        for unknown in ("x", "00000000-3", "99999999999999999999-1"):
            lost = await client.good("GET", f"/v1/recent-events?after={unknown}")
            assert (lost["events"], lost["missed"]) == ([], None)
        assert (await client.call("GET", "/v1/recent-events?limit=0")).status == 422
        assert (await client.call("GET", "/v1/recent-events?kinds=nothing")).status == 422


async def test_the_engine_builds_no_events_when_nobody_asks_any_more(autojump_clock: Any) -> None:
    async with served() as client:
        subscribers = client.rt._partition.state.host.subscribers
        cursor = (await client.good("GET", "/v1/recent-events"))["cursor"]
        await trio.sleep(event_ring.LINGER - 1)
        await run(client, "a")
        found = await client.good("GET", f"/v1/recent-events?after={cursor}")
        assert len(found["events"]) == 5
        await trio.sleep(event_ring.LINGER + 1)
        await run(client, "b")
        await trio.testing.wait_all_tasks_blocked()
        assert not subscribers._wanted
        lost = await client.good("GET", f"/v1/recent-events?after={found['cursor']}")
        assert lost["missed"] is None


async def test_a_busy_runtime_says_how_many_events_were_not_sent(autojump_clock: Any) -> None:
    async with served() as client:
        cursor = (await client.good("GET", "/v1/recent-events"))["cursor"]
        count = await busy(client, 1)
        found = await client.good("GET", f"/v1/recent-events?after={cursor}")
        assert len(found["events"]) in (199, 200)
        assert len(found["events"]) + found["missed"] == count
        assert found["events"][-1]["run_id"] == "r4999"
        await busy(client, 10)
        late = await client.good("GET", f"/v1/recent-events?after={found['cursor']}")
        assert late["missed"] >= 50_000
