"""Sealing: how the nodes of a database prove to each other that they may use it.

The owner publishes a random secret in its lease, which only the roles of the nodes can read. The
secret itself never travels between nodes.

1. A node signs the head of its request: method, path, epoch, time and a nonce. The owner accepts it
   for `VALID` seconds, and each nonce once. A node whose clock is wrong gets the time of the owner
   and signs again.
2. Both bodies of a channel are divided into pieces. Each piece has a seal, made with a key of this
   connection and direction, and the number of the piece. So nobody between the nodes can change,
   drop, add or repeat anything, and the client knows that the other end has the secret.

The bodies are readable on the network, unless the connection uses TLS.
"""

import hmac
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import sha256
from secrets import token_hex

import attrs

VALID = 30.0
"""Seconds for which a signature is accepted."""
LARGEST = 1 << 20
"""Bytes that a piece may have."""
SCHEME = "Keyrun-Node"
"""The scheme of the Authorization header."""

_HEAD = 4
_SEAL = 32


class Unsealed(ValueError):
    """Raised if a signature or a seal is not valid."""


class ClockDiffers(Unsealed):
    """Raised if the time of a signature is too far from the time of the owner."""


def new_secret() -> str:
    """Return a secret of 32 random bytes."""
    return token_hex(32)


def _mac(secret: str, *parts: object) -> bytes:
    text = "\n".join(map(str, parts))
    return hmac.digest(bytes.fromhex(secret), text.encode(), "sha256")


@attrs.frozen(kw_only=True)
class Signature:
    """The signature of one request."""

    node: str
    """The name of the node that sends it."""
    epoch: int
    """The number of the owner that the request is for."""
    time: float
    nonce: str
    mac: str

    @classmethod
    def of(
        cls, secret: str, method: str, path: str, *, node: str, epoch: int, time: float
    ) -> "Signature":
        """Sign a request whose path has its query."""
        unsigned = cls(node=node, epoch=epoch, time=time, nonce=token_hex(16), mac="")
        return attrs.evolve(unsigned, mac=unsigned._expected(secret, method, path))

    def _expected(self, secret: str, method: str, path: str) -> str:
        parts = self.node, self.epoch, f"{self.time:.3f}", self.nonce
        return _mac(secret, "request", method, path, *parts).hex()

    def header(self) -> str:
        """Return the value of the Authorization header."""
        return f"{SCHEME} {self.node} {self.epoch} {self.time:.3f} {self.nonce} {self.mac}"

    @classmethod
    def read(cls, header: str) -> "Signature":
        """Read the Authorization header. Raises `Unsealed`."""
        match header.split(" "):
            case [scheme, node, epoch, time, nonce, mac] if scheme == SCHEME and len(nonce) == 32:
                try:
                    return cls(node=node, epoch=int(epoch), time=float(time), nonce=nonce, mac=mac)
                except ValueError:
                    pass
        raise Unsealed("the request has no signature of a node")

    def check(self, secret: str, method: str, path: str) -> None:
        """Raise `Unsealed` unless the request was signed with the secret."""
        expected = self._expected(secret, method, path)
        if not hmac.compare_digest(expected.encode(), self.mac.encode()):
            raise Unsealed("the signature of the request is not valid")

    def key(self, secret: str, direction: str) -> bytes:
        """Return the key of one direction of this connection."""
        return _mac(secret, direction, self.epoch, self.nonce)


class Nonces:
    """The nonces of the signatures that are still valid."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, float] = OrderedDict()

    def take(self, signature: Signature, now: float) -> None:
        """Accept a valid signature once. Raises `Unsealed`, or `ClockDiffers`."""
        if not abs(now - signature.time) <= VALID:
            raise ClockDiffers(
                f"the clocks differ by {abs(now - signature.time):.0f} s, and a signature is valid "
                f"for {VALID:g} s"
            )
        while self._seen and next(iter(self._seen.values())) < now - 2 * VALID:
            self._seen.popitem(last=False)
        if signature.nonce in self._seen:
            raise Unsealed("the request was sent twice")
        self._seen[signature.nonce] = now


class Sealer:
    """Seals what one end of a connection sends."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def seal(self, data: bytes) -> bytes:
        """Return data in sealed pieces."""
        return b"".join(self._pieces(data))

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), LARGEST):
            piece = data[at : at + LARGEST]
            head = len(piece).to_bytes(_HEAD, "big")
            yield head + _seal(self._key, self._number, piece) + piece
            self._number += 1


class Opener:
    """Checks what the other end has sent."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0
        self._received = bytearray()

    def open(self, data: bytes) -> bytes:
        """Return the whole pieces that have arrived. Raises `Unsealed`."""
        received = self._received
        received += data
        found = bytearray()
        while len(received) >= _HEAD:
            size = int.from_bytes(received[:_HEAD], "big")
            if not 0 < size <= LARGEST:
                raise Unsealed("a piece has no valid size")
            end = _HEAD + _SEAL + size
            if len(received) < end:
                break
            piece = bytes(received[_HEAD + _SEAL : end])
            expected = _seal(self._key, self._number, piece)
            if not hmac.compare_digest(expected, bytes(received[_HEAD : _HEAD + _SEAL])):
                raise Unsealed("a piece was changed on its way")
            self._number += 1
            found += piece
            del received[:end]
        return bytes(found)


def _seal(key: bytes, number: int, piece: bytes) -> bytes:
    mac = hmac.new(key, number.to_bytes(8, "big"), sha256)
    mac.update(piece)
    return mac.digest()
