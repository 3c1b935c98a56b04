"""An HTTP server in OpenAI's form over the engine (docs/serving.md).

documents.py  what clients send, checked, and what they get
text.py       tokens to text while they come; tokenizers
app.py        the application: routes, streams, disconnects
metrics.py    counters for Prometheus
protocol.py   connections that end when a client doesn't
process.py    the server's life: address, signals, the orderly end
"""
