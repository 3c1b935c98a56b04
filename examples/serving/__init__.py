"""A small HTTP server for sentence embeddings from a saved trace (docs/serving.md).

python -m examples.serving serve    # listens until it gets SIGINT or SIGTERM
python -m examples.serving load     # starts it, sends requests from several clients, and checks

embedder.py  the model: MiniLM, traced for several lengths into one file
batcher.py   requests to batches: a bounded queue, a largest batch, a longest wait
server.py    HTTP in and out, metrics, errors
load.py      the load test
"""
