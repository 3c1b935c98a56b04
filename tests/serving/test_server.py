"""The server: answers, streams, refusals, clients that go away, the orderly end."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from torch_neuronx.serving import Engine, Options
from torch_neuronx.serving.server.process import Server
from torch_neuronx.serving.server.text import Bytes, TextStream

from .models import LONGEST, greedy


class Letters(Bytes):
    """Every token is text: the models of the tests have fewer tokens than there are bytes."""

    def decode(self, tokens: Any) -> str:
        return "".join(chr(0x100 + t) for t in tokens)


@pytest.fixture(scope="module")
def server(model: PreTrainedModel) -> Iterator[Server]:
    made = Server(Engine(model, Options(blocks=96, block_size=4)), Letters(), "tiny")
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.stop()
    thread.join()


def ask(server: Server, path: str, body: Any = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, data)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def written(prompt: tuple[int, ...], count: int) -> str:
    return Letters().decode(greedy("llama", prompt, count))


def metric(server: Server, name: str) -> float:
    lines = ask(server, "/metrics")[1].splitlines()
    found = [line for line in lines if line.startswith(f"torch_neuronx_serving_{name} ")]
    return float(found[0].split()[1])


def test_completion(server: Server) -> None:
    body = {"model": "tiny", "prompt": [[1, 2, 3], [7]], "max_tokens": 6, "temperature": 0}
    status, text = ask(server, "/v1/completions", body)
    answer = json.loads(text)
    assert status == 200
    assert [c["text"] for c in answer["choices"]] == [written((1, 2, 3), 6), written((7,), 6)]
    assert [c["finish_reason"] for c in answer["choices"]] == ["length"] * 2
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16}


def test_stream_of_a_chat(server: Server) -> None:
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_completion_tokens": 6, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    status, text = ask(server, "/v1/chat/completions", body)
    assert status == 200
    *events, last, empty = text.split("\n\n")
    assert (last, empty) == ("data: [DONE]", "")
    parts = [json.loads(event.removeprefix("data: ")) for event in events]
    prompt = tuple(b"user: hi\nassistant:")
    deltas = [part["choices"][0]["delta"] for part in parts[:-1]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(d.get("content", "") for d in deltas) == written(prompt, 6)
    assert len(deltas) == 7  # one for each token
    assert parts[-1]["usage"]["completion_tokens"] == 6


def test_stop_strings(server: Server) -> None:
    text = written((5, 6), 8)
    body = {"prompt": [5, 6], "max_tokens": 8, "temperature": 0, "stop": text[3:5]}
    answer = json.loads(ask(server, "/v1/completions", body)[1])
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text[: text.index(text[3:5])], "stop")


REFUSED: list[tuple[Any, int, str | None, str]] = [
    ("{", 400, None, "the body is no JSON"),
    ("[" * 100_000, 400, None, "the body is no JSON"),
    ([], 400, None, "the body must be a JSON object"),
    ({}, 400, "prompt", "prompt must be a string, tokens, or 1 to 32"),
    ({"prompt": ""}, 400, "prompt", "the prompt has no tokens"),
    ({"prompt": [250]}, 400, None, "token 250 is not in the vocabulary"),
    ({"prompt": [[1], "a", [True]]}, 400, "prompt", "a prompt must be a string or a list"),
    ({"prompt": "a", "max_token": 1}, 400, "max_token", "unrecognized parameter"),
    ({"prompt": "a", "n": 2}, 400, "n", "n=2 is not supported"),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "must be at least 1"),
    ({"prompt": "a", "max_tokens": True}, 400, "max_tokens", "must be an integer"),
    ({"prompt": "a", "max_tokens": 10**30}, 400, "prompt", f"limit is {LONGEST} together"),
    ({"prompt": "a", "temperature": 3}, 400, "temperature", "between 0 and 2"),
    ({"prompt": "a", "seed": 2**80}, 400, "seed", "an integer of 64 bits"),
    ({"prompt": "a", "stop": [1]}, 400, "stop", "stop must be a string"),
    ({"prompt": "a", "stream": "yes"}, 400, "stream", "true or false"),
    ({"prompt": "a", "model": "gpt-5"}, 404, "model", "the model 'gpt-5' does not exist"),
    ('{"prompt": "\\ud800"}', 400, "prompt", "half a character at 0"),
    (b"x" * (5 << 20), 413, None, "the body has more than 4194304 bytes"),
]


@pytest.mark.parametrize(("body", "status", "param", "text"), REFUSED)
def test_refused(server: Server, body: Any, status: int, param: str | None, text: str) -> None:
    found, answer = ask(server, "/v1/completions", body)
    error = json.loads(answer)["error"]
    assert (found, error["param"], error["type"]) == (status, param, "invalid_request_error")
    assert text in error["message"]


def test_other_paths(server: Server) -> None:
    assert ask(server, "/health") == (200, '{"status":"ok"}')
    assert json.loads(ask(server, "/v1/models")[1])["data"][0]["id"] == "tiny"
    assert ask(server, "/v1/models/tiny")[0] == 200
    assert [ask(server, path)[0] for path in ("/v1/models/x", "/x", "/v1/completions")] == [
        404, 404, 405,
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_blocks(server: Server, stream: bool) -> None:
    cancelled = 'finished_total{end="cancelled"}'
    before = metric(server, cancelled) if cancelled in ask(server, "/metrics")[1] else 0
    body = json.dumps({"prompt": [1, 2], "max_tokens": LONGEST - 2, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        while metric(server, "running") == 0:
            time.sleep(0.001)
    while metric(server, "blocks_used"):
        time.sleep(0.01)
    assert metric(server, cancelled) == before + 1


@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=3), max_size=2))
def test_text_comes_whole(text: str, stop: list[str]) -> None:
    """Byte for byte, the parts are the text up to the first stop string."""
    tokenizer = Bytes()
    stream = TextStream(tokenizer, stop)
    out = "".join(stream.add(token) for token in tokenizer.encode(text)) + stream.end()
    places = [place for s in stop if (place := text.find(s)) >= 0]
    assert out == text[: min(places, default=len(text))]
    assert stream.stopped == bool(places)


def test_sigterm_drains() -> None:
    """The command answers what it has accepted, with compiled steps, then ends with 0."""
    options = ["--random-weights", "--port", "0", "--compile", "--requests", "1"]
    command = [sys.executable, "-m", "torch_neuronx.serving", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        next(lines)
        assert next(lines).startswith("compiled the step of 1, ")
        port = int(next(lines).split(":")[-1].split("/")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = json.dumps({"prompt": "hello", "max_tokens": 60, "stream": True})
        connection.request("POST", "/v1/completions", body)
        answer = connection.getresponse()
        answer.readline()
        process.send_signal(signal.SIGTERM)
        text = answer.read().decode()
        connection.close()
        assert text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"length"' in text
        assert process.wait(60) == 0
        assert next(lines) == "stopped\n"
