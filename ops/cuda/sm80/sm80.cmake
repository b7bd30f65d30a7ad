# The portable backends: sm_80 machine code, and PTX for whatever is newer.
kadence_cuda_sources("${KADENCE_GENCODE_PORTABLE}"
  ${CMAKE_CURRENT_LIST_DIR}/extend_recurrent/launch.cu
  ${CMAKE_CURRENT_LIST_DIR}/extend_chunked/launch.cu
  ${CMAKE_CURRENT_LIST_DIR}/extend_chunked/inst/bf16.cu
  ${CMAKE_CURRENT_LIST_DIR}/extend_chunked/inst/f16.cu)
target_sources(kadence_ops_kda PRIVATE ${CMAKE_CURRENT_LIST_DIR}/backend.cc ${CMAKE_CURRENT_LIST_DIR}/extend_chunked/plan.cc)

# One instance of each kernel as machine code for the other architectures: that they compile, no more.
add_library(kadence_cuda_other_archs OBJECT ${CMAKE_CURRENT_LIST_DIR}/one_instance.cu)
target_link_libraries(kadence_cuda_other_archs PRIVATE kadence_cuda_options kadence_base kadence_device)
target_include_directories(kadence_cuda_other_archs PRIVATE ${PROJECT_BINARY_DIR}/include/ops)
set_target_properties(kadence_cuda_other_archs PROPERTIES CUDA_ARCHITECTURES OFF CUDA_STANDARD_REQUIRED OFF)
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/one_instance.cu PROPERTIES COMPILE_OPTIONS
  "-gencode=arch=compute_89,code=sm_89;-gencode=arch=compute_100,code=sm_100;-gencode=arch=compute_120,code=sm_120")

# Plans and workspaces; the kernels on emulated warps.
kadence_test(kda_sm80_extend_plan_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/extend_chunked/plan_test.cc LINK kadence_ops_kda LABELS ops)
if(KADENCE_BUILD_TESTS AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  kadence_test(kda_sm80_extend_emulated_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/emulated/extend_test.cc
    LINK kadence_ops_testing LABELS ops)
  target_include_directories(kda_sm80_extend_emulated_test BEFORE PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/emulated/shim ${PROJECT_SOURCE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_options(kda_sm80_extend_emulated_test PRIVATE -Wno-unknown-pragmas)
endif()
