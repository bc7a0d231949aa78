# How Braid's libraries, binaries, tests and benches are built. Sources are found by glob, so a new
# file in a folder, or a new tests/unit/test_*.c, is part of the build without touching this file.

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
# What gRPC itself needs comes with its shared library: to list all of Abseil takes pkgconf 0.5 s, a
# dozen times, and linkers read the list.
execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --maximum-traverse-depth=2 --exists grpc
                RESULT_VARIABLE depth_refused OUTPUT_QUIET ERROR_QUIET)
set(arguments_before ${PKG_CONFIG_ARGN})
if(depth_refused EQUAL 0)
  list(APPEND PKG_CONFIG_ARGN --maximum-traverse-depth=2)
endif()
pkg_check_modules(GRPC REQUIRED IMPORTED_TARGET grpc gpr)
set(PKG_CONFIG_ARGN ${arguments_before})
pkg_check_modules(OPENSSL REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET libprotobuf-c)
pkg_check_modules(UV REQUIRED IMPORTED_TARGET libuv)
pkg_check_modules(ROCKSDB REQUIRED IMPORTED_TARGET rocksdb)
pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(LZ4 REQUIRED IMPORTED_TARGET liblz4)
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
pkg_check_modules(JEMALLOC REQUIRED IMPORTED_TARGET jemalloc)
find_program(PROTOC_C protoc-c REQUIRED)

set(BRAID_BASE_LIBS PkgConfig::XXHASH PkgConfig::YAML PkgConfig::JANSSON PkgConfig::MICROHTTPD
    PkgConfig::ZLIB PkgConfig::ZSTD PkgConfig::LZ4 Threads::Threads m)
set(BRAID_BLAS_LIBS PkgConfig::OPENBLAS)

add_library(braid_flags INTERFACE)
# -fno-strict-aliasing is not set: own code uses memcpy for type punning.
# -Wno-format-truncation: texts for people are cut on purpose.
# -fmacro-prefix-map: assertions name files as the repository does, so that folders do not tell builds apart.
# -ffp-contract=off: SIMD and scalar kernels must round alike (bit-for-bit promises).
target_compile_options(braid_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
  -Wundef -Wformat=2 -Wno-format-truncation -Wcast-qual -fvisibility=hidden -fstack-protector-strong -ffp-contract=off
  -fno-omit-frame-pointer -fPIC -fmacro-prefix-map=${CMAKE_SOURCE_DIR}/= -fmacro-prefix-map=${CMAKE_BINARY_DIR}/=)
target_compile_definitions(braid_flags INTERFACE _GNU_SOURCE BRAID_VERSION="${PROJECT_VERSION}")
if(CMAKE_BUILD_TYPE MATCHES "Release|RelWithDebInfo" AND NOT BRAID_SANITIZE)
  target_compile_definitions(braid_flags INTERFACE _FORTIFY_SOURCE=2)
endif()
if(BRAID_WERROR)
  target_compile_options(braid_flags INTERFACE -Werror)
endif()
if(BRAID_SANITIZE)
  target_compile_options(braid_flags INTERFACE -fsanitize=${BRAID_SANITIZE} -g)
  target_link_options(braid_flags INTERFACE -fsanitize=${BRAID_SANITIZE})
  target_compile_definitions(braid_flags INTERFACE BRAID_SANITIZED=1)
endif()

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
endif()

