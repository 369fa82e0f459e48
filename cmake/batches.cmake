# SPDX-License-Identifier: Apache-2.0
# Sources are compiled in batches (CMAKE_UNITY_BUILD), since most of a compilation is headers: a first build takes 0.6 of
# the time. Who works on one source may prefer cmake build -DCMAKE_UNITY_BUILD=OFF; ./dev lint compiles each alone. What
# meets in a batch shares an unnamed namespace, so sources whose own names are taken there stand alone. Included last,
# when all targets are known.
if(NOT CMAKE_UNITY_BUILD)
  return()
endif()

function(stand_alone folder)
  list(TRANSFORM ARGN PREPEND ${CMAKE_SOURCE_DIR}/${folder}/)
  set_source_files_properties(${ARGN} DIRECTORY ${folder} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

stand_alone(tlib/client rpc_port.cc)
stand_alone(tlib/server written_log.cc)
stand_alone(fs/server sync.cc volume_format.cc)
stand_alone(tests/unit/driver softnic/kept_region_test.cc)
stand_alone(tests/unit/tlib/server_storage read_ahead_test.cc tier_recovery_test.cc)
stand_alone(tests/unit/fs file_cases.cc grants_restart_test.cc lost_writes_test.cc page_leases_test.cc
            real_capacity_test.cc reconnect_test.cc)
stand_alone(tests/unit/mount ../../fakes/memory_file_data.cc)
stand_alone(benchmarks term/busy_processor.cc term/region_server.cc)
