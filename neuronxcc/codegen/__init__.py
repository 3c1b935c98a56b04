"""From tensor IR to machine code: loop kernels, their reference meaning, and LLVM."""