# CUDA and NCCL: found where installed; everything else builds without them. BRAID_CUDA_ROOT says where,
# if not where CMake looks or in /usr/local/cuda. Kernels are compiled by nvcc for BRAID_CUDA_ARCHS.
set(BRAID_HAVE_CUDA OFF)
set(BRAID_HAVE_NCCL OFF)
set(BRAID_CUDA_ARCHS "80;90" CACHE STRING "GPU generations to build kernels for; the last one also as PTX")
if(NOT BRAID_CUDA STREQUAL "OFF")
  set(cuda_hints ${BRAID_CUDA_ROOT} $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda)
  find_program(BRAID_NVCC nvcc HINTS ${cuda_hints} PATH_SUFFIXES bin)
  find_path(BRAID_CUDART_INCLUDE cuda_runtime_api.h HINTS ${cuda_hints} PATH_SUFFIXES include)
  find_library(BRAID_CUDART cudart HINTS ${cuda_hints} PATH_SUFFIXES lib64 lib)
  find_path(BRAID_NCCL_INCLUDE nccl.h HINTS ${cuda_hints} PATH_SUFFIXES include)
  find_library(BRAID_NCCL nccl HINTS ${cuda_hints} PATH_SUFFIXES lib64 lib)
  if(BRAID_NVCC AND BRAID_CUDART AND BRAID_CUDART_INCLUDE)
    set(BRAID_HAVE_CUDA ON)
  endif()
  if(BRAID_HAVE_CUDA) # binaries that use none of it do not load it; build tree only
    get_filename_component(cuda_lib_dir ${BRAID_CUDART} DIRECTORY)
    list(APPEND CMAKE_BUILD_RPATH ${cuda_lib_dir})
  endif()
  if(BRAID_HAVE_CUDA AND BRAID_NCCL AND BRAID_NCCL_INCLUDE)
    get_filename_component(nccl_lib_dir ${BRAID_NCCL} DIRECTORY)
    list(APPEND CMAKE_BUILD_RPATH ${nccl_lib_dir})
    set(BRAID_HAVE_NCCL ON)
  endif()
  if(BRAID_CUDA STREQUAL "ON" AND NOT BRAID_HAVE_NCCL)
    message(FATAL_ERROR "BRAID_CUDA=ON, but something is missing (BRAID_CUDA_ROOT says where to look): "
      "nvcc ${BRAID_NVCC}, cudart ${BRAID_CUDART}, nccl.h ${BRAID_NCCL_INCLUDE}, nccl ${BRAID_NCCL}")
  endif()
endif()
message(STATUS "CUDA: ${BRAID_HAVE_CUDA}, NCCL: ${BRAID_HAVE_NCCL} (BRAID_CUDA=${BRAID_CUDA})")

# braid_cuda_objects(<out variable> <file.cu>...): objects of kernels. nvcc is called as a tool, not as a
# CMake language: it takes none of the C flags. -fmad=false: kernels round as their scalar references.
function(braid_cuda_objects out)
  set(arch_flags)
  foreach(arch ${BRAID_CUDA_ARCHS})
    list(APPEND arch_flags -gencode arch=compute_${arch},code=sm_${arch})
    set(last ${arch})
  endforeach()
  list(APPEND arch_flags -gencode arch=compute_${last},code=compute_${last})
  set(objects)
  foreach(source ${ARGN})
    get_filename_component(name ${source} NAME)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${BRAID_NVCC} -std=c++17 -O3 -fmad=false ${arch_flags} -Xcompiler -fPIC,-Wall,-Wextra
              -I ${CMAKE_SOURCE_DIR} -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
  set(${out} ${objects} PARENT_SCOPE)
endfunction()

# --version: the commit is looked up by every build, not only when CMake runs.
set(BRAID_FEATURES "type=${CMAKE_BUILD_TYPE} compiler=${CMAKE_C_COMPILER_ID}")
foreach(part CUDA NCCL)
  string(TOLOWER ${part} name)
  if(BRAID_HAVE_${part})
    string(APPEND BRAID_FEATURES " ${name}=yes")
  else()
    string(APPEND BRAID_FEATURES " ${name}=no")
  endif()
endforeach()
if(BRAID_SANITIZE)
  string(APPEND BRAID_FEATURES " sanitize=${BRAID_SANITIZE}")
endif()
set(BRAID_BUILD_INFO ${CMAKE_BINARY_DIR}/generated/base/braid_build_info.h)
add_custom_target(braid_build_info BYPRODUCTS ${BRAID_BUILD_INFO}
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUT=${BRAID_BUILD_INFO}
          "-DFEATURES=${BRAID_FEATURES}" -P ${CMAKE_SOURCE_DIR}/deploy/cmake/BraidBuildInfo.cmake)
