"""What a URL is called: nothing secret, one name for one file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.sources.urls import drop_digest, find_file_name, find_local, hide_secrets, is_remote, name_url

SIGNED = [
    "https://b.s3.amazonaws.com/in.csv?X-Amz-Algorithm=A&X-Amz-Credential=K&X-Amz-Date={0}&X-Amz-Signature=S{0}",
    "https://storage.googleapis.com/b/in.csv?X-Goog-Date={0}&X-Goog-Signature=S{0}",
    "https://acc.blob.core.windows.net/c/in.csv?sv=2024-01-01&se={0}&sr=b&sp=r&sig=S{0}",
    "https://x.cloudfront.net/in.csv?Expires={0}&Signature=S{0}&Key-Pair-Id=K",
]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/in.csv", "s3://bucket/in.csv"),
        ("s3://bucket/part-#1.csv", "s3://bucket/part-#1.csv"),
        ("HTTPS://user:pw@host:8080/in.csv", "https://host:8080/in.csv"),
        ("https://host/in.csv#part", "https://host/in.csv"),
        ("https://host/in.csv?token=pw", "https://host/in.csv?..."),
        ("ftp://user:pw@host/in.csv", "ftp://host/in.csv"),
        ("ftp://user:p@w@host/in.csv", "ftp://host/in.csv"),
        (
            "abfs://container@account.dfs.core.windows.net/in.csv",
            "abfs://container@account.dfs.core.windows.net/in.csv",
        ),
        ("zip://in.csv::https://user:pw@host/a.zip?sig=pw", "zip://in.csv::https://host/a.zip?..."),
        ("zip://*.csv::simplecache::s3://key:pw@bucket/a.zip", "zip://*.csv::simplecache::s3://bucket/a.zip"),
        ("folder/in.csv", "folder/in.csv"),
        ("a?b.csv", "a?b.csv"),
    ],
)
def test_what_messages_call_it(url: str, shown: str) -> None:
    assert hide_secrets(url) == shown


@pytest.mark.parametrize(
    "url", ["s3://bucket/a b.csv", "memory://in/a.csv", "https://host/in.csv", "hf://datasets/a/b@c/d"]
)
def test_a_url_without_a_query_is_its_own_name(url: str) -> None:
    assert name_url(url) == url


def test_each_query_has_a_name_of_its_own() -> None:
    names = [name_url(f"https://host/in.csv{query}") for query in ("", "?page=1", "?page=2", "?page=1&x=", "?page")]
    assert len(set(names)) == 5
    # As databases have it.
    assert names[1] == "https://host/in.csv?#08c2b8ad5895"
    assert {drop_digest(name) for name in names} == {"https://host/in.csv"}
    assert name_url("zip://a.csv::https://h/a.zip?n=1") != name_url("zip://a.csv::https://h/a.zip?n=2")


@pytest.mark.parametrize("url", SIGNED)
def test_a_new_signature_is_no_new_name(url: str) -> None:
    assert name_url(url.format(1)) == name_url(url.format(2)) == url.partition("?")[0]
    assert name_url(url.format(1) + "&versionId=1") != name_url(url.format(1) + "&versionId=2")


@pytest.mark.parametrize(
    ("url", "ending"),
    [
        ("https://host/in.csv?sig=a.parquet", ".csv"),
        ("https://host/get?file=in.csv", ".csv"),
        ("zip://in.csv::https://host/a.zip?x=1", ".csv"),
        ("s3://bucket/what?.csv", ".csv"),
    ],
)
def test_where_the_ending_stands(url: str, ending: str) -> None:
    assert find_file_name(url).endswith(ending)


@given(st.text(max_size=60))
def test_any_text_behind_a_scheme_is_told_without_what_stands_behind_its_query(text: str) -> None:
    url = f"https://user:SECRET@host/{text}?key=SECRET"
    assert is_remote(url)
    assert "SECRET" not in hide_secrets(url) + name_url(url)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("in.csv", "in.csv"),
        ("a://b::c", None),
        ("file:///in/a?b#c.csv", "/in/a?b#c.csv"),
        ("local:///in.csv", "/in.csv"),
        ("s3://bucket/in.csv", None),
        ("file:///a.zip::x", None),
    ],
)
def test_which_urls_are_files_of_this_machine(text: str, path: str | None) -> None:
    assert find_local(text) == path
