"""A tokenizer and a data set for torchtitan's debug models, made on the spot from a fixed seed.

Its repository has both in its tests' assets, its wheel has neither, and nothing is downloaded here.
"""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

# The debug models have 2048 embeddings.
VOCABULARY = 1024
_BEGIN, _END = "<|begin_of_text|>", "<|end_of_text|>"


def documents(count: int = 400, seed: int = 0) -> list[str]:
    """Return ``count`` texts of 20 to 120 words that a small model can learn something from.

    Every word is drawn from the few that may follow the one before it.
    """
    rng = random.Random(seed)  # noqa: S311
    syllables = ["ka", "lo", "mi", "ne", "ru", "sa", "ti", "vo", "ze", "pu"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(300)]
    follows = {word: rng.sample(words, 5) for word in set(words)}
    texts = []
    for _ in range(count):
        word = rng.choice(words)
        text = [word]
        for _ in range(rng.randint(20, 120)):
            word = rng.choice(follows[word])
            text.append(word)
        texts.append(" ".join(text))
    return texts


def make_assets(directory: Path) -> None:
    """Write ``directory/tokenizer`` (a byte-level BPE) and ``directory/data/data.json``."""
    texts = documents()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[_BEGIN, _END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    target = directory / "tokenizer"
    target.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(target / "tokenizer.json"))
    config = {"bos_token": _BEGIN, "eos_token": _END, "tokenizer_class": "PreTrainedTokenizerFast"}
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    data = directory / "data"
    data.mkdir(exist_ok=True)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (data / "data.json").write_text(lines)
