# The CUDA backend needs no toolkit: device sources are embedded as bytes and
# compiled at run time. A new file under kernels/cuda/ is found by itself.
file(GLOB QN_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu ${PROJECT_SOURCE_DIR}/kernels/cuda/*.h
  ${PROJECT_SOURCE_DIR}/kernels/common/cuda_*.h ${PROJECT_SOURCE_DIR}/data/tuned-cuts.txt)
set(QN_CUDA_EMBEDDED ${CMAKE_CURRENT_BINARY_DIR}/cuda_sources.c)
add_custom_command(OUTPUT ${QN_CUDA_EMBEDDED}
  COMMAND ${CMAKE_COMMAND} "-DOUTPUT=${QN_CUDA_EMBEDDED}" "-DINPUTS=${QN_CUDA_SOURCES}" -P ${CMAKE_CURRENT_LIST_DIR}/embed.cmake
  DEPENDS ${QN_CUDA_SOURCES} ${CMAKE_CURRENT_LIST_DIR}/embed.cmake VERBATIM COMMENT "Embedding device sources")
add_library(qn_cuda_sources OBJECT ${QN_CUDA_EMBEDDED})
target_link_libraries(qn_cuda_sources PUBLIC quern_flags)
list(APPEND QN_OBJECTS $<TARGET_OBJECTS:qn_cuda_sources>)

# Kernels made ahead of time, beside the command, where it looks for them: `cmake --build ... --target cubins`
# (needs NVRTC, no GPU). What is there is installed too (install.cmake).
set(QN_CUBIN_TARGETS "sm_90a" CACHE STRING "architectures of the target cubins, commas between them")
add_custom_target(cubins VERBATIM
  COMMAND ${CMAKE_CURRENT_BINARY_DIR}/quern warm --target ${QN_CUBIN_TARGETS} --cache-dir ${CMAKE_CURRENT_BINARY_DIR}/cubins
  COMMENT "Compiling device kernels for ${QN_CUBIN_TARGETS}")
