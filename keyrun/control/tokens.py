"""Tokens: the file that says which token has which role, and the cookies of the web page.

A line of the file is `TOKEN ROLE NAME`. Empty lines and lines that begin with `#` are comments. The
file must be readable by its owner only. It is read again when it changes, so tokens rotate without
a restart.
"""

import os
import re
import secrets
import stat
import time
from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest, digest
from pathlib import Path

import attrs

from keyrun.control.roles import Caller, Role

LARGEST = 1 << 20
"""Bytes that a token file may have."""
LEAST_LENGTH = 16
"""Characters of the shortest token. A generated token has 43."""
SESSION_SECONDS = 12 * 3600
"""How long a cookie is valid."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")


class BadTokenFile(ValueError):
    """Raised if a token file cannot be used. The message never has a token."""


@attrs.frozen(kw_only=True)
class Token:
    """One line of a token file."""

    caller: Caller
    """Who has the token."""
    secret: bytes = attrs.field(repr=False)
    """The token."""
    hashed: bytes = attrs.field(repr=False)
    """The hash of the token. Comparing hashes takes the same time for all wrong tokens."""

    @classmethod
    def of(cls, caller: Caller, secret: str) -> "Token":
        """Return the token of a caller."""
        return cls(caller=caller, secret=secret.encode(), hashed=sha256(secret.encode()).digest())


class Tokens:
    """Tokens, and the sessions that begin with them."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self._tokens = {each.hashed: each for each in tokens}
        self._ended: dict[bytes, float] = {}

    @classmethod
    def new(cls, caller: Caller) -> tuple["Tokens", str]:
        """Return a new token for a caller, which is in no file. It ends with the process."""
        secret = secrets.token_urlsafe(32)
        return cls([Token.of(caller, secret)]), secret

    def _current(self) -> dict[bytes, Token]:
        return self._tokens

    def first(self, role: Role) -> str | None:
        """Return the first token that may do what requires a role. None if there is none."""
        found = (each for each in self._current().values() if each.caller.role.may(role))
        return next((each.secret.decode() for each in found), None)

    def caller(self, token: bytes) -> Caller | None:
        """Return who has a token. None if the token is not in the file."""
        found = self._find(token)
        return None if found is None else found.caller

    def _find(self, token: bytes) -> Token | None:
        hashed = sha256(token).digest()
        found = self._current().get(hashed)
        return found if found is not None and compare_digest(found.hashed, hashed) else None

    def session(self, token: bytes) -> str | None:
        """Return a new value for the cookie of a token. It is not the token, and ends with it."""
        found = self._find(token)
        if found is None:
            return None
        about = f"{found.caller.name}.{int(time.time()) + SESSION_SECONDS}.{secrets.token_hex(8)}"
        return f"{about}.{_sign(found, about)}"

    def of_session(self, cookie: str) -> Caller | None:
        """Return who has a cookie. None if it is not valid any more."""
        about, _, signature = cookie.rpartition(".")
        name, _, rest = about.rpartition(".")[0].rpartition(".")
        if not rest.isascii() or not rest.isdecimal() or len(rest) > 12:
            return None
        if int(rest) < time.time() or not signature.isascii():
            return None
        if sha256(cookie.encode()).digest() in self._ended:
            return None
        for token in self._current().values():
            if token.caller.name == name and compare_digest(_sign(token, about), signature):
                return token.caller
        return None

    def end_session(self, cookie: str) -> None:
        """Accept a cookie no longer."""
        now = time.time()
        if self.of_session(cookie) is not None:
            self._ended = {each: ends for each, ends in self._ended.items() if ends > now}
            self._ended[sha256(cookie.encode()).digest()] = now + SESSION_SECONDS


class TokenFile(Tokens):
    """The tokens in a file. Raises `BadTokenFile` if the file cannot be used when it is opened. A
    file that is broken later has no tokens, so all requests are refused."""

    every = 1.0
    """Seconds between two looks at the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = Path(path)
        self._seen: tuple[int, ...] = ()
        self._next_look = 0.0
        self.trouble: BadTokenFile | None = None
        """Why the file cannot be used now."""
        self._load()
        if self.trouble is not None:
            raise self.trouble

    @classmethod
    def create(cls, path: str | os.PathLike[str], name: str = "admin") -> "TokenFile":
        """Open a token file. If there is none, write one with a new token for an admin."""
        try:
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return cls(path)
        except OSError as error:
            raise BadTokenFile(f"cannot write the token file {path}: {error.strerror}") from error
        with os.fdopen(made, "w") as file:
            os.fchmod(made, 0o600)  # whatever the umask is
            file.write(f"# token role name\n{secrets.token_urlsafe(32)} {Role.ADMIN} {name}\n")
        return cls(path)

    def _load(self) -> None:
        """Read the file if it has changed."""
        try:
            # Opening a named pipe must not wait, and what is checked must be what is read.
            opened = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._unreadable(error)
            return
        try:
            about = os.fstat(opened)
            seen = about.st_mtime_ns, about.st_ino, about.st_size, about.st_mode, about.st_ctime_ns
            if seen == self._seen:
                return
            self._tokens = {}
            self._seen = seen
            if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST:
                raise BadTokenFile(f"{self.path} is not a file with lines of tokens")
            if about.st_uid not in (0, os.geteuid()):
                raise BadTokenFile(
                    f"{self.path} belongs to the user {about.st_uid}; it must belong to the user "
                    "that runs this process, or to root"
                )
            if stat.S_IMODE(about.st_mode) & 0o077:
                raise BadTokenFile(f"other users may read {self.path}; run: chmod 600 {self.path}")
            lines = os.read(opened, LARGEST).decode().splitlines()
            self._tokens = {each.hashed: each for each in _parse(self.path, lines)}
            self.trouble = None
        except BadTokenFile as error:
            self.trouble = error
        except (OSError, UnicodeDecodeError) as error:
            self._unreadable(error)
        finally:
            os.close(opened)

    def _unreadable(self, error: Exception) -> None:
        self._tokens, self._seen = {}, ()
        why = getattr(error, "strerror", None) or "it is not a text"
        self.trouble = BadTokenFile(f"cannot read the token file {self.path}: {why}")

    def _current(self) -> dict[bytes, Token]:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + self.every
            self._load()
        return self._tokens


def _sign(token: Token, about: str) -> str:
    return digest(token.secret, b"keyrun session " + about.encode(), "sha256").hex()


def _parse(path: Path, lines: list[str]) -> list[Token]:
    found: dict[str, Token] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        words = line.split()
        where = f"{path} line {number}"
        if len(words) != 3:
            raise BadTokenFile(f"{where}: expected `TOKEN ROLE NAME`, got {len(words)} words")
        secret, role, name = words
        if len(secret) < LEAST_LENGTH or not _TOKEN.fullmatch(secret):
            raise BadTokenFile(
                f"{where}: a token requires at least {LEAST_LENGTH} of A-Z a-z 0-9 . _ ~ + / = -"
            )
        if role not in Role.__members__.values():
            raise BadTokenFile(f"{where}: the role must be one of {', '.join(Role)}")
        if not _NAME.fullmatch(name) or name in found:
            raise BadTokenFile(
                f"{where}: each token requires a name of its own, of A-Z a-z 0-9 . _ @ -"
            )
        found[name] = Token.of(Caller(name=name, role=Role(role)), secret)
    return list(found.values())
