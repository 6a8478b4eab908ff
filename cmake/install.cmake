# libquern.so, and what `cmake --install` puts where: libraries, headers,
# quern.pc, the CMake package, the command with its manual page and completions.
# tests/install builds the example program against the result.

# ---- the shared library: exactly the symbols of cmake/quern.symbols ----
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/quern.symbols QN_SYMBOLS)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/quern.symbols)
list(JOIN QN_SYMBOLS ";\n        " QN_SYMBOL_LINES)
file(CONFIGURE OUTPUT quern.map CONTENT "QUERN_0 {\n    global:\n        ${QN_SYMBOL_LINES};\n    local:\n        *;\n};\n")
if(QN_SHARED)
  add_library(quern_shared SHARED ${QN_OBJECTS})
  # Before 1.0 the minor version may break the ABI; CHANGELOG.md says when.
  set_target_properties(quern_shared PROPERTIES
    OUTPUT_NAME quern VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
    LINK_DEPENDS ${CMAKE_CURRENT_BINARY_DIR}/quern.map)
  target_link_libraries(quern_shared PRIVATE quern_flags PkgConfig::DEPS Threads::Threads m ${CMAKE_DL_LIBS})
  target_link_options(quern_shared PRIVATE -Wl,--version-script=${CMAKE_CURRENT_BINARY_DIR}/quern.map)
  if(NOT QN_SANITIZE AND NOT QN_THREAD_SANITIZE)
    target_link_options(quern_shared PRIVATE -Wl,-z,defs)
  endif()
endif()

# ---- libraries and headers ----
set(QN_INSTALLED quern_static)
if(QN_SHARED)
  list(APPEND QN_INSTALLED quern_shared)
endif()
install(TARGETS ${QN_INSTALLED} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/quern DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

# ---- pkg-config and the CMake package, both relocatable ----
file(RELATIVE_PATH QN_PC_PREFIX "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
string(REGEX REPLACE "/$" "" QN_PC_PREFIX "${QN_PC_PREFIX}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/quern.pc.in quern.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/quern.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

include(CMakePackageConfigHelpers)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/quernConfig.cmake.in quernConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/quern PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR
  NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(quernConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/quernConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/quernConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/quern)

# ---- the command; its manual page and completions come from its own option table ----
if(TARGET quern)
  install(TARGETS quern RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  add_dependencies(cubins quern)
  install(DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/cubins DESTINATION lib/quern OPTIONAL)
  function(qn_install_printed file destination) # ARGN: the command's arguments
    install(CODE "
      execute_process(COMMAND \"$<TARGET_FILE:quern>\" ${ARGN} OUTPUT_VARIABLE text RESULT_VARIABLE status ERROR_QUIET)
      if(status EQUAL 0 AND NOT text STREQUAL \"\")
        file(WRITE \"${CMAKE_CURRENT_BINARY_DIR}/printed/${file}\" \"\${text}\")
        file(INSTALL \"${CMAKE_CURRENT_BINARY_DIR}/printed/${file}\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${destination}\")
      else()
        message(STATUS \"Not installed: ${file} (quern ${ARGN} printed nothing)\")
      endif()")
  endfunction()
  qn_install_printed(quern.1 ${CMAKE_INSTALL_MANDIR}/man1 --man)
  qn_install_printed(quern ${CMAKE_INSTALL_DATADIR}/bash-completion/completions --completion bash)
  qn_install_printed(_quern ${CMAKE_INSTALL_DATADIR}/zsh/site-functions --completion zsh)
  qn_install_printed(quern.fish ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d --completion fish)
endif()

install(FILES ${PROJECT_SOURCE_DIR}/examples/scaled_mm.c DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/LICENSE
  DESTINATION ${CMAKE_INSTALL_DOCDIR})
