"""The operators of the tensor IR, one block each: rule, meaning, attributes, engine, gaps, samples.

A new operator is a name in `ir.op`, a block in the file of its family here, and its code in
`codegen/llvm`; `ir.table` collects the blocks.
"""
