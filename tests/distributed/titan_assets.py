"""A tokenizer and data for torchtitan's debug models, made on the spot from a fixed seed.

Its wheel has neither, and nothing is downloaded.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = 1000  # the debug models have 2048 embeddings
_BEGIN, _END = "<|begin_of_text|>", "<|end_of_text|>"


def documents(count: int, words: int, seed: int = 0) -> list[str]:
    """Return ``count`` texts of ``words`` words, each drawn from the five that may follow the last.

    A small model can learn that.
    """
    rng = random.Random(seed)  # noqa: S311
    vocabulary = [f"w{i}" for i in range(WORDS)]
    follows = {word: rng.sample(vocabulary, 5) for word in vocabulary}
    texts = []
    for _ in range(count):
        text = [rng.choice(vocabulary)]
        while len(text) < words:
            text.append(rng.choice(follows[text[-1]]))
        texts.append(" ".join(text))
    return texts


def for_ranks(texts: Sequence[str], batch: int, ranks: int) -> list[str]:
    """Order texts so that ``ranks`` data parallel ranks together see the batches of one rank.

    torchtitan gives each rank a contiguous part of the data.
    """
    mine = batch // ranks
    starts = range(0, len(texts), batch)
    return [
        texts[start + rank * mine + i]
        for rank in range(ranks)
        for start in starts
        for i in range(mine)
    ]


def make_assets(directory: Path, *, length: int, batch: int, steps: int) -> None:
    """Write ``tokenizer`` and, for 1, 2 and 4 data parallel ranks, ``data1``, ``data2``, ``data4``.

    A document fills a sequence of ``length`` tokens; there are ``steps`` batches of ``batch``.
    """
    names = [_BEGIN, _END, "[UNK]", *(f"w{i}" for i in range(WORDS))]
    words = models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]")  # noqa: S106
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    target = directory / "tokenizer"
    target.mkdir(parents=True)
    tokenizer.save(str(target / "tokenizer.json"))
    config = {"bos_token": _BEGIN, "eos_token": _END, "tokenizer_class": "PreTrainedTokenizerFast"}
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    # Inputs and labels are one token shorter than a text between its two special tokens.
    texts = documents(batch * steps, length - 1)
    for ranks in (1, 2, 4):
        folder = directory / f"data{ranks}"
        folder.mkdir()
        lines = (json.dumps({"text": text}) + "\n" for text in for_ranks(texts, batch, ranks))
        (folder / "data.json").write_text("".join(lines))
