# Step, verify, commit, convolution and state copies.
file(GLOB step_instances CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/step_decode/inst/*.cu ${CMAKE_CURRENT_LIST_DIR}/verify_commit/inst/*.cu)
kadence_cuda_sources("${KADENCE_GENCODE_SM90}"
  ${step_instances}
  ${CMAKE_CURRENT_LIST_DIR}/step_decode/launch.cu
  ${CMAKE_CURRENT_LIST_DIR}/verify_commit/launch.cu
  ${CMAKE_CURRENT_LIST_DIR}/../conv1d/launch.cu
  ${CMAKE_CURRENT_LIST_DIR}/../state_copy/state_copy.cu)
target_sources(kadence_ops_kda PRIVATE
  ${CMAKE_CURRENT_LIST_DIR}/step_decode/plan.cc
  ${CMAKE_CURRENT_LIST_DIR}/verify_commit/plan.cc
  ${CMAKE_CURRENT_LIST_DIR}/../conv1d/plan.cc)
