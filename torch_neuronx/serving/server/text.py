"""Tokens to text while they come, and tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["Bytes", "Pretrained", "TextStream", "Tokenizer"]

_HALF = "\ufffd"  # what a tokenizer writes for part of a character


class Tokenizer(Protocol):
    """What the server needs of one."""

    stop_tokens: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """Return a prompt's tokens."""
        ...

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the tokens of a conversation, up to where the answer begins.

        Raises:
            ValueError: The model has no form for this conversation.
        """
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text, without tokens that stand for no text."""
        ...


class Bytes:
    """Every byte of UTF-8 is a token: for models with random weights, which have no tokenizer."""

    size = 256
    stop_tokens: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        """Return the bytes."""
        return list(text.encode())

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Return a line for each message, and the beginning of one."""
        lines = [f"{m['role']}: {m['content']}\n" for m in messages]
        return self.encode("".join(lines) + "assistant:")

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text; bytes that are none become a mark each."""
        return bytes(t for t in tokens if t < self.size).decode(errors="replace")


class Pretrained:
    """A tokenizer of transformers."""

    def __init__(self, tokenizer: Any, stop_tokens: frozenset[int]) -> None:
        """Take a tokenizer, and the tokens that end a text."""
        self._tokenizer = tokenizer
        self.stop_tokens = stop_tokens

    def encode(self, text: str) -> list[int]:
        """Return the tokens, with those that the model wants in front."""
        tokens: list[int] = self._tokenizer(text)["input_ids"]
        return tokens

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the conversation in the model's template."""
        if not self._tokenizer.chat_template:
            raise ValueError("this model has no chat template; use /v1/completions")
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        tokens: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text without special tokens."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


class TextStream:
    """Text of tokens as they come: whole characters, and nothing from a stop string on.

    Attributes:
        stopped: Whether a stop string was found; nothing comes after it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        """Begin a text that ends before any of the `stop` strings."""
        self._tokenizer, self._stop = tokenizer, [s for s in stop if s]
        self._tokens: list[int] = []
        # Tokenizers may write a token differently at the start of a text, so that each is decoded
        # behind some that are known already: those from `_from` to before `_known`.
        self._from = self._known = 0
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """Return the text that is certain now."""
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[self._from : self._known])
        text = self._tokenizer.decode(self._tokens[self._from :])
        if text.endswith(_HALF) and len(self._tokens) - self._known < 4:
            return ""  # the rest of the character may follow; no character has more than 4 bytes
        self._from, self._known = self._known, len(self._tokens)
        return self._out(text[len(before) :], last=False)

    def end(self) -> str:
        """Return what was held back."""
        before = self._tokenizer.decode(self._tokens[self._from : self._known])
        text = self._tokenizer.decode(self._tokens[self._from :])
        self._from = self._known = len(self._tokens)
        return self._out(text[len(before) :], last=True)

    def _out(self, text: str, *, last: bool) -> str:
        if self.stopped:
            return ""
        self._held += text
        places = [place for s in self._stop if (place := self._held.find(s)) >= 0]
        if places:
            self.stopped = True
            return self._held[: min(places)]
        # A stop string may have begun.
        longest = 0 if last else max((self._begun(s) for s in self._stop), default=0)
        out = self._held[: len(self._held) - longest]
        self._held = self._held[len(out) :]
        return out

    def _begun(self, stop: str) -> int:
        """How many characters at the end may be the first ones of a stop string."""
        for count in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:count]):
                return count
        return 0
