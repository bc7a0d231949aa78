# libbraid.so (the C library for other people's trainers) and what `cmake --install` puts where.
# It exports the functions of client/braid.h and nothing else (client/abi/braid.map), and is not
# linked with jemalloc: a library that brings it fails to load in Python.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(braid_shared SHARED $<TARGET_OBJECTS:braid_abi>)
target_link_libraries(braid_shared PRIVATE braid_client braid_rpc braid_proto braid_base braid_flags)
target_link_options(braid_shared PRIVATE
  -Wl,--version-script=${CMAKE_SOURCE_DIR}/client/abi/braid.map -Wl,--as-needed -Wl,--no-undefined)
set_target_properties(braid_shared PROPERTIES
  OUTPUT_NAME braid EXPORT_NAME braid VERSION ${PROJECT_VERSION} SOVERSION 1
  LINK_DEPENDS ${CMAKE_SOURCE_DIR}/client/abi/braid.map
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
target_include_directories(braid_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

configure_file(${CMAKE_SOURCE_DIR}/deploy/cmake/braid.pc.in ${CMAKE_BINARY_DIR}/lib/braid.pc @ONLY)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/lib/braidConfigVersion.cmake
  COMPATIBILITY SameMajorVersion)
file(WRITE ${CMAKE_BINARY_DIR}/lib/braidConfig.cmake
  "include(\${CMAKE_CURRENT_LIST_DIR}/braidTargets.cmake)\n")

install(TARGETS braid_shared EXPORT braid LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  COMPONENT lib NAMELINK_COMPONENT sdk)
install(EXPORT braid NAMESPACE braid:: FILE braidTargets.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/braid COMPONENT sdk)
install(FILES ${CMAKE_BINARY_DIR}/lib/braidConfig.cmake
  ${CMAKE_BINARY_DIR}/lib/braidConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/braid COMPONENT sdk)
install(FILES ${CMAKE_BINARY_DIR}/lib/braid.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT sdk)
install(FILES ${CMAKE_SOURCE_DIR}/client/braid.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT sdk)
# The wire API, for clients in other languages.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/proto/braid DESTINATION ${CMAKE_INSTALL_DATADIR}/braid/proto
  COMPONENT sdk FILES_MATCHING PATTERN "*.proto")
include(BraidPackage)
