# Programs and the shared libraries they need besides libc's, gathered in one folder:
#   cmake -DFOLDER=DIR "-DPROGRAMS=A;B" -DLIBRARIES=C -DCUBINS=DIR -P kit.cmake
file(MAKE_DIRECTORY ${FOLDER}/lib)
file(COPY ${PROGRAMS} DESTINATION ${FOLDER})
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${PROGRAMS} RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing
  POST_EXCLUDE_REGEXES "/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*)\\.so")
if(missing)
  message(FATAL_ERROR "not found: ${missing}")
endif()
file(COPY ${found} DESTINATION ${FOLDER}/lib FOLLOW_SYMLINK_CHAIN)
file(COPY ${LIBRARIES} DESTINATION ${FOLDER}/lib)
file(REMOVE_RECURSE ${FOLDER}/cubins)
file(COPY ${CUBINS} DESTINATION ${FOLDER})
