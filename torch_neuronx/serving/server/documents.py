"""What clients send, checked, and what they get: documents in OpenAI's form.

A parameter that would change the result and is not supported is refused; one that has its neutral
value is accepted, as clients often send them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from torch_neuronx.serving.request import Sampling
from torch_neuronx.serving.server.text import Tokenizer

__all__ = ["Completion", "RefusedError", "chat", "completion", "error_document"]

_MOST_PROMPTS = 32
_MOST_STOPS = 4
_SEEDS = 1 << 63
# Parameters without effect, by the values that say so.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (None, False, 0),
    "top_logprobs": (None, 0),
    "suffix": (None, ""),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": (None, {}),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, True, False),
    "store": (None, False),
}
_COMMON = {
    "model", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options",
    "user",
}  # fmt: skip


class RefusedError(Exception):
    """An answer that is no result."""

    def __init__(
        self,
        text: str,
        *,
        status: HTTPStatus = HTTPStatus.BAD_REQUEST,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        """Say why, and which parameter is meant."""
        super().__init__(text)
        self.status, self.param, self.code = status, param, code

    @property
    def document(self) -> dict[str, Any]:
        """The answer's body."""
        return error_document(self.status, str(self), self.param, self.code)


def error_document(
    status: int, text: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return an error as OpenAI's clients read it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}


@dataclass
class Completion:
    """A request for completions of one or several prompts.

    Attributes:
        prompts: Tokens of each.
        sampling: For all.
        model: The name by which the client asked.
        stop: Strings that end the text, before them.
        stream: Whether parts are wanted as they come.
        usage: Whether a stream is to end with the numbers of tokens.
        is_chat: Whether the answer is a message.
        id: The answer's.
        created: Seconds since 1970.
    """

    prompts: list[list[int]]
    sampling: Sampling
    model: str
    stop: list[str]
    stream: bool
    usage: bool
    is_chat: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def part(self, choices: list[dict[str, Any]], usage: Any = None) -> dict[str, Any]:
        """Return a part of a stream."""
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return self._document(kind, choices, usage)

    def choice_part(
        self, index: int, text: str | None, finish: str | None, *, first: bool = False
    ) -> dict[str, Any]:
        """Return a choice's part of a stream."""
        if not self.is_chat:
            body: dict[str, Any] = {"text": text or ""}
        else:
            role = {"role": "assistant"} if first else {}
            body = {"delta": role | ({} if text is None else {"content": text})}
        return {"index": index, **body, "logprobs": None, "finish_reason": finish}

    def whole(self, texts: Sequence[str], ends: Sequence[str], tokens: int) -> dict[str, Any]:
        """Return the answer that is no stream."""
        choices = []
        for index, (text, end) in enumerate(zip(texts, ends, strict=True)):
            message = {"role": "assistant", "content": text, "refusal": None}
            body = {"message": message} if self.is_chat else {"text": text}
            choices.append({"index": index, **body, "logprobs": None, "finish_reason": end})
        kind = "chat.completion" if self.is_chat else "text_completion"
        return self._document(kind, choices, self.tokens(tokens))

    def tokens(self, generated: int) -> dict[str, int]:
        """Return the numbers of tokens."""
        given = sum(map(len, self.prompts))
        return {
            "prompt_tokens": given,
            "completion_tokens": generated,
            "total_tokens": given + generated,
        }

    def _document(self, kind: str, choices: list[dict[str, Any]], usage: Any) -> dict[str, Any]:
        prefix = "chatcmpl" if self.is_chat else "cmpl"
        document = {
            "id": f"{prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        return document if usage is None else document | {"usage": usage}


def completion(body: Any, tokenizer: Tokenizer, model: str, room: int) -> Completion:
    """Check the body of POST /v1/completions.

    Args:
        body: As JSON says it.
        tokenizer: For prompts that are text.
        model: The name of the one that is served.
        room: Tokens that prompt and completion may have together.

    Raises:
        RefusedError: It is none, or asks for what is not supported.
    """
    body = _document(body, _COMMON | {"prompt"}, model)
    given = body.get("prompt")
    if isinstance(given, str) or (isinstance(given, list) and given and _is_token(given[0])):
        given = [given]
    if not isinstance(given, list) or not 1 <= len(given) <= _MOST_PROMPTS:
        raise RefusedError(
            f"prompt must be a string, tokens, or 1 to {_MOST_PROMPTS} of either", param="prompt"
        )
    prompts = [_tokens(prompt, tokenizer) for prompt in given]
    most = _number(body, "max_tokens", 16, int)
    return _made(body, prompts, tokenizer, most, room, is_chat=False)


def chat(body: Any, tokenizer: Tokenizer, model: str, room: int) -> Completion:
    """Check the body of POST /v1/chat/completions; see `completion`."""
    body = _document(body, _COMMON | {"messages", "max_completion_tokens"}, model)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError("messages must be a list of at least one message", param="messages")
    try:
        tokens = tokenizer.encode_chat([_message(m, i) for i, m in enumerate(messages)])
    except ValueError as error:
        raise RefusedError(str(error), param="messages") from None
    name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    most = _number(body, name, max(1, room - len(tokens)), int)
    return _made(body, [tokens], tokenizer, most, room, is_chat=True)


def _document(body: Any, known: set[str], model: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise RefusedError("the body must be a JSON object")
    for name, value in body.items():
        if name in _NEUTRAL:
            if value not in _NEUTRAL[name]:
                raise RefusedError(f"{name}={value!r} is not supported", param=name)
        elif name not in known:
            raise RefusedError(f"unrecognized parameter: {name}", param=name)
    named = body.get("model", model)
    if named != model:
        raise RefusedError(
            f"the model {named!r} does not exist; this server has {model!r}",
            status=HTTPStatus.NOT_FOUND, param="model", code="model_not_found",
        )  # fmt: skip
    return body


def _made(
    body: dict[str, Any], prompts: list[list[int]], tokenizer: Tokenizer, most: int, room: int,
    *, is_chat: bool,
) -> Completion:  # fmt: skip
    longest = max(map(len, prompts))
    if longest + most > room:
        raise RefusedError(
            f"the prompt has {longest} tokens and {most} are asked for; this model's limit is "
            f"{room} together",
            param="messages" if is_chat else "prompt", code="context_length_exceeded",
        )  # fmt: skip
    seed = _number(body, "seed", None, int)
    if seed is not None and not -_SEEDS <= seed < _SEEDS:
        raise RefusedError("seed must be an integer of 64 bits", param="seed")
    temperature = _number(body, "temperature", 1.0, float)
    top_p = _number(body, "top_p", 1.0, float)
    try:
        sampling = Sampling(most, temperature, top_p, seed, tokenizer.stop_tokens)
    except ValueError as error:
        text = str(error)
        raise RefusedError(text, param=text.split(maxsplit=1)[0]) from None
    stop = body.get("stop")
    stop = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if (
        not isinstance(stop, list)
        or len(stop) > _MOST_STOPS
        or not all(isinstance(s, str) and s for s in stop)
    ):
        raise RefusedError(f"stop must be a string or up to {_MOST_STOPS} of them", param="stop")
    stream = body.get("stream") or False
    options = body.get("stream_options")
    if not isinstance(stream, bool):
        raise RefusedError("stream must be true or false", param="stream")
    if options is not None and not (stream and isinstance(options, dict)):
        raise RefusedError("stream_options are an object, for streams", param="stream_options")
    return Completion(
        prompts=prompts, sampling=sampling, model=body.get("model", ""), stop=stop, stream=stream,
        usage=bool(options and options.get("include_usage")), is_chat=is_chat,
    )  # fmt: skip


def _number(body: dict[str, Any], name: str, default: Any, kind: type) -> Any:
    value = body.get(name)
    if value is None:
        return default
    # True is an integer for Python, and 1 a float.
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        what = "an integer" if kind is int else "a number"
        raise RefusedError(f"{name} must be {what}, got {value!r}", param=name)
    return value


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _tokens(prompt: Any, tokenizer: Tokenizer) -> list[int]:
    if isinstance(prompt, str):
        tokens = tokenizer.encode(_text(prompt, "prompt"))
    elif isinstance(prompt, list) and all(map(_is_token, prompt)):
        tokens = prompt
    else:
        raise RefusedError("a prompt must be a string or a list of tokens", param="prompt")
    if not tokens:
        raise RefusedError("the prompt has no tokens", param="prompt")
    return tokens


def _message(message: Any, number: int) -> dict[str, str]:
    where = f"messages[{number}]"
    if not isinstance(message, dict):
        raise RefusedError(f"{where} must be an object", param="messages")
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "developer", "user", "assistant"):
        raise RefusedError(f"{where}.role is {role!r}, which is not supported", param="messages")
    if isinstance(content, list):
        if not all(
            isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str)
            for p in content
        ):
            raise RefusedError(f"{where}.content may have parts of text only", param="messages")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RefusedError(f"{where}.content must be a string", param="messages")
    return {"role": role, "content": _text(content, "messages")}


def _text(text: str, param: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(
            f"the text is no Unicode: half a character at {error.start}", param=param
        ) from None
    return text
