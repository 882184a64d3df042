"""Clients over https: a proxy with TLS stands in front of the owner, as the pages recommend."""

import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import keyrun.asyncio
import keyrun.sync
from keyrun import App, NoOwner
from keyrun.control.options import Control
from keyrun.hosting.served import served
from tests.control.world import greet


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and a certificate for localhost, which no authority has signed."""
    folder = tmp_path_factory.mktemp("certificate")
    made, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    about = ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost"]
    places = ["-keyout", str(key), "-out", str(made)]
    subprocess.run([*command, *about, *names, *places], check=True, capture_output=True)
    made.write_text(key.read_text() + made.read_text())
    return made


async def forward(port: int, outer: trio.abc.Stream) -> None:
    async def pump(source: trio.abc.Stream, sink: trio.abc.Stream, scope: Any) -> None:
        while data := await source.receive_some():
            await sink.send_all(data)
        scope.cancel()

    try:
        async with await trio.open_tcp_stream("127.0.0.1", port) as inner:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pump, outer, inner, nursery.cancel_scope)
                nursery.start_soon(pump, inner, outer, nursery.cancel_scope)
    except* trio.BrokenResourceError:
        pass  # the client did not accept the certificate


@asynccontextmanager
async def owner_behind_tls(store: Path, certificate: Path) -> AsyncIterator[tuple[int, str]]:
    """Serve an application behind a proxy with TLS. Yields the port and a token."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    control = Control(http="127.0.0.1:0")
    async with (
        served(store, App(workflows=[greet]), control) as server,
        trio.open_nursery() as nursery,
    ):
        assert server.url is not None
        assert server.tokens is not None
        token = server.tokens.read_text().partition(" admin ")[0].rpartition("\n")[2]
        handle = partial(forward, int(server.url.rpartition(":")[2]))
        listeners = await nursery.start(
            partial(trio.serve_ssl_over_tcp, handle, 0, context, host="127.0.0.1")
        )
        yield listeners[0].transport_listener.socket.getsockname()[1], token
        nursery.cancel_scope.cancel()


async def test_each_kind_of_client_calls_an_owner_over_https(
    tmp_path: Path, certificate: Path
) -> None:
    trusted = ssl.create_default_context(cafile=certificate)
    async with owner_behind_tls(tmp_path / "store", certificate) as (port, token):
        options: dict[str, Any] = {"token": token, "context": trusted, "call_timeout": 20}
        address = f"https://localhost:{port}"
        async with keyrun.connect(address, **options) as client:
            run = await client.submit(greet, "ann", key="ann")
            expected = await run.result(timeout=20)

        async def on_asyncio() -> Any:
            async with keyrun.asyncio.connect(address, **options) as client:
                return await client.run(run.run_id).result(timeout=20)

        def in_a_thread() -> Any:
            import asyncio

            with keyrun.sync.connect(address, **options) as client:
                found = client.run(run.run_id).result(timeout=20)
            return [found, asyncio.run(on_asyncio())]

        assert await trio.to_thread.run_sync(in_a_thread) == [expected, expected]


@pytest.mark.parametrize(
    ("host", "trusts", "why"),
    [
        ("localhost", False, "self.signed certificate"),
        ("127.0.0.1", True, "IP address mismatch"),
    ],
)
async def test_a_certificate_that_is_not_valid_is_an_error_at_once(
    host: str, trusts: bool, why: str, tmp_path: Path, certificate: Path
) -> None:
    context = ssl.create_default_context(cafile=certificate) if trusts else None
    async with owner_behind_tls(tmp_path / "store", certificate) as (port, token):
        address = f"https://{host}:{port}"
        async with keyrun.connect(address, token=token, context=context) as client:
            with trio.fail_after(30), pytest.raises(ssl.SSLCertVerificationError, match=why):
                await client.counts()


async def test_an_address_that_nobody_listens_at_is_named_with_the_cause() -> None:
    async with keyrun.connect("http://127.0.0.1:1", token="t" * 20, call_timeout=0.2) as client:
        with pytest.raises(NoOwner, match="refused"):
            await client.counts()
