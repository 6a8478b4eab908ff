# Kernel translation units: kernels/cpu/<isa>/*.c, each folder with its own
# instruction-set flags and nowhere else.
set(QN_ISA_FLAGS_scalar "")
set(QN_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(QN_ISA_FLAGS_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl)
set(QN_ISA_FLAGS_avx512vnni ${QN_ISA_FLAGS_avx512} -mavx512vnni -mavx512vbmi)
set(QN_ISA_FLAGS_avx512bf16 ${QN_ISA_FLAGS_avx512vnni} -mavx512bf16)
set(QN_ISA_FLAGS_amx ${QN_ISA_FLAGS_avx512bf16} -mgfni -mamx-tile -mamx-int8 -mamx-bf16)
# Unrolled tiles under sanitizers at -O3 take a compiler minutes a file: there, less optimisation, calls (kernels/cpu/name.h) and none of the
# checks that put a branch at every access and that ASan covers. The compiler heeds the last word on a check, and
# options of libraries follow a target's own: so the checks are taken back by a library that stands after quern_flags.
# What it then says of bounds and of values not set is of copies of calls that nothing makes.
set(QN_KERNEL_OPTIMISE -O3)
add_library(quern_kernel_checks INTERFACE)
if(QN_SANITIZE OR QN_THREAD_SANITIZE)
  set(QN_KERNEL_OPTIMISE -O2 -DQN_KERNEL_CALLS $<$<C_COMPILER_ID:GNU>:-Wno-array-bounds> $<$<C_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_compile_options(quern_kernel_checks INTERFACE
    -fno-sanitize=pointer-overflow,null,alignment,object-size,bounds -fno-sanitize-address-use-after-scope)
endif()
foreach(isa scalar avx2 avx512 avx512vnni avx512bf16 amx)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cpu/${isa}/*.c)
  if(sources)
    add_library(qn_kernels_${isa} OBJECT ${sources})
    target_link_libraries(qn_kernels_${isa} PUBLIC quern_flags quern_kernel_checks)
    target_compile_options(qn_kernels_${isa} PRIVATE ${QN_ISA_FLAGS_${isa}} ${QN_KERNEL_OPTIMISE})
    list(APPEND QN_OBJECTS $<TARGET_OBJECTS:qn_kernels_${isa}>)
    # Short loops over streams run up to a quarter faster or slower by where in 64 bytes they begin: no link decides that.
    set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/cpu/${isa}/rows_${isa}.c PROPERTIES COMPILE_OPTIONS
      "-falign-functions=64;-falign-loops=64")
    if(QN_SANITIZE OR QN_THREAD_SANITIZE)
      # most codes, and a quarter or half a minute a file at -O2; what they read stands at the ends of pages in test_kernels
      if(NOT isa STREQUAL scalar)
        foreach(tiles panel fp4_bytes fp4_words)
          set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/cpu/${isa}/${tiles}_${isa}.c PROPERTIES COMPILE_OPTIONS
            "-O1;$<$<C_COMPILER_ID:GNU>:--param=asan-instrument-reads=0>")
        endforeach()
      endif()
      if(isa STREQUAL avx2) # 8 seconds less; processors with AVX-512 run models by another
        set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/cpu/avx2/groups_avx2.c PROPERTIES COMPILE_OPTIONS -O1)
      endif()
      if(isa STREQUAL scalar) # small, and much of the time of the tests that take every kernel
        foreach(part mm attention)
          set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/cpu/scalar/${part}_scalar.c PROPERTIES COMPILE_OPTIONS
            "-O3;-UQN_KERNEL_CALLS")
        endforeach()
      endif()
      # small, and most of the time of the tests that fit codebooks; test_kmeans watches what it reads
      set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/cpu/${isa}/fit_${isa}.c PROPERTIES COMPILE_OPTIONS
        "-O3;-UQN_KERNEL_CALLS;$<$<C_COMPILER_ID:GNU>:--param=asan-instrument-reads=0>")
    endif()
  endif()
endforeach()
