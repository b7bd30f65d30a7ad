# The portable backend: sm_80 machine code, and PTX for whatever is newer.
kadence_cuda_sources("-gencode=arch=compute_80,code=sm_80;-gencode=arch=compute_80,code=compute_80" ${CMAKE_CURRENT_LIST_DIR}/extend_recurrent/launch.cu)
target_sources(kadence_ops_kda PRIVATE ${CMAKE_CURRENT_LIST_DIR}/backend.cc)

# One instance of each kernel as machine code for the other architectures: that they compile, no more.
add_library(kadence_cuda_other_archs OBJECT ${CMAKE_CURRENT_LIST_DIR}/one_instance.cu)
target_link_libraries(kadence_cuda_other_archs PRIVATE kadence_cuda_options kadence_base kadence_device)
target_include_directories(kadence_cuda_other_archs PRIVATE ${PROJECT_BINARY_DIR}/include/ops)
set_target_properties(kadence_cuda_other_archs PROPERTIES CUDA_ARCHITECTURES OFF CUDA_STANDARD_REQUIRED OFF)
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/one_instance.cu PROPERTIES COMPILE_OPTIONS
  "-gencode=arch=compute_89,code=sm_89;-gencode=arch=compute_100,code=sm_100;-gencode=arch=compute_120,code=sm_120")