set_source_files_properties(${CMAKE_SOURCE_DIR}/base/build_info.c PROPERTIES
  OBJECT_DEPENDS ${BRAID_BUILD_INFO} INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/generated)

# braid_library(<name> DIRS <folder>... [PROTOS] LIBS <target>...)
# A static library braid_<name> of all .c files in the folders but main.c.
function(braid_library name)
  cmake_parse_arguments(L "PROTOS" "" "DIRS;LIBS" ${ARGN})
  set(sources)
  foreach(dir ${L_DIRS})
    file(GLOB found CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${dir}/*.c)
    list(FILTER found EXCLUDE REGEX "/main\\.c$")
    if(NOT BRAID_HAVE_NCCL)
      list(FILTER found EXCLUDE REGEX "/ring_nccl[a-z_]*\\.c$")
    endif()
    list(APPEND sources ${found})
    file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${dir}/*.cu)
    if(kernels AND BRAID_HAVE_CUDA)
      braid_cuda_objects(objects ${kernels})
      list(APPEND sources ${objects})
      set(has_kernels ON)
    endif()
  endforeach()
  if(L_PROTOS)
    file(GLOB protos CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/proto
         ${CMAKE_SOURCE_DIR}/proto/braid/v1/*.proto ${CMAKE_SOURCE_DIR}/proto/grpc/*/v1/*.proto
         ${CMAKE_SOURCE_DIR}/proto/etcd/*.proto)
    foreach(p ${protos})
      string(REGEX REPLACE "\\.proto$" ".pb-c" stem ${p})
      set(gen ${CMAKE_BINARY_DIR}/proto/${stem})
      add_custom_command(OUTPUT ${gen}.c ${gen}.h
        COMMAND ${PROTOC_C} -I ${CMAKE_SOURCE_DIR}/proto --c_out=${CMAKE_BINARY_DIR}/proto ${p}
        DEPENDS ${CMAKE_SOURCE_DIR}/proto/${p} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/proto)
      list(APPEND generated ${gen}.c)
    endforeach()
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/proto)
    # For server reflection: all files as one FileDescriptorSet, embedded (proto/px_files.h).
    file(GLOB described CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/proto
         ${CMAKE_SOURCE_DIR}/proto/braid/v1/*.proto ${CMAKE_SOURCE_DIR}/proto/grpc/*/*/*.proto)
    set(set ${CMAKE_BINARY_DIR}/proto/files.pb)
    set(paths ${described})
    list(TRANSFORM paths PREPEND ${CMAKE_SOURCE_DIR}/proto/)
    add_custom_command(OUTPUT ${set}.c
      COMMAND ${PROTOC_C} -I ${CMAKE_SOURCE_DIR}/proto --descriptor_set_out=${set} ${described}
      COMMAND ${CMAKE_COMMAND} -DIN=${set} -DOUT=${set}.c -DNAME=px_files
              -P ${CMAKE_SOURCE_DIR}/deploy/cmake/BraidEmbed.cmake
      DEPENDS ${paths} ${CMAKE_SOURCE_DIR}/deploy/cmake/BraidEmbed.cmake
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/proto)
    list(APPEND generated ${set}.c)
    add_library(braid_proto_gen OBJECT ${generated})
    target_link_libraries(braid_proto_gen PRIVATE PkgConfig::PROTOBUF_C)
    target_include_directories(braid_proto_gen PUBLIC ${CMAKE_BINARY_DIR}/proto)
    target_compile_options(braid_proto_gen PRIVATE -w -fPIC)
    list(APPEND sources $<TARGET_OBJECTS:braid_proto_gen>)
  endif()
  if(NOT sources) # a folder that is still empty
    file(WRITE ${CMAKE_BINARY_DIR}/empty.c "typedef int braid_empty;\n")
    set(sources ${CMAKE_BINARY_DIR}/empty.c)
  endif()
  add_library(braid_${name} STATIC ${sources})
  target_include_directories(braid_${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/proto)
  target_link_libraries(braid_${name} PUBLIC ${L_LIBS} PRIVATE braid_flags)
  if(L_PROTOS)
    add_dependencies(braid_${name} braid_proto_gen)
  endif()
  if(has_kernels)
    target_compile_definitions(braid_${name} PUBLIC BRAID_HAVE_CUDA=1)
    target_include_directories(braid_${name} SYSTEM PUBLIC ${BRAID_CUDART_INCLUDE})
    target_link_libraries(braid_${name} PUBLIC # nvcc's host stubs are C++
      -Wl,--push-state,--as-needed,${BRAID_CUDART},-lstdc++,--pop-state)
  endif()
  if(name STREQUAL "ring" AND BRAID_HAVE_NCCL)
    target_compile_definitions(braid_ring PUBLIC BRAID_HAVE_NCCL=1)
    target_include_directories(braid_ring SYSTEM PUBLIC ${BRAID_NCCL_INCLUDE})
    target_link_libraries(braid_ring PUBLIC
      -Wl,--push-state,--as-needed,${BRAID_NCCL},${BRAID_CUDART},--pop-state)
  endif()
  set_property(GLOBAL APPEND PROPERTY BRAID_LIBRARIES braid_${name})
endfunction()

# Binaries link jemalloc: it keeps freed pages, which gRPC's large messages need (a library must not).
function(braid_binary name main library)
  if(NOT EXISTS ${CMAKE_SOURCE_DIR}/${main})
    return()
  endif()
  add_executable(${name} ${main})
  target_link_libraries(${name} PRIVATE ${library} braid_flags)
  if(NOT BRAID_SANITIZE)
    target_link_libraries(${name} PRIVATE PkgConfig::JEMALLOC)
  endif()
endfunction()

# Each tests/unit/test_*.c and tests/sim/test_*.c is one cmocka executable that links every library;
# helpers are tests/unit/*.c without the prefix. Each tests/integ/test_*.sh runs real binaries, beside
# other tests: what it starts is its own, and it has a folder and ports of its own (tests/integ/lib.sh).
function(braid_tests)
  get_property(libs GLOBAL PROPERTY BRAID_LIBRARIES)
  file(GLOB helpers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/util/*.c)
  if(helpers)
    add_library(braid_test_util STATIC ${helpers})
    target_link_libraries(braid_test_util PUBLIC ${libs} PkgConfig::CMOCKA PRIVATE braid_flags)
    list(APPEND libs braid_test_util)
  endif()
  foreach(kind unit sim)
    file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${kind}/test_*.c)
    list(FILTER tests EXCLUDE REGEX "/test_ring_nccl(_comm|_faults)?\\.c$") # braid_nccl_tests
    foreach(source ${tests})
      get_filename_component(name ${source} NAME_WE)
      add_executable(${name} ${source})
      target_link_libraries(${name} PRIVATE ${libs} PkgConfig::CMOCKA braid_flags)
      add_test(NAME ${kind}/${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
      set(limit_s 120)
      if(BRAID_SANITIZE) # ThreadSanitizer costs a factor of 5 to 15
        set(limit_s 600)
      endif()
      set_tests_properties(${kind}/${name} PROPERTIES TIMEOUT ${limit_s} LABELS ${kind}
                           SKIP_RETURN_CODE 77)
    endforeach()
  endforeach()
  braid_nccl_tests()
  file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/integ/test_*.sh
       ${CMAKE_SOURCE_DIR}/tests/lint/test_*.sh)
  foreach(source ${scripts})
    get_filename_component(name ${source} NAME_WE)
    get_filename_component(dir ${source} DIRECTORY)
    get_filename_component(kind ${dir} NAME)
    add_test(NAME ${kind}/${name} COMMAND bash ${source} ${CMAKE_BINARY_DIR}
             WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${kind}/${name} PROPERTIES TIMEOUT 300 LABELS ${kind}
                         SKIP_REGULAR_EXPRESSION "SKIP:")
    braid_test_properties(${kind}/${name} ${source})
  endforeach()
endfunction()

# What a script's line "# ctest: PROPERTY VALUE..." says, e.g. RESOURCE_LOCK for what two tests cannot have
# at once, RUN_SERIAL where other tests would spoil a time, COST (seconds) so that long ones start first.
function(braid_test_properties test source)
  file(STRINGS ${source} lines REGEX "^# ctest: ")
  foreach(line ${lines})
    string(REGEX REPLACE "^# ctest: " "" line "${line}")
    separate_arguments(words UNIX_COMMAND "${line}")
    set_tests_properties(${test} PROPERTIES ${words})
  endforeach()
endfunction()

# ring_nccl over the fakes of CUDA and NCCL in tests/fakes, so that it runs on any machine. Called
# twice, since what NCCL can do depends on its version.
function(braid_nccl_fakes name version)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fakes/*.c
       ${CMAKE_SOURCE_DIR}/ring/ring_nccl*.c)
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} BEFORE PUBLIC ${CMAKE_SOURCE_DIR}/tests/fakes/include)
  target_compile_definitions(${name} PUBLIC NCCL_VERSION_CODE=${version})
  target_link_libraries(${name} PUBLIC braid_ring braid_base PRIVATE braid_flags)
endfunction()

function(braid_nccl_test name source libs)
  add_executable(${name} ${CMAKE_SOURCE_DIR}/tests/unit/${source}.c
                         ${CMAKE_SOURCE_DIR}/tests/nccl/nccl_ranks.c)
  target_link_libraries(${name} PRIVATE ${libs} braid_ring braid_base PkgConfig::CMOCKA braid_flags)
  add_test(NAME unit/${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(unit/${name} PROPERTIES TIMEOUT 600 LABELS unit SKIP_RETURN_CODE 77)
endfunction()

# A test whose groups of any backend (tests/util/ring_ranks.h) are of NCCL on the fakes.
function(braid_nccl_everywhere name source)
  add_executable(${name} ${CMAKE_SOURCE_DIR}/tests/unit/${source}.c
                         ${CMAKE_SOURCE_DIR}/tests/nccl/nccl_everywhere.c)
  target_link_libraries(${name} PRIVATE braid_nccl_fakes braid_test_util braid_ring braid_base
                                        PkgConfig::CMOCKA braid_flags)
  add_test(NAME unit/${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(unit/${name} PROPERTIES TIMEOUT 600 LABELS unit SKIP_RETURN_CODE 77)
endfunction()

# tests/unit/test_ring_nccl.c: on the fakes, on the fakes of an NCCL without ncclCommRevoke, and, where
# CUDA and NCCL are installed, on the real ones (skipped without a GPU). test_ring_nccl_faults.c: on both
# fakes. The tests of the reducer once more, on the fakes.
function(braid_nccl_tests)
  braid_nccl_fakes(braid_nccl_fakes 22809)
  braid_nccl_fakes(braid_nccl_fakes_old 21805)
  braid_nccl_test(test_ring_nccl test_ring_nccl braid_nccl_fakes)
  braid_nccl_test(test_ring_nccl_old test_ring_nccl braid_nccl_fakes_old)
  braid_nccl_test(test_ring_nccl_faults test_ring_nccl_faults braid_nccl_fakes)
  braid_nccl_test(test_ring_nccl_faults_old test_ring_nccl_faults braid_nccl_fakes_old)
  if(BRAID_HAVE_NCCL)
    braid_nccl_test(test_ring_nccl_gpu test_ring_nccl "")
  endif()
  braid_nccl_everywhere(test_ring_nccl_comm test_ring_nccl_comm)
  foreach(part "" _hooks _join _modes _pieces)
    braid_nccl_everywhere(test_ring_reducer${part}_nccl test_ring_reducer${part})
  endforeach()
endfunction()

# Each bench/bench_*.c is one program in build/bin; they may use tests/util.
function(braid_benches dir)
  get_property(libs GLOBAL PROPERTY BRAID_LIBRARIES)
  file(GLOB benches CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${dir}/bench_*.c)
  foreach(source ${benches})
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE braid_test_util ${libs} braid_flags PkgConfig::JEMALLOC)
  endforeach()
endfunction()
