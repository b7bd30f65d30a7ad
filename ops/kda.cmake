# KDA, convolution, state copies. Tests link kadence_ops_kda alone.
target_sources(kadence_ops_kda PRIVATE)
