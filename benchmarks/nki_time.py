"""What timing a kernel on the performance model costs, in seconds of the processor.

Run it as ``python -m benchmarks.nki_time [--million]``: recordings of the tiled kernels of
`benchmarks.nki_recording` become streams, and the streams are simulated.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.nki_recording import add, add_in_first_generation, matmul, million, recorded
from neuronxcc.perf import predict
from nki.perf import stream_of


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--million", action="store_true", help="a million instructions too")
    options.add_argument("--repeats", type=int, default=3)
    chosen = options.parse_args()
    cases = {"add": add, "matmul": matmul}
    cases["add in the first generation"] = add_in_first_generation.today().function
    if chosen.million:
        cases["million"] = million
    for name, kernel in cases.items():
        recording = recorded(kernel, 4096)
        seconds: list[tuple[float, float]] = []
        for _ in range(1 if kernel is million else chosen.repeats):
            begin = time.process_time()
            stream = stream_of(recording, compiled="first" in name)
            middle = time.process_time()
            found = predict(stream, recording.target)
            seconds.append((middle - begin, time.process_time() - middle))
        to_stream, simulated = (min(part) for part in zip(*seconds, strict=True))
        print(
            f"{name}: {found.instructions} instructions, {to_stream:.2f} s to a stream, "
            f"{simulated:.2f} s to simulate; {found.device_us:.0f} us on {found.target}"
        )


if __name__ == "__main__":
    main()
