# KDA, convolution, state copies. Tests link kadence_ops_kda alone.
target_sources(kadence_ops_kda PRIVATE
  kda_plan.cc kda_metadata.cc kda_registry.cc kda_run.cc
  reference/kda_reference.cc
  cpu/kda_cpu.cc cpu/kda_extend.cc cpu/kda_kernels.cc cpu/kda_step.cc cpu/conv1d.cc cpu/conv1d_kernel.cc cpu/state_copy.cc)
target_link_libraries(kadence_ops_kda PRIVATE hwy::hwy)
if(KADENCE_SANITIZE)
  # Unrolled register code takes minutes to compile with sanitizers; guard bands in the tests watch these loops instead.
  set_source_files_properties(cpu/kda_kernels.cc cpu/conv1d_kernel.cc PROPERTIES COMPILE_OPTIONS "-fno-sanitize=all")
endif()

# What tests and benchmarks share: inputs, oracles, guarded memory, the conformance table, timings.
add_library(kadence_ops_testing STATIC
  testing/compare.cc testing/guarded.cc testing/kda_batch.cc testing/kda_bench.cc testing/kda_chunk_oracle.cc
  testing/kda_conformance.cc testing/kda_inputs.cc testing/kda_oracle.cc testing/pairwise.cc)
target_link_libraries(kadence_ops_testing PUBLIC kadence_ops_kda PRIVATE kadence_options)
kadence_test(kda_conformance_test SOURCES kda_conformance_test.cc LINK kadence_ops_testing LABELS ops)
kadence_test(kda_property_test SOURCES kda_property_test.cc LINK kadence_ops_testing LABELS ops)
kadence_test(kda_step_test SOURCES kda_step_test.cc LINK kadence_ops_testing LABELS ops asan)
kadence_test(kda_plan_test SOURCES kda_plan_test.cc LINK kadence_ops_testing LABELS ops asan)
kadence_test(conv1d_test SOURCES conv1d_test.cc LINK kadence_ops_testing LABELS ops asan)
kadence_test(kda_fault_test SOURCES kda_fault_test.cc kda_fault_slots_test.cc LINK kadence_ops_testing LABELS ops asan)
kadence_test(kda_status_test SOURCES kda_status_test.cc LINK kadence_ops_testing LABELS ops asan)
