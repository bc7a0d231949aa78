# What `cmake --install` and the packages hold, by component:
#   ps      braid-ps, its manual page, systemd unit, sample configuration, alert rules, dashboard
#   worker  braid-worker, the CLI braid, manual pages, shell completion, unit, example jobs
#   lib     libbraid.so.1                      sdk  header, pkg-config, CMake files, .proto files
# `cpack -G DEB` makes one Debian package of each: braid-ps, braid-worker, libbraid, libbraid-dev.
# Included by BraidInstall.cmake, which installs lib and sdk.

set(samples ${CMAKE_INSTALL_DATADIR}/braid/samples)
install(TARGETS braid-ps RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ps)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/systemd/braid-ps@.service
  DESTINATION lib/systemd/system COMPONENT ps)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/samples/ps.env
  ${CMAKE_SOURCE_DIR}/deploy/monitoring/rules.yaml ${CMAKE_SOURCE_DIR}/deploy/monitoring/dashboard.json
  DESTINATION ${samples} COMPONENT ps)
install(TARGETS braid-worker braid RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT worker)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/systemd/braid-worker@.service
  DESTINATION lib/systemd/system COMPONENT worker)
install(FILES ${CMAKE_SOURCE_DIR}/docs/man/braid-ps.8
  DESTINATION ${CMAKE_INSTALL_MANDIR}/man8 COMPONENT ps)
install(FILES ${CMAKE_SOURCE_DIR}/docs/man/braid.1 ${CMAKE_SOURCE_DIR}/docs/man/braid-worker.1
  DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT worker)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/completion/braid.bash RENAME braid
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT worker)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/completion/_braid
  DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT worker)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/completion/braid.fish
  DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT worker)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/samples/worker.env ${CMAKE_SOURCE_DIR}/examples/demo.yaml
  ${CMAKE_SOURCE_DIR}/examples/criteo.yaml DESTINATION ${samples} COMPONENT worker)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME braid)
set(CPACK_PACKAGE_VENDOR Braid)
set(CPACK_PACKAGE_CONTACT "Braid <braid@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Recommender training: ring allreduce and parameter servers")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL ps worker lib sdk)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PS_PACKAGE_NAME braid-ps)
set(CPACK_DEBIAN_WORKER_PACKAGE_NAME braid-worker)
set(CPACK_DEBIAN_WORKER_PACKAGE_RECOMMENDS braid-ps)
set(CPACK_DEBIAN_LIB_PACKAGE_NAME libbraid)
set(CPACK_DEBIAN_SDK_PACKAGE_NAME libbraid-dev)
set(CPACK_DEBIAN_SDK_PACKAGE_DEPENDS "libbraid (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_PS_DESCRIPTION "Parameter server: sharded embedding tables behind gRPC, kept in RocksDB")
set(CPACK_COMPONENT_WORKER_DESCRIPTION "Trainer and command line of Braid")
set(CPACK_COMPONENT_LIB_DESCRIPTION "Client of Braid's parameter servers for trainers")
set(CPACK_COMPONENT_SDK_DESCRIPTION "Header, pkg-config, CMake and .proto files of libbraid")
include(CPack)
