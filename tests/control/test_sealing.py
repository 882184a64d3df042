"""Signatures and seals between nodes."""

import pytest

from keyrun.control.sealing import (
    LARGEST,
    VALID,
    ClockDiffers,
    Nonces,
    Opener,
    Sealer,
    Signature,
    Unsealed,
    new_secret,
)

SECRET = new_secret()
KEY = b"k" * 32


def signed(secret: str = SECRET, *, epoch: int = 3, time: float = 1000.0) -> Signature:
    return Signature.of(secret, "POST", "/v1/channel?a=b", node="n:1", epoch=epoch, time=time)


def test_a_signature_is_valid_for_its_request_and_its_secret_only() -> None:
    signature = Signature.read(signed().header())
    signature.check(SECRET, "POST", "/v1/channel?a=b")
    for secret, method, path in (
        (new_secret(), "POST", "/v1/channel?a=b"),
        (SECRET, "GET", "/v1/channel?a=b"),
        (SECRET, "POST", "/v1/channel?a=c"),
    ):
        with pytest.raises(Unsealed, match="not valid"):
            signature.check(secret, method, path)


@pytest.mark.parametrize("place", range(1, 6))
def test_no_part_of_a_signature_can_be_changed(place: int) -> None:
    parts = signed().header().split(" ")
    parts[place] = {1: "n:2", 2: "4", 3: "1001.000", 4: "0" * 32, 5: "0" * 64}[place]
    with pytest.raises(Unsealed):
        Signature.read(" ".join(parts)).check(SECRET, "POST", "/v1/channel?a=b")


@pytest.mark.parametrize(
    "header", ["", "Bearer x", "Keyrun-Node", "Keyrun-Node n x y z w", "Keyrun-Node n 1 nan é é"]
)
def test_what_is_no_signature_is_refused(header: str) -> None:
    with pytest.raises(Unsealed, match="no signature of a node"):
        Signature.read(header)


def test_a_nonce_is_accepted_once_and_only_while_its_time_is_near() -> None:
    nonces = Nonces()
    first = signed(time=1000.0)
    nonces.take(first, 1000.0 + VALID)
    with pytest.raises(Unsealed, match="twice"):
        nonces.take(first, 1000.0)
    for now in (1000.0 + VALID + 1, 1000.0 - VALID - 1, float("nan")):
        with pytest.raises(ClockDiffers):
            nonces.take(signed(time=1000.0), now)
    with pytest.raises(ClockDiffers):
        nonces.take(signed(time=float("nan")), 1000.0)
    # Old nonces are forgotten. Their time has passed, so they are still refused.
    nonces.take(signed(time=2000.0), 2000.0)
    assert len(nonces._seen) == 1
    with pytest.raises(ClockDiffers):
        nonces.take(first, 2000.0)


def test_pieces_arrive_in_any_division() -> None:
    data = [b"a", b"b" * 1000, b"c" * (2 * LARGEST + 5)]
    sealer, opener = Sealer(KEY), Opener(KEY)
    sent = b"".join(map(sealer.seal, data))
    found = b"".join(opener.open(sent[at : at + 777]) for at in range(0, len(sent), 777))
    assert found == b"".join(data)
    assert Sealer(KEY).seal(b"") == b""


def test_a_piece_that_was_changed_dropped_repeated_or_moved_is_noticed() -> None:
    sealer = Sealer(KEY)
    one, two = sealer.seal(b"one"), sealer.seal(b"two")
    flipped = bytearray(one)
    flipped[-1] ^= 1
    for sent in (bytes(flipped), two, one + one, two + one):
        with pytest.raises(Unsealed, match="changed"):
            Opener(KEY).open(sent)
    with pytest.raises(Unsealed, match="changed"):
        Opener(b"x" * 32).open(one)
    for size in (0, LARGEST + 1, 0xFFFFFFFF):
        with pytest.raises(Unsealed, match="size"):
            Opener(KEY).open(size.to_bytes(4, "big") + one[4:])
