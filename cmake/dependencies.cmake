# SPDX-License-Identifier: Apache-2.0
# Every dependency is a Debian 12 package; ./dev installs them by name.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(RocksDB REQUIRED)
find_package(Boost REQUIRED COMPONENTS context)
find_package(FlatBuffers CONFIG REQUIRED)
find_package(CLI11 REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS SSL)
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(BLKID REQUIRED IMPORTED_TARGET blkid)
pkg_check_modules(IBVERBS REQUIRED IMPORTED_TARGET libibverbs)
pkg_check_modules(RDMACM REQUIRED IMPORTED_TARGET librdmacm)
find_library(AIO_LIBRARY aio REQUIRED)   # libaio has no pkg-config file
find_library(RAPIDCHECK_LIBRARY rapidcheck REQUIRED)

# termfs_flatbuffers(target schema.fbs...): generates NAME_generated.h beside the target's binary directory.
function(termfs_flatbuffers target)
  foreach(schema ${ARGN})
    get_filename_component(name ${schema} NAME_WE)
    set(out ${CMAKE_CURRENT_BINARY_DIR}/${name}_generated.h)
    add_custom_command(OUTPUT ${out}
      COMMAND flatbuffers::flatc --cpp --cpp-std c++17 --scoped-enums --gen-object-api
              -o ${CMAKE_CURRENT_BINARY_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${schema}
      DEPENDS ${schema})
    target_sources(${target} PRIVATE ${out})
  endforeach()
endfunction()

# termfs_test(name sources... LIBS libraries... [LABELS label...] [TIMEOUT seconds] [LONG]): a GoogleTest program,
# registered with ctest under its own name. The labels name what a tier of ./dev test builds and runs: unit (the default),
# property, simulation. A LONG one begins before the others, so that a run does not end with it alone. Target
# tests_LABEL builds all programs of a label.
function(termfs_test name)
  cmake_parse_arguments(ARG "LONG" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  if(ARG_LONG)
    set_tests_properties(${name} PROPERTIES COST 1)
  endif()
  termfs_add_to_labels(${name} ${ARG_LABELS})
endfunction()

# termfs_fuzz(name sources... LIBS libraries...): a libFuzzer program (LLVMFuzzerTestOneInput), built by the asan preset
# only. As a ctest test it runs a short while with a fixed seed; ./dev fuzz runs it longer. Its seed corpus, when there
# is one, is tests/fuzz/corpus/NAME; a file there is a regression test.
function(termfs_fuzz name)
  if(NOT TERMFS_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set(found ${CMAKE_BINARY_DIR}/fuzz-corpus/${name})
  file(MAKE_DIRECTORY ${found})
  set(seeds ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name})
  if(NOT EXISTS ${seeds})
    set(seeds "")
  endif()
  add_test(NAME ${name} COMMAND ${name} -seed=1 -runs=20000 -max_total_time=15 -timeout=10 ${found} ${seeds})
  set_tests_properties(${name} PROPERTIES TIMEOUT 60 LABELS fuzz)
  termfs_add_to_labels(${name} fuzz)
endfunction()

function(termfs_add_to_labels name)
  foreach(label ${ARGN})
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${name})
  endforeach()
endfunction()
