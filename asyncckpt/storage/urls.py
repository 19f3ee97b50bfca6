"""URLs as they may be shown: the one place that knows what in them is secret.

A password, a token, the query of a signed URL: none of it may reach a repr, an error or a log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from os import PathLike, fspath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from asyncckpt.errors import InvalidKeyError

HIDDEN = "…"
_HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^:@]*)(:\d*)?")
_URL = re.compile(r"[\w.+:-]+://[^\s'\"<>]+")
_QUERY = re.compile(r"\?[^\s'\"<>]+")
_CREDENTIALS = re.compile(r"(?i)\b(basic|bearer)\s+[\w.~+/=-]{4,}")
_SECRET_OPTION = re.compile(r"(?i)pass|pwd|secret|token|key|sig|cred|auth|sas|connection_string")
_SHORTEST_SECRET = 3  # what is shorter stands in too many places by chance


def redacted(url: str | PathLike[str]) -> str:
    """The URL without what may be secret: user and password, and the query of a signed URL."""
    scheme, separator, rest = fspath(url).partition("://")
    if not separator:
        return scheme
    rest, question, _ = rest.partition("?")
    first = rest.partition("/")[0]
    # A password may hold a slash or an @, so what ends the user is the last one of all.
    _, at, after = rest.rpartition("@")
    if at and (":" in first or ("@" in first and is_http(scheme))):
        rest = f"{HIDDEN}@{after}"
    elif not at and "::" not in rest and not _HOST_AND_PORT.fullmatch(first):
        rest = HIDDEN  # the first half of a password, cut at its slash
    return f"{scheme}://{rest}{f'?{HIDDEN}' if question else ''}"


def is_http(scheme: str) -> bool:
    """Whether the (last) scheme's URLs have a query, which is then no part of a file's name."""
    return scheme.rpartition("::")[2].lower() in ("http", "https")


def is_web_address(url: str) -> bool:
    """Whether it is a URL of such a scheme."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and is_http(scheme)


def split_query(url: str) -> tuple[str, str]:
    """A web address and its query with the question mark; any other URL or path has none."""
    if not is_web_address(url):
        return url, ""
    address, question, query = url.partition("?")
    return address, question + query


def host_of(url: str) -> str:
    """The host and port of a URL, without user and password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def refuse_raw_password(url: str) -> None:
    """Raise InvalidKeyError for a password with a slash in it: it would be taken for the path."""
    rest = url.partition("://")[2].partition("?")[0]
    first, _, path = rest.partition("/")
    if "@" in path and "@" not in first and not _HOST_AND_PORT.fullmatch(first) and "::" not in first:
        raise InvalidKeyError(f"{redacted(url)!r}: write a slash in a password as %2F, and an @ as %40")


class Secrets:
    """What a URL and the options of a driver hold that must not be shown. Its repr shows none of it."""

    def __init__(self, url: str = "", options: Mapping[str, Any] | None = None) -> None:
        found = {*_secrets_of_url(url), *_secrets_of_options(options or {})}
        forms = {form for secret in found for form in _forms(secret) if len(form) >= _SHORTEST_SECRET}
        # The longest first: one may be the beginning of another.
        self._forms = sorted(forms, key=len, reverse=True)

    def __repr__(self) -> str:
        return f"Secrets({len(self._forms)})"

    def without(self, text: str) -> str:
        """The text with every URL redacted, and every secret hidden in whatever spelling it stands there."""
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        text = _URL.sub(lambda match: redacted(match[0]), text)
        text = _QUERY.sub(f"?{HIDDEN}", text)
        return _CREDENTIALS.sub(rf"\1 {HIDDEN}", text)

    def are_in(self, text: str) -> bool:
        """Whether the text would have to be changed before it is shown."""
        return self.without(text) != text


def _secrets_of_url(url: str) -> Iterator[str]:
    rest = url.partition("://")[2]
    address, _, query = rest.partition("?")
    user_and_password, at, _ = address.rpartition("@")
    if at and ":" in user_and_password.partition("/")[0]:
        yield user_and_password
        yield user_and_password.partition(":")[2]
    elif at and "/" not in user_and_password:
        yield user_and_password
    if query:
        yield query
        for pair in re.split("[&;]", query):
            yield pair.partition("=")[2]


def _secrets_of_options(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secrets_of_options(value)
        elif isinstance(value, str) and "://" in value:
            yield from _secrets_of_url(value)
        elif isinstance(value, str) and _SECRET_OPTION.search(str(name)):
            yield value


def _forms(secret: str) -> Iterator[str]:
    """How a secret may be written: as it is, with or without percent signs, inside the repr of a string."""
    for form in (secret, unquote(secret), quote(unquote(secret)), quote(unquote(secret), safe="")):
        yield form
        yield repr(form)[1:-1]
