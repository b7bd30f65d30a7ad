# Operators around KDA. Tests link kadence_ops_nn alone.
target_sources(kadence_ops_nn PRIVATE
  cpu/attention.cc
  cpu/attention_kernels.cc
  cpu/attention_rows.cc
  cpu/gemm.cc
  cpu/moe.cc
  cpu/nn_kernels.cc
  cpu/norm.cc
  cpu/rope.cc
  sampling.cc)
find_package(OpenMP REQUIRED COMPONENTS CXX)
target_link_libraries(kadence_ops_nn PRIVATE hwy::hwy DNNL::dnnl OpenMP::OpenMP_CXX)

foreach(name attention gemm moe norm)
  kadence_test(${name}_test SOURCES cpu/${name}_test.cc MODULES ops_nn)
endforeach()
kadence_test(sampling_test SOURCES sampling_test.cc MODULES ops_nn)
if(KADENCE_BUILD_TESTS)
  # Products choose their instruction set once a process.
  foreach(isa avx2 baseline)
    foreach(name gemm moe)
      add_test(NAME ${name}_test_${isa} COMMAND ${name}_test)
      set_tests_properties(${name}_test_${isa} PROPERTIES ENVIRONMENT KADENCE_TEST_ISA=${isa} TIMEOUT 300)
    endforeach()
  endforeach()
endif()
