# Step, verify, commit, convolution and state copies. The kernels use nothing newer than sm_80 but for clusters and
# programmatic launches, so they are compiled for Hopper and, as machine code and PTX, for everything since sm_80.
set(KADENCE_GENCODE_PORTABLE -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_80,code=compute_80)
file(GLOB step_instances CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/step_decode/inst/*.cu
     ${CMAKE_CURRENT_LIST_DIR}/verify_commit/inst/*.cu)
kadence_cuda_sources("${KADENCE_GENCODE_SM90};${KADENCE_GENCODE_PORTABLE}"
  ${step_instances}
  ${CMAKE_CURRENT_LIST_DIR}/step_decode/launch.cu
  ${CMAKE_CURRENT_LIST_DIR}/verify_commit/launch.cu
  ${CMAKE_CURRENT_LIST_DIR}/../conv1d/launch.cu
  ${CMAKE_CURRENT_LIST_DIR}/../state_copy/state_copy.cu)
target_sources(kadence_ops_kda PRIVATE
  ${CMAKE_CURRENT_LIST_DIR}/step_decode/plan.cc
  ${CMAKE_CURRENT_LIST_DIR}/verify_commit/plan.cc
  ${CMAKE_CURRENT_LIST_DIR}/../conv1d/plan.cc)

# Choices and refusals, on any machine.
kadence_test(cuda_step_plan_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/step_decode/plan_test.cc LINK kadence_ops_kda LABELS ops)

if(KADENCE_BUILD_BENCH)
  set(bench_dir ${PROJECT_SOURCE_DIR}/bench/cuda)
  add_executable(step_check ${bench_dir}/step_check.cc ${bench_dir}/step_check_layers.cc ${bench_dir}/step_check_edges.cc)
  add_executable(step_time ${bench_dir}/step_time.cc)
  foreach(program step_check step_time)
    target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${program} PRIVATE kadence_ops_testing kadence_options)
  endforeach()
  if(KADENCE_BUILD_TESTS)
    add_test(NAME cuda_step_check COMMAND step_check small)
    set_tests_properties(cuda_step_check PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300 LABELS ops)
  endif()
endif()

# The convolution kernels on CPU threads.
if(KADENCE_BUILD_TESTS)
  kadence_test(cuda_conv_emulated_test SOURCES ${PROJECT_SOURCE_DIR}/bench/cuda/conv_emulated_test.cc
    ${PROJECT_SOURCE_DIR}/bench/cuda/step_check_layers.cc LINK kadence_ops_testing LABELS ops)
  target_include_directories(cuda_conv_emulated_test BEFORE PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/../emulated/shim ${PROJECT_SOURCE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_options(cuda_conv_emulated_test PRIVATE -Wno-unknown-pragmas)
endif()
