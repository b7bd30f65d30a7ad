# CUDA sources of kadence_ops_kda. Each architecture's sources are listed beside its kernels.
# CMake 3.25 does not know C++20 for nvcc 13, so the language standard is passed by hand.
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
add_library(kadence_cuda_options INTERFACE)
target_compile_options(kadence_cuda_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-O3;-lineinfo;--expt-relaxed-constexpr;-Xptxas=-v;-diag-suppress=177>)
set(KADENCE_GENCODE_SM90 -gencode=arch=compute_90a,code=sm_90a)
set_target_properties(kadence_ops_kda PROPERTIES CUDA_ARCHITECTURES OFF CUDA_STANDARD_REQUIRED OFF)
target_link_libraries(kadence_ops_kda PRIVATE $<BUILD_INTERFACE:kadence_cuda_options> PUBLIC CUDA::cudart_static)

# kadence_cuda_sources(<gencode flags> <sources>...): adds .cu files compiled for one architecture.
function(kadence_cuda_sources gencode)
  target_sources(kadence_ops_kda PRIVATE ${ARGN})
  set_source_files_properties(${ARGN} TARGET_DIRECTORY kadence_ops_kda PROPERTIES COMPILE_OPTIONS "${gencode}")
endfunction()

target_sources(kadence_ops_kda PRIVATE cuda/common/tensor_map.cc)
include(${CMAKE_CURRENT_LIST_DIR}/sm90/extend.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/sm90/step.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/sm80/sm80.cmake OPTIONAL)

# Everything here that a machine without a GPU can build and run: `cmake --build --preset cuda --target cuda_all`, then the
# tests whose names begin with cuda_ or kda_sm.
add_custom_target(cuda_all DEPENDS kadence_ops_kda)
foreach(target kadence_cuda_other_archs kda_sm90_extend_plan_test kda_sm80_extend_plan_test kda_sm80_extend_emulated_test
        cuda_step_plan_test cuda_conv_emulated_test step_check step_time)
  if(TARGET ${target})
    add_dependencies(cuda_all ${target})
  endif()
endforeach()
