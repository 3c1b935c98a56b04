"""torchtitan's own start, after the one thing that must come before torchtitan is imported.

    PYTHONPATH=.:.venv/torchtitan torchrun --nproc-per-node 4 -m examples.torchtitan_train \
        --module examples.torchtitan_llama3 --config debugmodel_flex ...

torchtitan compiles FlexAttention with PyTorch's default backend, which it looks up while it is
imported. Configurations without FlexAttention do as well with `-m torchtitan.train`.
"""

import torch

torch.compiler.set_default_backend("neuron")

from torchtitan.train import main  # noqa: E402

__all__ = ["main"]

if __name__ == "__main__":
    main()
