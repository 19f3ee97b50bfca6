"""What of a URL, and of a driver's text, may be shown."""

from __future__ import annotations

import pytest

from asyncckpt.errors import InvalidKeyError
from asyncckpt.storage.factory import split_location
from asyncckpt.storage.urls import Secrets, host_of, redacted, refuse_raw_password, split_query


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/key", "s3://bucket/key"),
        ("sftp://user@host/key", "sftp://user@host/key"),
        ("abfs://container@account.dfs/key", "abfs://container@account.dfs/key"),
        ("sftp://user:pass@host/key", "sftp://…@host/key"),
        ("https://host/key?X-Amz-Signature=abc", "https://host/key?…"),
        ("https://host?X-Amz-Signature=abc", "https://host?…"),
        ("https://token@host/key", "https://…@host/key"),
        ("/plain/path?x", "/plain/path?x"),
        ("sftp://user:a/b@c@host/key", "sftp://…@host/key"),
        ("sftp://user:a@b/c@host/key", "sftp://…@host/key"),
        ("sftp://user:half", "sftp://…"),
        ("sftp://host:22/key", "sftp://host:22/key"),
        ("http://[::1]:9000/key", "http://[::1]:9000/key"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
        ("odd_scheme://user:pass@host/x", "odd_scheme://…@host/x"),
        ("zip://a.ckpt::ftp://user:pass@host/x", "zip://…@host/x"),
        ("simplecache::https://host/x?sig=abc", "simplecache::https://host/x?…"),
    ],
)
def test_redacted(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize("url", ["ftp://user:a/b@host/x", "s3://key:a/b@bucket", "https://user:a/b/c@host/x"])
def test_a_raw_slash_in_a_password(url: str) -> None:
    with pytest.raises(InvalidKeyError, match="write a slash in a password as %2F"):
        refuse_raw_password(url)


@pytest.mark.parametrize(
    "url",
    [
        "sftp://host:22/a@b",
        "ftp://user:a%2Fb@host/x@y",
        "s3://bucket/a:b@c",
        "http://[::1]:9000/a@b",
        "zip://a@b::ftp://user:pass@host/x",
        "plain:a/b@c",
    ],
)
def test_no_raw_slash_in_a_password(url: str) -> None:
    refuse_raw_password(url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://host/a/b.ckpt?sig=x/y", ("https://host/a?sig=x/y", "b.ckpt")),
        ("simplecache::http://host/b.ckpt?sig=x", ("simplecache::http://host?sig=x", "b.ckpt")),
        ("sftp://host/a/what?.ckpt", ("sftp://host/a", "what?.ckpt")),
    ],
)
def test_a_signature_is_no_part_of_a_key(url: str, expected: tuple[str, str]) -> None:
    assert split_location(url) == expected


@pytest.mark.parametrize("scheme", ["ftp", "sftp", "abfs", "memory", "simplecache::ftp"])
def test_only_web_addresses_take_a_query(scheme: str) -> None:
    with pytest.raises(InvalidKeyError, match="only http:// and https:// take a query") as caught:
        split_location(f"{scheme}://host/a/b.ckpt?sv=1&sig=hunter2")
    assert "hunter2" not in str(caught.value)


def test_queries_and_hosts() -> None:
    assert split_query("http://host/x?a=1") == ("http://host/x", "?a=1")
    assert split_query("/path/what?") == ("/path/what?", "")
    assert host_of("http://user:pass@host:80/x?a=1") == "host:80"


@pytest.mark.parametrize(
    "text",
    [
        "can't log in as me with p/ss'w0rd",
        "can't log in as me with p%2Fss%27w0rd",
        "can't log in as me with p%2fss%27w0rd to ftp://me:p%2fss%27w0rd@host",
        repr(ValueError("p/ss'w0rd")),
        repr({"password": "p/ss'w0rd"}),
        "GET https://other/x?sig=p/ss'w0rd",
        "sent sig=S1gn/ature== along",
        "sent sig=S1gn%2Fature%3D%3D along",
        "sent Authorization: Basic bWU6cC9zc3c= along",
        "the key is K3yK3y",
        "the inner one is 1nn3r",
    ],
)
def test_secrets_are_taken_out_of_any_text(text: str) -> None:
    secrets = Secrets(
        "ftp://me:p%2fss%27w0rd@host/x?sig=S1gn%2Fature%3D%3D",
        {"account_key": "K3yK3y", "client_kwargs": {"token": "1nn3r"}, "host": "host"},
    )
    clean = secrets.without(text)
    for secret in ("ss'w0rd", "ss%27w0rd", "w0rd", "S1gn", "bWU6cC9zc3c", "K3yK3y", "1nn3r"):
        assert secret not in clean
    assert secrets.are_in(text)
    assert not secrets.are_in(clean)
    assert "w0rd" not in repr(secrets)
