# Operators around KDA. Tests link kadence_ops_nn alone.
target_sources(kadence_ops_nn PRIVATE)
