# KDA, convolution, state copies. Tests link kadence_ops_kda alone.
target_sources(kadence_ops_kda PRIVATE
  kda_plan.cc kda_metadata.cc kda_registry.cc kda_run.cc
  reference/kda_reference.cc
  cpu/kda_cpu.cc cpu/conv1d.cc cpu/conv1d_kernel.cc cpu/state_copy.cc)
target_link_libraries(kadence_ops_kda PRIVATE hwy::hwy)
