"""Front ends of the compiler: what makes tensor IR of programs that others wrote."""
