"""``soloflight explain``: what it says of a request, and which part it names where two do not share."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from soloflight.cli import main
from soloflight.cli.request_file import Unreadable, read_request_file

CONFIG = """
[server]
scope_key = "a key for tests, long enough"
client_keys = []
[[stage]]
name = "evaluation"
match = { paths = ["/eval/*"], methods = ["POST"] }
ignore_fields = ["user"]
key_headers = ["X-Tenant"]
[[stage]]
name = "quiet"
share = "never"
replay = "never"
"""
BODY: dict[str, Any] = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "SECRET-PROMPT"}]}
HEADERS = {"Authorization": "Bearer SECRET-KEY", "Content-Type": "application/json"}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    (tmp_path / "conf.toml").write_text(CONFIG)

    def written(name: str, body: Any = BODY, path: str = "/v1/chat/completions", **headers: str | None) -> Path:
        fields = {**HEADERS, **{key.replace("_", "-"): value for key, value in headers.items()}}
        request = {
            "url": path,
            "headers": {key: value for key, value in fields.items() if value is not None},
            "body": body,
        }
        (tmp_path / name).write_text(json.dumps(request))
        return tmp_path / name

    return written


def explain(*words: str | Path) -> tuple[int, str]:
    config = Path(str(words[0])).parent / "conf.toml"
    result = CliRunner().invoke(main, ["explain", f"--config={config}", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "SECRET" not in result.output
    return result.exit_code, result.output


def places(output: str) -> list[str]:
    return [line.strip() for line in output.partition("They differ in:\n")[2].splitlines()]


def test_one_request_in_full(write: Any) -> None:
    code, told = explain(write("one", path="/eval/v1/chat/completions?api_key=SECRET"))
    assert code == 0
    lines = [line.split(None, 1) for line in told.strip().splitlines()]
    assert [line[0] for line in lines[:4]] == ["request", "stage", "scope", "fingerprint"]
    assert lines[0][1].startswith("POST /eval/v1/chat/completions  (")
    assert lines[1][1] == "evaluation"
    assert lines[2][1].endswith("(of authorization)")
    assert len(lines[3][1]) == 48
    assert told.endswith(
        "verdict      joins an identical request in flight\n"
        "             takes a kept answer\n"
        "             its complete answer is kept for 300 s (not sampled)\n\n"
    )


def test_the_fingerprint_is_that_of_the_proxy_with_this_scope_key(write: Any) -> None:
    first, again = explain(write("one"))[1], explain(write("two"))[1]
    assert first.split("fingerprint  ")[1] == again.split("fingerprint  ")[1]
    Path(write("one").parent / "conf.toml").write_text("")
    assert "server.scope_key is not set" in explain(write("one"))[1]


@pytest.mark.parametrize(
    ("headers", "more", "verdict"),
    [
        ({}, {"path": "/v1/files"}, "alone (route): this route is not shareable"),
        ({"Cache_Control": "no-store"}, {}, "alone (no-store): the client asks"),
        ({"If_None_Match": "x"}, {}, "alone (conditional)"),
        ({"X_Soloflight_Stage": "quiet"}, {}, "alone (share): its stage"),
        ({"X_Soloflight_Stage": "nowhere"}, {}, "refused: 400 bad_request"),
        ({"Cache_Control": "no-cache"}, {}, "takes no kept answer"),
        ({"Cache_Control": "max-age=5"}, {}, "takes a kept answer of at most 5 s"),
        ({"Cache_Control": "only-if-cached"}, {}, "causes no upstream call"),
        ({"Idempotency_Key": "k"}, {}, "kept for 86400 s (named by an Idempotency-Key)"),
        ({}, {"body": {**BODY, "temperature": 1}}, "kept for 30 s (sampled)"),
        ({"Authorization": None}, {}, "of no credential at all"),
    ],
)
def test_verdicts(headers: dict[str, str | None], more: dict[str, Any], verdict: str, write: Any) -> None:
    code, told = explain(write("one", **more, **headers))
    assert (code, verdict in told) == (0, True), told


def test_spelling_does_not_matter(write: Any) -> None:
    one = write("one")
    two = one.parent / "two"
    spelt = json.dumps(dict(reversed(BODY.items())), indent=2).replace("user", "\\u0075ser")
    two.write_text(
        f"POST http://host/v1/chat/completions HTTP/1.1\nauthorization: Bearer SECRET-KEY\n"
        f"User-Agent: x\ncontent-type: application/json\n\n{spelt}\n"
    )
    code, told = explain(one, two)
    assert (code, told.splitlines()[-1]) == (0, "They share: one fingerprint.")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"Authorization": "Bearer SECRET-OTHER"}, ["scope: authorization"]),
        ({"X_Api_Key": "SECRET"}, ["scope: x-api-key"]),
        ({"path": "/v1/completions"}, ["path"]),
        ({"path": "/v1/chat/completions?a=SECRET"}, ["query"]),
        ({"Accept": "text/event-stream"}, ["accept"]),
        ({"Content_Type": "application/json; charset=utf-8"}, ["content-type"]),
        ({"OpenAI_Beta": "x"}, ["field: openai-beta"]),
        ({"body": {**BODY, "temperature": 0.0}}, ["body: temperature"]),
        ({"body": {**BODY, "messages": [{"role": "user", "content": "SECRET"}]}}, ["body: messages[0].content"]),
        ({"body": {**BODY, "messages": []}}, ["body: messages (1 and 0 items)"]),
        ({"body": {**BODY, "n": None}}, ["body: n (only in the second)"]),
        ({"body": {"model": "m"}}, ["body: messages (only in the first)", "body: temperature (only in the first)"]),
        ({"body": '{"a":1,"a":2}'}, ["body: it is keyed as json here, as raw there"]),
        ({"Idempotency_Key": "a"}, ["idempotency-key"]),
        ({"X_Soloflight_Stage": "evaluation"}, ["stage"]),
    ],
)
def test_two_that_do_not_share_are_told_where(more: dict[str, Any], named: list[str], write: Any) -> None:
    code, told = explain(write("one"), write("two", **more))
    assert (code, places(told)) == (1, named), told


def test_what_a_stage_leaves_out_or_adds(write: Any) -> None:
    path = "/eval/v1/chat/completions"
    one, two = write("one", {**BODY, "user": "a"}, path), write("two", {**BODY, "user": "b"}, path)
    assert explain(one, two)[0] == 0
    assert places(explain(one, write("two", {**BODY, "user": "a"}, path, X_Tenant="t"))[1]) == ["field: x-tenant"]


def test_one_key_with_two_bodies_is_a_mismatch(write: Any) -> None:
    one, two = write("one", Idempotency_Key="k"), write("two", {**BODY, "n": 2}, Idempotency_Key="k")
    code, told = explain(one, two)
    assert (code, "422 idempotency_mismatch" in told) == (1, True)


def test_a_request_that_goes_alone_shares_with_nobody(write: Any) -> None:
    code, told = explain(write("one"), write("two", Cache_Control="no-store"))
    assert (code, "the second one goes alone" in told) == (1, True)


def form(*parts: tuple[str, str], boundary: str = "b") -> bytes:
    lines = [f"--{boundary}\r\nContent-Disposition: form-data; {name}\r\n\r\n{text}\r\n" for name, text in parts]
    return "".join([*lines, f"--{boundary}--\r\n"]).encode()


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ([('name="file"; filename="a.wav"', "SECRET2"), ('name="model"', "w")], ["body: part 1 (file): content"]),
        ([('name="file"; filename="b.wav"', "SECRET"), ('name="model"', "w")], ["body: part 1 (file): file name"]),
        ([('name="file"; filename="a.wav"', "SECRET")], ["body: 2 and 1 parts"]),
    ],
)
def test_forms_are_compared_part_by_part(other: list[tuple[str, str]], named: list[str], write: Any) -> None:
    folder = write("one").parent
    first = [('name="file"; filename="a.wav"', "SECRET"), ('name="model"', "w")]
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=%b\r\n\r\n"
    (folder / "one").write_bytes(head % b"b" + form(*first))
    (folder / "two").write_bytes(head % b"c" + form(*other, boundary="c"))
    code, told = explain(folder / "one", folder / "two")
    assert (code, places(told)) == (1, named), told


def test_a_coded_body_is_read(write: Any) -> None:
    folder = write("one").parent
    for name, body in (("one", BODY), ("two", {**BODY, "n": 2})):
        coded = gzip.compress(json.dumps(body).encode(), mtime=0)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\n"
        (folder / name).write_bytes(head + b"Content-Length: %d\r\n\r\n" % len(coded) + coded)
    code, told = explain(folder / "one", folder / "two")
    assert (code, places(told)) == (1, ["body: n (only in the second)"])


def test_many_differences_are_cut_short(write: Any) -> None:
    many = {f"m{number}": number for number in range(40)}
    named = places(explain(write("one"), write("two", {**BODY, **many}))[1])
    assert (len(named), named[-1]) == (13, "body: and more")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"hello", "is no request line"),
        (b"GET /v1/models\nno field", "line 2 is no header field"),
        (b"POST / HTTP/1.1\nContent-Length: 9\n\nabc", "shorter than its Content-Length"),
        (b"{nothing", "begins like JSON"),
        (b'{"body": 1}', "neither url nor path"),
        (b'{"url": "/", "data": 1}', "'data' is none of"),
        (b'{"url": "/", "headers": []}', "headers is no object"),
        (b'{"url": "/", "headers": {"a": 1}}', "the header a is no text"),
        (b'{"url": "ftp://h/"}', "the request target must be a path"),
    ],
)
def test_what_is_no_request_is_one_line_and_exit_2(text: bytes, told: str, write: Any) -> None:
    file = write("one")
    file.write_bytes(text)
    code, output = explain(file)
    assert (code, told in output, output.count("\n")) == (2, True, 1), output
    assert explain(file.parent / "missing")[0] == 2
    assert explain(file, file, file)[0] == 2


def test_the_forms_of_a_request_file() -> None:
    assert read_request_file(b"GET /v1/models HTTP/1.1\r\nA:  b \r\n\r\n").fields == ((b"A", b"b"),)
    assert read_request_file(b"GET /v1/models").body == b""
    assert read_request_file(b"POST /x\nA: b\n\nbody\n").body == b"body"
    assert read_request_file(b"POST /x\nContent-Length: 2\n\nbody").body == b"bo"
    said = read_request_file(b'{"path": "/x", "headers": {"A": ["1", "2"]}, "body": {"a": 1}}')
    assert (said.method, said.body) == ("POST", b'{"a":1}')
    assert said.fields == ((b"A", b"1"), (b"A", b"2"), (b"Content-Type", b"application/json"))
    assert read_request_file(b'{"url": "/x"}').method == "GET"
    with pytest.raises(Unreadable):
        read_request_file(b"")
