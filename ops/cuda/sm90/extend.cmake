target_sources(kadence_ops_kda PRIVATE cuda/sm90/backend.cc cuda/sm90/extend_ring/plan.cc)
kadence_cuda_sources("${KADENCE_GENCODE_SM90}"
  cuda/sm90/extend_rows/launch.cu
  cuda/sm90/extend_ring/launch.cu
  cuda/sm90/extend_ring/inst/bounded.cu
  cuda/sm90/extend_ring/inst/bounded_exact.cu
  cuda/sm90/extend_ring/inst/softplus.cu
  cuda/sm90/extend_ring/inst/given.cu)
kadence_test(kda_sm90_extend_plan_test SOURCES cuda/sm90/extend_ring/plan_test.cc LINK kadence_ops_kda LABELS ops)
if(KADENCE_BUILD_TESTS)
  add_test(NAME kda_sm90_extend_ptxas
           COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/extend_ring/check_ptxas.sh ${CMAKE_CUDA_COMPILER} ${PROJECT_SOURCE_DIR})
  set_tests_properties(kda_sm90_extend_ptxas PROPERTIES TIMEOUT 600 LABELS ops)
endif()
