"""The rows of the operator table, one module per family of operators."""
