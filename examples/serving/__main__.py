"""Trace, save, serve; or serve and send requests (see the package)."""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
from pathlib import Path

from examples.minilm import SENTENCES, model_folder

# isort: split
import torch
from transformers import AutoModel, AutoTokenizer

from examples.serving import load
from examples.serving.embedder import Embedder, Embedding, save
from examples.serving.server import Limits, Server

# Of more than 16 tokens, so that a second bucket is used.
LONGER = """Trains on the northern line will be replaced by buses from Friday evening until early
on Monday morning, because the bridge over the river has to be painted again."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("serve", "load"))
    parser.add_argument("--model", type=Path, help="saved trace; made if it is not there")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--cores", type=int, default=4, help="replicas of the model")
    parser.add_argument("--delay", type=float, default=5, help="ms that a batch waits for more")
    parser.add_argument("--queue", type=int, default=256, help="texts that may wait")
    parser.add_argument("--clients", type=int, default=16, help="of the load test")
    parser.add_argument("--requests", type=int, default=40, help="of every client")
    options = parser.parse_args()
    # Every core computes with its share of the host's processors.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.cores))
    with tempfile.TemporaryDirectory() as folder:
        path = options.model or Path(folder) / "embedding.pt"
        if not path.exists():
            save(Embedding(AutoModel.from_pretrained(model_folder()).eval()), path)
            print(f"  traced and saved: {path.stat().st_size >> 20} MiB", flush=True)
        tokenizer = AutoTokenizer.from_pretrained(model_folder())
        embedder = Embedder(path, tokenizer, options.cores)
    limits = Limits(queue=options.queue, delay=options.delay / 1000)
    server = Server((options.host, options.port), embedder, options.cores, limits)
    print(f"  http://{options.host}:{server.server_port} on {options.cores} cores", flush=True)
    if options.what == "serve":
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: server.stop())
        server.run()
        print("  stopped; all accepted requests are answered")
        return
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        test(server, options.clients, options.requests)
    finally:
        server.stop()
        thread.join()


def test(server: Server, clients: int, requests: int) -> None:
    """Send requests, and compare the answers with the module on the CPU."""
    texts = (*SENTENCES, LONGER)
    result = load.run(server.server_port, texts, clients, requests)
    print(f"  {clients} clients: {result}")
    sizes = ", ".join(f"{n} of {size}" for size, n in sorted(server.batcher.sizes.items()))
    print(f"  batches: {sizes}")
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    embedding = Embedding(AutoModel.from_pretrained(model_folder()).eval())
    largest = 0.0
    for text, vector in result.vectors.items():
        batch = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            wanted = embedding(batch["input_ids"], batch["attention_mask"])[0]
        largest = max(largest, (wanted - torch.tensor(vector)).abs().max().item())
    print(f"  largest difference from the module on the CPU: {largest:.1e}")


if __name__ == "__main__":
    main()
