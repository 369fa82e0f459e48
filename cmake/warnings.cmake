# SPDX-License-Identifier: Apache-2.0
# Warnings are errors, with both compilers; clang checks lock annotations too.
add_compile_options(-Wall -Wextra -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
                    $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual> -Wpointer-arith -Wundef -Werror
                    -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wthread-safety)
endif()
if(CMAKE_UNITY_BUILD)  # see batches.cmake; ./dev lint compiles each source alone, and warns of these
  add_compile_options(-Wno-shadow)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_compile_options(-Wno-unused-private-field)
  else()
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
endif()
